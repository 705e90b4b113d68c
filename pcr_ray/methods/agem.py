"""A-GEM, averaged gradient episodic memory (Chaudhry et al., ICLR 2019).

g = gradient of CE(stream), r = gradient of CE(memory), both over all parameters and all classes seen so far.
From the second task on, if g.r < 0:  g <- g - (g.r / r.r) r.  Then the optimiser steps along g.

Differences from the published system:
1. One head over all classes seen so far; theirs had a head a task.
2. The memory is a reservoir, and the replay of a task may hold its own images (`replay_current: false`
   leaves the old tasks', as theirs does); theirs keeps the same number for each class.
3. Doubled augmented batch, as the PCR paper says that all its methods have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pcr_ray.lazy import F, torch
from pcr_ray.memory import Recalled
from pcr_ray.methods._base import METHODS, Method
from pcr_ray.stream import Batch

if TYPE_CHECKING:
    from torch import Tensor


def project(gradient: Sequence[Tensor], reference: Sequence[Tensor]) -> list[Tensor]:
    """`gradient` without its component against `reference`; both are one vector, cut into parameters."""
    dot = torch.stack([(g * r).sum() for g, r in zip(gradient, reference)]).sum()
    square = torch.stack([(r * r).sum() for r in reference]).sum()
    share = torch.where(dot < 0, dot / square, 0)  # stays on the device
    return [g - share * r for g, r in zip(gradient, reference)]


@METHODS.register("agem")
class AGEM(Method):
    title = "A-GEM"
    idea = "the stream's gradient, without what would raise the loss on memory"

    def recall(self, batch: Batch) -> Recalled | None:
        return super().recall(batch) if self.task.old else None

    def losses(self, batch: Batch, memory: Recalled | None) -> list[Tensor]:
        """Cross-entropy of the stream and, if there is one, of the memory batch."""
        views = [self.views(b) for b in (batch, memory) if b is not None]
        logits = [self.net.head(f)[:, : self.task.seen] for f in self.features(*views)]
        return [F.cross_entropy(s, v.labels) for s, v in zip(logits, views)]

    def learn(self, batch: Batch, memory: Recalled | None) -> Tensor:
        parameters = [p for p in self.parameters() if p.requires_grad]
        losses = self.losses(batch, memory)
        # With joint BatchNorm both losses hang on one graph.
        gradients = [torch.autograd.grad(loss, parameters, retain_graph=loss is not losses[-1]) for loss in losses]
        update = gradients[0] if memory is None else project(*gradients)
        for parameter, gradient in zip(parameters, update):
            parameter.grad = gradient
        self.descend()
        return losses[0].detach()
