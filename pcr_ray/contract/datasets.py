"""The contract of a dataset: a usual split, images as promised, the same every time, a folder as stand-in."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pcr_ray.config import TrialConfig
from pcr_ray.contract._base import Check, NotHere, expect
from pcr_ray.datasets import DATASETS, Dataset, Prepared, prepare
from pcr_ray.errors import DataError
from pcr_ray.study.resolve import resolve

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


def check_holds(prepared: Prepared, splits: Splits) -> None:
    """Every class has exactly its images, in some order; the statistics are those of the training images."""
    names = sorted(splits["train"])
    expect(prepared.class_names == names, f"classes {prepared.class_names} instead of {names}")
    expect(prepared.images.dtype == np.uint8, f"images of type {prepared.images.dtype} instead of uint8")
    count = sum(len(images) for classes in splits.values() for images in classes.values())
    expect(len(prepared.images) == count, f"{len(prepared.images)} images instead of {count}")
    for split, classes in splits.items():
        for label, name in enumerate(names):
            found = prepared.images[prepared.rows(split, label)]
            same = sorted(i.tobytes() for i in found) == sorted(i.tobytes() for i in classes[name])
            expect(same, f"{split}, class {name}: other images than were put there")
    pixels = np.concatenate(list(splits["train"].values())).reshape(-1, 3) / 255
    np.testing.assert_allclose(prepared.mean, pixels.mean(0), rtol=1e-9)
    np.testing.assert_allclose(prepared.std, pixels.std(0), rtol=1e-9)


def config_for(dataset: type[Dataset], folder: Path | None = None, size: int = 12) -> TrialConfig:
    own = {"folder": str(folder), "image_size": size, "tasks": 2} if dataset.user_folder else {}
    return resolve({"dataset": dataset.name} | own)


def says_what_it_is(name: str, root: Path) -> None:
    dataset = DATASETS.get(name)
    expect(issubclass(dataset, Dataset), "not a subclass of pcr_ray.datasets.Dataset")
    expect(bool(getattr(dataset, "title", "").strip()), "`title` is empty: what tables call it")
    expect(bool(dataset.how_to_get.strip()), "`how_to_get` is empty: what to do where its images are not there")
    if dataset.user_folder:
        return
    missing = [n for n in ("classes", "tasks", "image_size") if not getattr(dataset, n, 0) > 0]
    expect(not missing, f"{', '.join(missing)}: a number above 0 is needed")
    expect(dataset.classes % dataset.tasks == 0, f"{dataset.classes} classes do not fall into {dataset.tasks} tasks")
    expect(9 <= dataset.image_size <= 512, f"`image_size` is {dataset.image_size}; 9 to 512 can be learned from")
    expect(config_for(dataset).tasks == dataset.tasks, "a trial does not get its usual number of tasks")


def stands_in_a_folder(name: str, root: Path) -> None:
    dataset = DATASETS.get(name)
    size, classes = dataset.image_size or 12, dataset.classes or 4
    splits = random_splits([f"class {c:03d}" for c in range(classes)], size)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        write_folder(place / name, splits)
        prepared = prepare(config_for(dataset, place / name, size), place)
        expect(prepared.images.shape == (5 * classes, size, size, 3), f"images of shape {prepared.images.shape}")
        check_holds(prepared, splits)


def refuses_other_classes(name: str, root: Path) -> None:
    dataset = DATASETS.get(name)
    if dataset.user_folder:
        raise NotHere("it has the classes that a user's folder has")
    with tempfile.TemporaryDirectory() as scratch:
        wrong = [f"{c:05d}" for c in range(dataset.classes + 1)]
        write_folder(Path(scratch) / name, random_splits(wrong, dataset.image_size, train=1, test=1))
        try:
            prepare(config_for(dataset), Path(scratch))
        except DataError as error:
            expect(f"should have {dataset.classes} classes" in str(error), f"refused for another reason: {error}")
            return
    expect(False, "a folder with one class too many is taken for it")


def reads_its_images(name: str, root: Path) -> None:
    """From the data root, if they are there; read twice, since a trial may meet another copy on every node."""
    dataset = DATASETS.get(name)
    if dataset.user_folder:
        raise NotHere("it reads a user's folder")
    first, second = _native(dataset, root), _native(dataset, root)
    for split, one, other in zip(("train", "test"), first[:2], second[:2]):
        shape, size = one.images.shape, dataset.image_size
        expect(shape[1:] == (size, size, 3), f"{split}: images of shape {shape[1:]} instead of {(size, size, 3)}")
        expect(one.images.dtype == np.uint8, f"{split}: {one.images.dtype} instead of uint8")
        expect(len(one.labels) == len(one.images), f"{split}: {len(one.labels)} labels of {len(one.images)} images")
        labels = set(np.unique(one.labels).tolist())
        expect(labels == set(range(dataset.classes)), f"{split}: labels {sorted(labels)} instead of 0 to classes - 1")
        promised = getattr(dataset, f"{split}_images")
        expect(promised in (0, len(one.images)), f"`{split}_images` says {promised}, there are {len(one.images)}")
        again, once = other.canonical(), one.canonical()
        same = np.array_equal(once.images, again.images) and np.array_equal(once.labels, again.labels)
        expect(same, f"{split}: read twice, the images differ; draw with a fixed seed")
    expect(len(first[2]) == dataset.classes, f"{len(first[2])} class names of {dataset.classes} classes")
    expect(first[2] == second[2], "read twice, the class names differ")


def _native(dataset: type[Dataset], root: Path) -> Any:
    try:
        return dataset().native(root)
    except DataError as error:
        raise NotHere(str(error).splitlines()[0]) from None


def can_be_learned(name: str, root: Path) -> None:
    """One task of fine-tuning on a few of its images."""
    from pcr_ray.learner import Learner

    dataset = DATASETS.get(name)
    if dataset.user_folder:
        raise NotHere("it reads a user's folder")
    images = dataset.train_images or 2000
    raw = {"dataset": name, "method": "finetune", "fraction": min(1.0, 300 * dataset.tasks / images)}
    try:
        trial = Learner(resolve(raw), root=root, device="cpu")
    except DataError as error:
        raise NotHere(str(error).splitlines()[0]) from None
    trial.run_task()
    expect(all(map(math.isfinite, trial.training.losses)), f"the loss is {trial.training.losses}")


DATASET_CHECKS: dict[str, Check] = {
    "says what it is": says_what_it_is,
    "an image folder stands in for it": stands_in_a_folder,
    "a folder with other classes is refused": refuses_other_classes,
    "reads its images, the same every time": reads_its_images,
    "can be learned": can_be_learned,
}
