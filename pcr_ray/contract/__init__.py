"""What every registered method and dataset promises. The tests hold ours to it, `pcr-ray check FILE` yours."""

from pcr_ray.contract._base import Broken, Check, NotHere
from pcr_ray.contract.datasets import DATASET_CHECKS
from pcr_ray.contract.methods import METHOD_CHECKS

__all__ = ["DATASET_CHECKS", "METHOD_CHECKS", "Broken", "Check", "NotHere"]
