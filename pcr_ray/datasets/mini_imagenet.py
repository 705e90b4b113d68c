"""Split MiniImageNet: 84x84, 10 tasks of 10 classes, from the three public pickles.

The pickles hold 64 + 16 + 20 classes of 600 images for few-shot learning; joined here, with each
class's first 500 images for training and last 100 for testing.
"""

from __future__ import annotations

import pickle  # files are read by `ArrayUnpickler` alone # nosec B403
from pathlib import Path
from typing import Any

import numpy as np

from pcr_ray.datasets._base import DATASETS, Dataset, Images
from pcr_ray.errors import DataError

FILES = [f"mini-imagenet-cache-{part}.pkl" for part in ("train", "val", "test")]
TRAIN_PER_CLASS = 500

# What a pickle of numpy arrays in plain containers needs, and nothing that could run code.
ADMITTED = {
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
    ("collections", "OrderedDict"),
}


class ArrayUnpickler(pickle.Unpickler):
    """Admits only numpy arrays and plain containers."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which a file of images has no use for")
        return super().find_class(module, name)


@DATASETS.register("mini_imagenet")
class MiniImageNet(Dataset):
    title = "Split MiniImageNet"
    classes, tasks, image_size = 100, 10, 84
    train_images, test_images = 50_000, 10_000
    how_to_get = f"Put {', '.join(FILES)} (the public few-shot pickles) into <data root>/mini_imagenet/."

    def native_paths(self, root: Path) -> list[Path]:
        return [root / self.name / file for file in FILES]

    def native(self, root: Path) -> tuple[Images, Images, list[str]]:
        missing = [path.name for path in self.native_paths(root) if not path.is_file()]
        if missing:
            raise DataError(f"{', '.join(missing)} missing")
        parts = [part for path in self.native_paths(root) for part in _read(path)]
        # By name across the files, as an image folder of the same classes is read.
        names, images = zip(*sorted(parts, key=lambda part: part[0]))
        train, test = [i[:TRAIN_PER_CLASS] for i in images], [i[TRAIN_PER_CLASS:] for i in images]
        return _join(train), _join(test), list(names)


def _join(per_class: list[np.ndarray]) -> Images:
    labels = np.repeat(np.arange(len(per_class)), [len(images) for images in per_class])
    return Images(np.concatenate(per_class), labels)


def _read(path: Path) -> list[tuple[str, np.ndarray]]:
    """The classes of one file: name and images, in the file's order."""
    try:
        with path.open("rb") as file:
            content = ArrayUnpickler(file).load()
        images, classes = content["image_data"], content["class_dict"]
        if images.dtype != np.uint8 or images.shape[1:] != (84, 84, 3):
            raise ValueError(f"image_data is {images.dtype} {images.shape}, not uint8 (N, 84, 84, 3)")
        if not classes:
            raise ValueError("class_dict is empty")
        return [(str(name), images[np.asarray(rows)]) for name, rows in classes.items()]
    except Exception as error:  # a damaged pickle raises nearly anything: UnpicklingError, LookupError, MemoryError
        raise DataError(f"{path} is not one of the public pickles: {type(error).__name__}: {error}") from None
