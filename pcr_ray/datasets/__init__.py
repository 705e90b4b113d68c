"""Datasets, one file each. A new dataset is a new file with a registered `Dataset` class."""

from pcr_ray.datasets._base import DATASETS, Dataset, Images
from pcr_ray.datasets._store import Prepared, available, data_root, known_fingerprint, prepare

__all__ = ["DATASETS", "Dataset", "Images", "Prepared", "available", "data_root", "known_fingerprint", "prepare"]
