"""The stream: classes in the seed's order, cut into tasks, each task's images shuffled once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from pcr_ray import seeds
from pcr_ray.config import TrialConfig
from pcr_ray.datasets import Prepared
from pcr_ray.errors import InputError
from pcr_ray.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from pcr_ray.augment import Draw


@dataclass(frozen=True)
class Task:
    """Classes are numbered in the order they arrive, so a task's classes are `old` to `seen` - 1."""

    index: int
    old: int  # classes of earlier tasks
    seen: int  # classes up to and including this task


@dataclass
class Batch:
    """Un-augmented images as stored, with labels on the device and, known without asking it, on the host."""

    images: Tensor  # uint8 (N, H, W, 3)
    labels: Tensor  # int64 (N,)
    host_labels: np.ndarray | None  # None if which images these are was decided on the device
    draws: list[Draw] = field(default_factory=list)  # what is random about their views; empty: not decided yet

    def __len__(self) -> int:
        return len(self.labels)


class Stream:
    """Cuts a prepared dataset into tasks and hands out their batches."""

    def __init__(self, config: TrialConfig, data: Prepared, device: torch.device, *, iid: bool = False) -> None:
        tasks = config.tasks or 1
        if tasks > data.classes:
            raise InputError(f"tasks: {tasks} tasks, but the dataset has {data.classes} classes")
        self.config, self.data, self.device, self.iid = config, data, device, iid
        order = torch.randperm(data.classes, generator=seeds.generator(config.seed, "classes")).tolist()
        self.class_order = order if config.class_order == "shuffled" else list(range(data.classes))
        bounds = np.linspace(0, data.classes, tasks + 1).round().astype(int).tolist()
        self.tasks = [Task(i, 0 if iid else bounds[i], data.classes if iid else bounds[i + 1]) for i in range(tasks)]
        self.bounds = bounds
        images = torch.from_numpy(data.images) if data.images.flags.writeable else _readonly_tensor(data.images)
        # On a GPU the whole dataset moves there once; on a CPU it stays a memory map shared by all trials.
        self.images = images.to(device)

    @property
    def image_shape(self) -> tuple[int, ...]:
        return tuple(self.images.shape[1:])

    def samples(self, task: int) -> int:
        return len(self._train(task)[0])

    def steps(self, task: int) -> int:
        return -(-self.samples(task) // self.config.batch_size)

    def batches(self, task: int) -> Iterator[Batch]:
        """The images of one task, each once, in the seed's order."""
        rows, labels = self._train(task)
        shuffle = torch.randperm(len(rows), generator=seeds.generator(self.config.seed, f"stream/{task}")).numpy()
        rows, labels = rows[shuffle], labels[shuffle]
        # Copied to the device once per task: a step only slices.
        device_rows, device_labels = torch.from_numpy(rows).to(self.device), torch.from_numpy(labels).to(self.device)
        for start in range(0, len(rows), self.config.batch_size):
            part = slice(start, start + self.config.batch_size)
            yield Batch(self.images.index_select(0, device_rows[part]), device_labels[part], labels[part])

    def test(self, task: int) -> tuple[Tensor, Tensor]:
        """Rows and labels of a task's test images, on the device."""
        rows, labels = self._rows("test", range(self.bounds[task], self.bounds[task + 1]))
        return torch.from_numpy(rows).to(self.device), torch.from_numpy(labels).to(self.device)

    def _train(self, task: int) -> tuple[np.ndarray, np.ndarray]:
        if not self.iid:
            return self._rows("train", range(self.bounds[task], self.bounds[task + 1]))
        rows, labels = self._rows("train", range(self.data.classes))
        shuffle = torch.randperm(len(rows), generator=seeds.generator(self.config.seed, "stream/iid")).numpy()
        part = np.array_split(shuffle, len(self.tasks))[task]
        return rows[part], labels[part]

    def _rows(self, split: str, positions: range) -> tuple[np.ndarray, np.ndarray]:
        rows = [self._kept(self.data.rows(split, self.class_order[p]), split) for p in positions]
        labels = np.repeat(np.array(positions, dtype=np.int64), [len(r) for r in rows])
        return np.concatenate(rows), labels

    def _kept(self, rows: np.ndarray, split: str) -> np.ndarray:
        """The fraction of a class that is trained on: the first images, in an order that is by content hash."""
        if split == "test":
            return rows
        return rows[: max(1, round(self.config.fraction * len(rows)))]


def _readonly_tensor(array: np.ndarray) -> Tensor:
    """A tensor over a read-only memory map: nothing here writes to the images."""
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
