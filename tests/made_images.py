"""Small made-up datasets and their image folders, for the tests of datasets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from pcr_ray.datasets import Prepared

Splits = dict[str, dict[str, np.ndarray]]  # split -> class name -> uint8 (n, size, size, 3)


def random_splits(names: list[str], size: int, train: int = 3, test: int = 2, seed: int = 0) -> Splits:
    rng = np.random.default_rng(seed)
    counts = {"train": train, "test": test}
    return {s: {c: rng.integers(0, 256, (n, size, size, 3), np.uint8) for c in names} for s, n in counts.items()}


def write_folder(folder: Path, splits: Splits) -> None:
    for split, classes in splits.items():
        for name, images in classes.items():
            (folder / split / name).mkdir(parents=True)
            for i, image in enumerate(images):
                Image.fromarray(image).save(folder / split / name / f"{i}.png", compress_level=1)


def assert_holds(prepared: Prepared, splits: Splits) -> None:
    """Every class has exactly its images, in some order; the statistics are those of the training images."""
    names = sorted(splits["train"])
    assert prepared.class_names == names and prepared.images.dtype == np.uint8
    assert len(prepared.images) == sum(len(images) for classes in splits.values() for images in classes.values())
    for split, classes in splits.items():
        for label, name in enumerate(names):
            found = prepared.images[prepared.rows(split, label)]
            assert sorted(i.tobytes() for i in found) == sorted(i.tobytes() for i in classes[name]), (split, name)
    pixels = np.concatenate(list(splits["train"].values())).reshape(-1, 3) / 255
    np.testing.assert_allclose(prepared.mean, pixels.mean(0), rtol=1e-9)
    np.testing.assert_allclose(prepared.std, pixels.std(0), rtol=1e-9)


def assert_same(a: Prepared, b: Prepared) -> None:
    assert np.array_equal(a.images, b.images) and a.fingerprint == b.fingerprint
    assert (a.train_counts, a.test_counts, a.class_names) == (b.train_counts, b.test_counts, b.class_names)
