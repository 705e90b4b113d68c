"""Small made-up datasets and their image folders, for the tests of datasets."""

from __future__ import annotations

import numpy as np

from pcr_ray.contract.datasets import Splits, check_holds, random_splits, write_folder
from pcr_ray.datasets import Prepared

assert_holds = check_holds

__all__ = ["Splits", "assert_holds", "assert_same", "random_splits", "write_folder"]


def assert_same(a: Prepared, b: Prepared) -> None:
    assert np.array_equal(a.images, b.images) and a.fingerprint == b.fingerprint
    assert (a.train_counts, a.test_counts, a.class_names) == (b.train_counts, b.test_counts, b.class_names)
