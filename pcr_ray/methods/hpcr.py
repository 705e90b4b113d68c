"""HPCR, holistic proxy-based contrastive replay (Lin et al., 2023; the successor of PCR, not in its paper).

L = g_i * L_PCR + alpha * PCD + beta * SCD, the last two from the second task on.
g_i = low + (high - low) / 2 * (1 - cos(2 pi i / period)), i = step within the task, from 0.
PCD: mean squared error between the logits that the replayed rows have now and those stored with them, both taken
     at the labels of the whole batch, with repetition: (memory rows) x (batch rows) entries.
SCD: mean over the replayed rows i of the cross-entropy -sum_{j != i} p_ij log q_ij. q_i is the softmax over
     j != i of gamma * cos(f_i, f_j) among the replayed rows' features now, p_i the same of the stored ones.
An image enters the reservoir with the logits and raw features that its original view had in the forward pass of its
own step, before the update. All views of an image at replay share them.

This is the authors' public code. The abstract of their paper also names a contrastive component that adds
anchor-to-sample pairs to PCR; no public code has it, and it is not here (ER+A+B+C, `pcr_c`, has such pairs).
Differences from the authors' code:
1. The first step of a run, with an empty memory, learns from the stream; the authors' code skips it.
2. The last, smaller batch of a task is learned too; the authors drop it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

from pydantic import Field

from pcr_ray.lazy import F, torch
from pcr_ray.memory import Recalled
from pcr_ray.methods._base import METHODS, Method, Params
from pcr_ray.methods.pcr import pcr_loss
from pcr_ray.stream import Batch, Task

if TYPE_CHECKING:
    from torch import Tensor

    from pcr_ray.models import CosineHead


class HPCRParams(Params):
    by_dataset = {"cifar10": {"alpha": 0.01}}

    alpha: float = Field(0.1, ge=0, allow_inf_nan=False, description="weight of PCD")
    beta: float = Field(0.5, ge=0, allow_inf_nan=False, description="weight of SCD")
    low: float = Field(0.5625, gt=0, allow_inf_nan=False, description="weight of the PCR loss at a task's start")
    high: float = Field(1.8, gt=0, allow_inf_nan=False, description="weight of the PCR loss half a period later")
    period: int = Field(500, ge=1, description="steps after which the weight is back at `low`")


def schedule(step: int, low: float, high: float, period: int) -> float:
    """g_i: the weight of the PCR loss at a step of a task, counted from 0."""
    return low + (high - low) / 2 * (1 - math.cos(2 * math.pi * step / period))


def structure_loss(now: Tensor, stored: Tensor) -> Tensor:
    """SCD of two (n, n) matrices of gamma * cos; their diagonals do not matter. 0 for a single row."""
    if len(now) < 2:
        return now.sum() * 0
    itself = torch.eye(len(now), dtype=torch.bool, device=now.device)
    log_q = now.masked_fill(itself, -torch.inf).log_softmax(1).masked_fill(itself, 0)  # 0 * -inf would be NaN
    return -(stored.masked_fill(itself, -torch.inf).softmax(1) * log_q).sum(1).mean()


@METHODS.register("hpcr")
class HPCR(Method):
    title = "HPCR"
    idea = "PCR with a periodic weight, kept close to stored logits and to the stored geometry of features"
    Params = HPCRParams
    head = "cosine"
    heads = ("cosine",)
    inert = {"softmax": "seen"}  # its sum runs over the classes of the batch
    weight: Tensor  # ()

    def build(self) -> None:
        self.steps = 0  # of the current task
        self.register_buffer("weight", torch.zeros(()), persistent=False)  # g_i of the coming step
        self.pending: dict[str, Tensor] = {}  # what to store with the batch, between its forward and `remember`

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.count(0)

    def count(self, steps: int) -> None:
        self.steps, p = steps, self.params
        self.weight.fill_(schedule(steps, p.low, p.high, p.period))

    def loss(self, batch: Batch, memory: Recalled | None) -> Tensor:
        views = self.views(batch, memory)
        features = self.features(*views)
        logits = [self.net.head(f) for f in features]
        # Originals come first.
        self.pending = {"logits": logits[0].detach()[: len(batch)], "features": features[0].detach()[: len(batch)]}
        labels = torch.cat([v.labels for v in views])
        p = self.params
        total = self.weight * pcr_loss(torch.cat(logits), labels)
        if memory is None or not self.task.old:
            return total
        copies = len(logits[1]) // len(memory)  # stored once per image, compared once per view
        stored = {name: values.repeat(copies, 1) for name, values in memory.extras.items()}
        total = total + p.alpha * F.mse_loss(logits[1][:, labels], stored["logits"][:, labels])
        head = cast("CosineHead", self.net.head)  # see `heads`
        return total + p.beta * structure_loss(head.between(features[1]), head.between(stored["features"]))

    def remember(self, batch: Batch) -> None:
        self.memory.reservoir(batch, **self.pending)
        self.pending = {}
        self.count(self.steps + 1)
