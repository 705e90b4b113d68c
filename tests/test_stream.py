"""The stream: every image once, tasks of different classes, and one stream a seed whoever learns from it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from pcr_ray.config import TrialConfig
from pcr_ray.datasets import Prepared, prepare
from pcr_ray.errors import InputError
from pcr_ray.learner import Learner
from pcr_ray.methods import METHODS
from pcr_ray.stream import Batch, Stream
from pcr_ray.study.resolve import resolve
from tests.made_images import Splits, random_splits, write_folder

CPU = torch.device("cpu")
COUNTS = [7, 1, 12, 4, 9, 3, 5]  # training images of each class


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven classes of unequal size, all images different."""
    folder = tmp_path_factory.mktemp("uneven")
    splits = random_splits([f"c{i}" for i in range(7)], 9, train=12, test=3)
    splits["train"] = {name: images[:n] for (name, images), n in zip(splits["train"].items(), COUNTS)}
    write_folder(folder, splits)
    return folder


def config_of(folder: Path, **fields: object) -> TrialConfig:
    own = {"dataset": "folder", "folder": str(folder), "image_size": 9, "tasks": 3, "method": "er"}
    return resolve(own | fields)


def stream_of(folder: Path, root: Path, *, iid: bool = False, **fields: object) -> Stream:
    config = config_of(folder, **fields)
    return Stream(config, prepare(config, root), CPU, iid=iid)


def all_batches(stream: Stream) -> list[list[Batch]]:
    return [list(stream.batches(t.index)) for t in stream.tasks]


def seen_in(tasks: list[list[Batch]]) -> Counter[tuple[bytes, int]]:
    """How often each image came with each label."""
    batches = [b for part in tasks for b in part]
    return Counter((image.numpy().tobytes(), int(y)) for b in batches for image, y in zip(b.images, b.labels))


def on_disk(data: Prepared, split: str, order: list[int]) -> Counter[tuple[bytes, int]]:
    """Images with the label that they should have: the position of their class in the stream's order."""
    return Counter(
        (data.images[row].tobytes(), order.index(label))
        for label in range(data.classes)
        for row in data.rows(split, label)
    )


@pytest.mark.parametrize("iid", [False, True])
@pytest.mark.parametrize("tasks", [1, 2, 3, 7])
@pytest.mark.parametrize("batch_size", [1, 10, 100])
def test_every_training_image_comes_once_a_run_with_its_label(
    folder: Path, root: Path, iid: bool, tasks: int, batch_size: int
) -> None:
    stream = stream_of(folder, root, iid=iid, tasks=tasks, batch_size=batch_size)
    batches = all_batches(stream)
    assert seen_in(batches) == on_disk(stream.data, "train", stream.class_order)
    for task, part in zip(stream.tasks, batches):
        assert len(part) == stream.steps(task.index)
        assert sum(map(len, part)) == stream.samples(task.index)
        assert all(len(b) == batch_size for b in part[:-1]) and 1 <= len(part[-1]) <= batch_size
        for b in part:
            assert b.labels.tolist() == b.host_labels.tolist() and len(b.images) == len(b)


def test_tasks_have_different_classes_numbered_as_they_arrive(folder: Path, root: Path) -> None:
    stream = stream_of(folder, root, tasks=3)
    before = 0
    for task, part in zip(stream.tasks, all_batches(stream)):
        labels = {int(y) for b in part for y in b.labels}
        assert labels == set(range(task.old, task.seen))
        assert task.old == before
        before = task.seen
    assert before == 7


def test_test_images_are_those_of_the_tasks_classes(folder: Path, root: Path) -> None:
    for iid in (False, True):
        stream = stream_of(folder, root, tasks=3, iid=iid)
        found: Counter[tuple[bytes, int]] = Counter()
        for task in range(3):
            rows, labels = stream.test(task)
            assert set(labels.tolist()) == set(range(stream.bounds[task], stream.bounds[task + 1]))
            found += Counter((stream.images[r].numpy().tobytes(), int(y)) for r, y in zip(rows, labels))
        assert found == on_disk(stream.data, "test", stream.class_order)


def fake(classes: int) -> Prepared:
    images = np.zeros((2 * classes, 1, 1, 3), np.uint8)
    names = [str(c) for c in range(classes)]
    return Prepared(images, [1] * classes, [1] * classes, names, [0.0] * 3, [1.0] * 3, "")


@pytest.mark.parametrize("classes", [1, 2, 7, 10, 13, 47, 100, 101])
def test_uneven_splits_differ_by_one_class_at_most(classes: int) -> None:
    for tasks in range(1, classes + 1):
        config = resolve({"dataset": "folder", "folder": "x", "image_size": 9, "tasks": tasks})
        sizes = [t.seen - t.old for t in Stream(config, fake(classes), CPU).tasks]
        assert len(sizes) == tasks and sum(sizes) == classes
        assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1


def test_more_tasks_than_classes_are_refused(folder: Path, root: Path) -> None:
    with pytest.raises(InputError, match="8 tasks, but the dataset has 7 classes"):
        stream_of(folder, root, tasks=8)


def test_an_iid_stream_mixes_all_classes_in_every_task(root: Path) -> None:
    config = resolve({"dataset": "digits", "method": "er"})
    stream = Stream(config, prepare(config, root), CPU, iid=True)
    labels = [np.concatenate([b.host_labels for b in part]) for part in all_batches(stream)]
    counts = np.array([np.bincount(part, minlength=10) for part in labels])
    assert stats.chi2_contingency(counts).pvalue > 1e-4  # the classes are spread over the tasks by chance alone
    assert all((t.old, t.seen) == (0, 10) for t in stream.tasks)
    assert max(counts.sum(1)) - min(counts.sum(1)) <= 1


# Randomness.


def trace(stream: Stream) -> list[tuple[bytes, list[int]]]:
    return [(b.images.numpy().tobytes(), b.labels.tolist()) for part in all_batches(stream) for b in part]


def test_a_seed_gives_one_stream_to_every_method(folder: Path, root: Path) -> None:
    traces = {}
    for method in METHODS:
        if not method.iid:
            stream = Learner(config_of(folder, method=method.name), root=root, device="cpu").stream
            traces[method.name] = trace(stream)
    assert len(traces) >= 3
    reference = traces.pop("er")
    for name, other in traces.items():
        assert other == reference, name


def test_a_stream_can_be_asked_again_and_in_any_order(folder: Path, root: Path) -> None:
    stream = stream_of(folder, root)
    expected = trace(stream)
    torch.rand(5)
    list(stream.batches(2))
    assert trace(stream) == expected


def test_other_seeds_give_other_orders_of_classes_and_images(folder: Path, root: Path) -> None:
    orders, shuffles = set(), set()
    for seed in range(20):
        stream = stream_of(folder, root, seed=seed, class_order="natural")
        shuffles.add(tuple(b for b, _ in trace(stream)))
        orders.add(tuple(stream_of(folder, root, seed=seed).class_order))
    assert len(orders) == len(shuffles) == 20


def test_the_seed_places_every_class_everywhere_with_equal_chance() -> None:
    counts = np.zeros((5, 5))
    for seed in range(1000):
        config = resolve({"dataset": "folder", "folder": "x", "image_size": 9, "tasks": 5, "seed": seed})
        order = Stream(config, fake(5), CPU).class_order
        assert sorted(order) == list(range(5))
        counts[range(5), order] += 1
    assert all(stats.chisquare(row).pvalue > 1e-4 for row in counts)


def test_natural_order_is_the_datasets_own(folder: Path, root: Path) -> None:
    assert stream_of(folder, root, class_order="natural").class_order == list(range(7))


def test_images_of_a_task_are_shuffled_over_its_classes(root: Path) -> None:
    """Of two classes of about 140, runs of one class in the order of arrival are as many as chance gives (4 sigma)."""
    config = resolve({"dataset": "digits", "method": "er"})
    stream = Stream(config, prepare(config, root), CPU)
    labels = np.concatenate([b.host_labels for b in stream.batches(0)])
    a, b = np.bincount(labels)
    runs = 1 + (labels[1:] != labels[:-1]).sum()
    mean = 1 + 2 * a * b / (a + b)
    deviation = np.sqrt((mean - 1) * (mean - 2) / (a + b - 1))
    assert abs(runs - mean) < 4 * deviation


# Fractions.


@pytest.mark.parametrize(
    ("fraction", "expected"),
    [
        (1.0, [7, 1, 12, 4, 9, 3, 5]),
        (0.6, [4, 1, 7, 2, 5, 2, 3]),
        (0.25, [2, 1, 3, 1, 2, 1, 1]),
        (0.01, [1, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_a_fraction_takes_that_part_of_each_class_and_at_least_one(
    folder: Path, root: Path, fraction: float, expected: list[int]
) -> None:
    for iid in (False, True):
        stream = stream_of(folder, root, fraction=fraction, class_order="natural", iid=iid)
        came = seen_in(all_batches(stream))
        counts = Counter(label for _, label in came.elements())
        assert [counts[c] for c in range(7)] == expected
        assert came <= on_disk(stream.data, "train", stream.class_order)
        assert sum(len(stream.test(t)[0]) for t in range(3)) == 21  # the test set stays whole


def test_a_larger_fraction_holds_the_smaller(folder: Path, root: Path) -> None:
    small, large = (seen_in(all_batches(stream_of(folder, root, fraction=f))) for f in (0.3, 0.8))
    assert small < large


def test_a_stream_follows_content_not_file_names(tmp_path: Path) -> None:
    """The same images under other file names and in another order give a seed the same stream."""
    splits = random_splits(["a", "b", "c"], 9, train=6)
    write_folder(tmp_path / "x", splits)
    turned: Splits = {s: {name: images[::-1] for name, images in c.items()} for s, c in splits.items()}
    write_folder(tmp_path / "y", turned)
    first, second = (trace(stream_of(tmp_path / f, tmp_path, fraction=0.5)) for f in "xy")
    assert first == second
