"""A-GEM, averaged gradient episodic memory (Chaudhry et al., ICLR 2019).

g = gradient of CE(stream), r = gradient of CE(memory), both over all parameters.
From the second task on, if g.r < 0:  g <- g - (g.r / r.r) r.  Then the optimiser steps along g.

Differences from the authors' code:
1. One head for all classes; the authors have one head per task.
2. The memory is a reservoir, and replay may hold images of the current task (`replay_current: false` leaves those of
   earlier tasks); the authors keep the same number of images of each class, of earlier tasks only.
3. Doubled augmented batch, as the PCR paper has it for all methods.
In the survey's code (preset `survey`) A-GEM has a reservoir that includes the current task too, no augmentation, and a
softmax over the whole head.
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
    uncompiled = "each of its two losses has a gradient of its own"

    def recall(self, batch: Batch) -> Recalled | None:
        return super().recall(batch) if self.task.old else None

    def losses(self, batch: Batch, memory: Recalled | None) -> list[Tensor]:
        """Cross-entropy of the stream and, if there is one, of the memory batch."""
        views = self.views(batch, memory)
        logits = [self.net.head(f)[:, : self.trained] for f in self.features(*views)]
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
