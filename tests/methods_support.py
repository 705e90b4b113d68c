"""A trial that has learned for some steps, and its twin, for tests that compare a method with a literal one."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pcr_ray.learner import Learner
from pcr_ray.methods import Method
from pcr_ray.stream import Batch
from pcr_ray.study.resolve import resolve


def fresh(root: Path, method: str, **config: Any) -> Learner:
    settings = {"dataset": "digits", "method": method, "fraction": 0.3, "buffer": 30, "lr": 0.03} | config
    return Learner(resolve(settings), root=root, device="cpu")


def warmed(root: Path, method: str, steps: Sequence[int] = (4, 2), **config: Any) -> tuple[Learner, Batch]:
    """After so many steps of the first tasks; and the next batch of the last of them."""
    learner = fresh(root, method, **config)
    for task, count in zip(learner.stream.tasks, steps):
        learner.method.begin_task(task)
        learner.method.train()
        *before, batch = islice(learner.stream.batches(task.index), count + 1)
        for earlier in before:
            learner.method.step(earlier)
    return learner, batch


def twin(learner: Learner, root: Path) -> Method:
    """The same method in the same state, sharing nothing."""
    other = Learner(learner.config, root=root, device="cpu")
    other.load_state_dict(copy.deepcopy(learner.state_dict()))
    other.method.begin_task(learner.method.task)
    other.method.train()
    return other.method


def exact(net: nn.Module) -> nn.Module:
    """A copy of the network in double precision, in training mode."""
    return copy.deepcopy(net).double().train()


def scaled(images: Tensor) -> Tensor:
    """Stored images in double precision, channels first."""
    return images.permute(0, 3, 1, 2).double() / 255


def cross_entropies(logits: Tensor, labels: Tensor, classes: int) -> list[Tensor]:
    """One by one, from the definition."""
    out = []
    for row, label in zip(logits, labels.tolist()):
        out.append(-torch.log(row[label].exp() / sum(row[c].exp() for c in range(classes))))
    return out
