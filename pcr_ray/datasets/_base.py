"""What a dataset has to say of itself, and how image folders are read."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image

from pcr_ray import sources
from pcr_ray.errors import DataError
from pcr_ray.registry import Registry

SHARED = ("pcr_ray.datasets", "pcr_ray.datasets._base", "pcr_ray.datasets._store")  # LAYOUT stands for them
SUFFIXES = {".png", ".jpg", ".jpeg"}


@dataclass
class Images:
    """Images and labels of one split, uint8 (N, H, W, 3) and int (N,)."""

    images: np.ndarray
    labels: np.ndarray

    def canonical(self) -> Images:
        """By class, then by content, so that a seed's stream does not depend on how the files were stored."""
        digests = [hashlib.sha1(image.tobytes(), usedforsecurity=False).digest() for image in self.images]
        order = sorted(range(len(digests)), key=lambda i: (self.labels[i], digests[i]))
        # torchvision hands out CIFAR as a transposed view, and numpy would keep that layout.
        return Images(np.ascontiguousarray(self.images[order]), self.labels[order])


class Dataset:
    """One dataset: its usual split, and how to get its images from a data root."""

    name: ClassVar[str]
    title: ClassVar[str]
    classes: ClassVar[int]
    tasks: ClassVar[int]
    image_size: ClassVar[int]
    train_images: ClassVar[int] = 0  # for forecasts; 0: not known beforehand
    test_images: ClassVar[int] = 0
    user_folder: ClassVar[bool] = False  # the user names the folder, the size and the number of tasks
    downloads: ClassVar[bool] = False  # `native` fetches what is missing
    how_to_get: ClassVar[str] = ""

    def native(self, root: Path) -> tuple[Images, Images, list[str]]:
        """Train and test images and the class names, from the format the dataset is published in."""
        raise DataError(f"dataset '{self.name}' is read from an image folder only")

    def native_paths(self, root: Path) -> list[Path]:
        """Where `native` looks: named where nothing is there; what changes there is read again."""
        return []


DATASETS: Registry[Dataset] = Registry("dataset", "pcr_ray.datasets")


def folder_files(folder: Path) -> dict[str, list[tuple[str, Path]]]:
    """(class name, file) of the splits 'train' and 'test' in sorted order; raises if it is no such folder."""
    files: dict[str, list[tuple[str, Path]]] = {}
    for split in ("train", "test"):
        if not (folder / split).is_dir():
            raise DataError(f"{folder} has no folder '{split}': expected train/<class>/* and test/<class>/*")
        files[split] = [
            (_readable(directory.name), file)
            for directory in sorted(p for p in (folder / split).iterdir() if p.is_dir())
            for file in sorted(directory.iterdir())
            if file.suffix.lower() in SUFFIXES
        ]
    train, test = ({name for name, _ in files[s]} for s in ("train", "test"))
    if not train:
        raise DataError(f"{folder}/train holds no PNG or JPEG files in class folders")
    if train != test:
        odd = sorted(train ^ test)
        raise DataError(f"{folder}: classes with images in only one of train and test: {', '.join(odd[:8])}")
    return files


def _readable(name: str) -> str:
    """A class's name as text: file systems also hold names that are not UTF-8."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def folder_fingerprint(files: dict[str, list[tuple[str, Path]]]) -> str:
    """Changes when an image is added, removed, renamed or written to; raises for what is no file: pipes never end."""
    return _fingerprint((f"{s}/{name}/{f.name}", f) for s, entries in sorted(files.items()) for name, f in entries)


def native_fingerprint(dataset: Dataset, root: Path) -> str | None:
    """Changes when one of the files that `native` reads does; None where they are not there (any more)."""
    there = [p for p in dataset.native_paths(root) if p.exists()]
    files = [f for p in there for f in ([p] if p.is_file() else sorted(p.rglob("*"))) if f.is_file()]
    return (
        _fingerprint((str(f.relative_to(root) if f.is_relative_to(root) else f), f) for f in files) if files else None
    )


def _fingerprint(files: Iterable[tuple[str, Path]]) -> str:
    digest = hashlib.sha1(usedforsecurity=False)
    for name, file in files:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{file} is not a file (a folder, a pipe or a device): remove it")
        digest.update(f"{name}:{status.st_size}:{status.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def code_fingerprint(dataset: Dataset) -> str:
    """Changes when the dataset's file, or what it imports of other datasets' files and of the user's, does."""
    files = sources.closure([type(dataset).__module__], leave_out=SHARED)
    own = {n: f for n, f in files.items() if not n.startswith("pcr_ray.") or n.startswith("pcr_ray.datasets.")}
    text = "".join(f"{n}:{sources.digest(f)}\n" for n, f in sorted(own.items()))
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def read_folder(files: dict[str, list[tuple[str, Path]]], size: int) -> tuple[Images, Images, list[str]]:
    names = sorted({name for name, _ in files["train"]})
    index = {name: i for i, name in enumerate(names)}
    splits = []
    for split in ("train", "test"):
        images = np.empty((len(files[split]), size, size, 3), np.uint8)
        for row, (_, file) in enumerate(files[split]):
            images[row] = _read_image(file, size)
        splits.append(Images(images, np.array([index[name] for name, _ in files[split]])))
    return splits[0], splits[1], names


def _read_image(file: Path, size: int) -> np.ndarray:
    try:
        with Image.open(file) as stored:
            image = stored.convert("RGB")
            if image.size != (size, size):
                image = image.resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(image)
    except Exception as error:  # OSError, SyntaxError, DecompressionBombError: it depends on the format and the damage
        raise DataError(f"{file} cannot be read as an image ({error}): remove or replace it") from None
