"""Datasets: what every registered one promises, and each one's own format."""

from __future__ import annotations

import builtins
import hashlib
import os
import pickle
import subprocess
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
from sklearn.datasets import load_digits

from pcr_ray.contract import DATASET_CHECKS, NotHere
from pcr_ray.contract.datasets import config_for
from pcr_ray.datasets import DATASETS, mini_imagenet, prepare
from pcr_ray.errors import DataError
from pcr_ray.study.resolve import resolve
from tests.made_images import Splits, assert_holds, assert_same, random_splits, write_folder

CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
ABSENT = [d.name for d in DATASETS if not d.user_folder and d.name != "digits"]  # digits come with scikit-learn


def cut_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise URLError("no network")

    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", fail)


# What every dataset promises.


@pytest.mark.parametrize("check", DATASET_CHECKS)
@pytest.mark.parametrize("name", DATASETS.names())
def test_a_dataset_keeps_the_contract(name: str, check: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_the_network(monkeypatch)
    try:
        DATASET_CHECKS[check](name, root)
    except NotHere as reason:
        allowed = {"reads its images, the same every time", "can be learned"} if name != "digits" else set()
        assert check in allowed | ({"a folder with other classes is refused"} if name == "folder" else set()), reason


@pytest.mark.parametrize("name", ABSENT)
def test_an_absent_dataset_names_every_place_looked_at(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_the_network(monkeypatch)
    dataset = DATASETS.get(name)
    with pytest.raises(DataError) as raised:
        prepare(config_for(dataset), tmp_path)
    message = str(raised.value)
    places = dataset().native_paths(tmp_path)
    assert places and all(tmp_path in p.parents and str(p) in message for p in places)
    assert f"{tmp_path / name}/" in message and "train" in message and dataset.how_to_get in message
    assert "--data-root" in message and "PCR_RAY_DATA" in message


# Digits.


def test_digits_are_scikit_learns_doubled_with_a_fifth_of_each_class_for_testing(root: Path) -> None:
    digits = load_digits()
    splits: Splits = {"train": {}, "test": {}}
    for label in range(10):
        images = []
        for image in digits.images[digits.target == label]:
            grey = np.uint8(image * 255 / 16).repeat(2, axis=0).repeat(2, axis=1)
            images.append(np.stack([grey] * 3, axis=-1))
        images.sort(key=lambda i: hashlib.sha1(i.tobytes()).digest())  # fixed, and blind to content and origin
        fifth = -(-len(images) // 5)
        splits["test"][str(label)], splits["train"][str(label)] = np.stack(images[:fifth]), np.stack(images[fifth:])
    prepared = prepare(resolve({"dataset": "digits"}), root)
    assert prepared.images.shape == (1797, 16, 16, 3)
    assert_holds(prepared, splits)


def test_no_digit_is_in_both_train_and_test(root: Path) -> None:
    prepared = prepare(resolve({"dataset": "digits"}), root)
    train = {image.tobytes() for image in prepared.images[: sum(prepared.train_counts)]}
    assert not train & {image.tobytes() for image in prepared.images[sum(prepared.train_counts) :]}


# CIFAR.


def write_cifar(directory: Path, splits: Splits, files: dict[str, list[str]], meta: tuple[str, str], key: str) -> None:
    """The published layout: rows of 3072 bytes, channel by channel, classes mixed, in one or more files a split."""
    directory.mkdir(parents=True)
    names = sorted(splits["train"])
    for split, batches in files.items():
        rows = [(label, i) for label, name in enumerate(names) for i in splits[split][name]]
        np.random.default_rng(1).shuffle(rows)
        for k, batch in enumerate(batches):
            part = rows[k :: len(batches)]
            data = np.stack([image.transpose(2, 0, 1).reshape(-1) for _, image in part])
            (directory / batch).write_bytes(pickle.dumps({"data": data, key: [label for label, _ in part]}))
    (directory / meta[0]).write_bytes(pickle.dumps({meta[1]: names}))


@pytest.mark.parametrize("inside", ["", "cifar10"])
def test_cifar10_pickles_and_image_folder_give_the_same(
    inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchvision's check of the published files' MD5 is replaced: these files are small fakes."""
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda path, md5=None: Path(path).is_file())
    cut_the_network(monkeypatch)
    splits = random_splits(CIFAR10, 32, train=10)
    files = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
    place = tmp_path / "a" / inside / "cifar-10-batches-py"
    write_cifar(place, splits, files, ("batches.meta", "label_names"), "labels")
    write_folder(tmp_path / "b" / "cifar10", splits)
    native, folder = (prepare(resolve({"dataset": "cifar10"}), tmp_path / r) for r in "ab")
    assert_holds(native, splits)
    assert_same(native, folder)


def test_cifar100_pickles_and_image_folder_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda path, md5=None: Path(path).is_file())
    cut_the_network(monkeypatch)
    splits = random_splits([f"class_{c:02d}" for c in range(100)], 32, test=1)
    files = {"train": ["train"], "test": ["test"]}
    write_cifar(tmp_path / "a" / "cifar-100-python", splits, files, ("meta", "fine_label_names"), "fine_labels")
    write_folder(tmp_path / "b" / "cifar100", splits)
    native, folder = (prepare(resolve({"dataset": "cifar100"}), tmp_path / r) for r in "ab")
    assert_holds(native, splits)
    assert_same(native, folder)


def test_damaged_cifar_files_are_not_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here torchvision's own check is in force."""
    cut_the_network(monkeypatch)
    files = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
    splits = random_splits(CIFAR10, 32, train=10)
    write_cifar(tmp_path / "cifar-10-batches-py", splits, files, ("batches.meta", "label_names"), "labels")
    with pytest.raises(DataError, match="cifar-10-batches-py"):
        prepare(resolve({"dataset": "cifar10"}), tmp_path)


# MiniImageNet.


def write_mini_imagenet(folder: Path, splits: Splits, protocol: int = 4) -> None:
    """64, 16 and 20 classes, which classes being arbitrary; a class's images are scattered over its file."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(2)
    names = rng.permutation(sorted(splits["train"])).tolist()
    for file, part in zip(mini_imagenet.FILES, (names[:64], names[64:80], names[80:])):
        images = {name: np.concatenate([splits["train"][name], splits["test"][name]]) for name in part}
        places = [(name, k) for name in part for k in range(len(images[name]))]
        rng.shuffle(places)
        places = [(str(name), int(k)) for name, k in places]
        content = {
            "image_data": np.stack([images[name][k] for name, k in places]),
            "class_dict": {name: [places.index((name, k)) for k in range(len(images[name]))] for name in part},
        }
        (folder / file).write_bytes(pickle.dumps(content, protocol=protocol))


@pytest.mark.parametrize("protocol", [2, 4])
def test_mini_imagenet_pickles_are_joined_as_an_image_folder(
    protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mini_imagenet, "TRAIN_PER_CLASS", 2)  # the real 600 images a class are 1.3 GB
    splits = random_splits([f"n{c:08d}" for c in range(100)], 84, train=2, test=1)
    write_mini_imagenet(tmp_path / "a" / "mini_imagenet", splits, protocol)
    write_folder(tmp_path / "b" / "mini_imagenet", splits)
    native, folder = (prepare(resolve({"dataset": "mini_imagenet"}), tmp_path / r) for r in "ab")
    assert native.train_counts == [2] * 100 and native.test_counts == [1] * 100
    assert_holds(native, splits)
    assert_same(native, folder)


class Malicious:
    def __init__(self, call: Any, *arguments: Any) -> None:
        self.what = (call, arguments)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.what


@pytest.mark.parametrize("call", [os.system, builtins.eval, subprocess.getoutput, Path.touch, np.fromfile])
@pytest.mark.parametrize("where", ["top", "image_data", "name"])
def test_a_pickle_that_runs_code_is_refused_and_not_run(call: Any, where: str, tmp_path: Path) -> None:
    folder, marker = tmp_path / "mini_imagenet", tmp_path / "ran"
    argument = f"open({str(marker)!r}, 'w')" if call is builtins.eval else f"touch {marker}"
    evil = Malicious(call, marker if call in (Path.touch, np.fromfile) else argument)
    content = {"image_data": evil if where == "image_data" else 0, "class_dict": {(evil if where == "name" else 0): 0}}
    folder.mkdir()
    for file in mini_imagenet.FILES:
        (folder / file).write_bytes(pickle.dumps(evil if where == "top" else content))
    with pytest.raises(DataError, match=r"mini-imagenet-cache-train\.pkl.* it refers to "):
        prepare(resolve({"dataset": "mini_imagenet"}), tmp_path)
    assert not marker.exists()


IMAGES = np.zeros((2, 84, 84, 3), np.uint8)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a pickle",
        pickle.dumps({"image_data": IMAGES, "class_dict": {"a": [0, 1]}})[:-900],
        pickle.dumps([IMAGES]),
        pickle.dumps({"image_data": IMAGES}),
        pickle.dumps({"image_data": IMAGES, "class_dict": {}}),
        pickle.dumps({"image_data": IMAGES, "class_dict": {"a": [0, 7]}}),
        pickle.dumps({"image_data": IMAGES[:, :32, :32], "class_dict": {"a": [0, 1]}}),
        pickle.dumps({"image_data": IMAGES / 255, "class_dict": {"a": [0, 1]}}),
    ],
    ids=["empty", "text", "truncated", "list", "no classes", "empty classes", "no such row", "32x32", "float"],
)
def test_a_damaged_pickle_is_a_clear_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "mini_imagenet").mkdir()
    for file in mini_imagenet.FILES:
        (tmp_path / "mini_imagenet" / file).write_bytes(content)
    with pytest.raises(DataError, match=r"mini-imagenet-cache-train\.pkl is not one of the public pickles: \w"):
        prepare(resolve({"dataset": "mini_imagenet"}), tmp_path)
