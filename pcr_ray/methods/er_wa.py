"""ER-WA: ER with weight alignment at inference (Zhao et al., CVPR 2020).

Trained as ER. After each task t > 1 the classifier's weights of its classes, and of no others, are scaled by
    mean over old classes of |w_c| / mean over the task's classes of |w_c|,
so that new classes have no head start by the length of their weights. The bias is left as it is.

Differences from the published system:
1. The scale is applied at inference only; theirs overwrites the weights, and the next task starts from them.
2. No distillation, no clipping of the weights to positive values.
3. Online: one epoch, ER's replay, doubled augmented batch.
4. Cross-entropies run over the classes seen so far.
The head is linear: a cosine head has no length to align.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcr_ray.lazy import F, nn, torch
from pcr_ray.methods._base import METHODS
from pcr_ray.methods.er import ER

if TYPE_CHECKING:
    from torch import Tensor


@METHODS.register("er_wa")
class ERWA(ER):
    title = "ER-WA"
    idea = "ER, with the new classes' weights scaled to the old ones' length at inference"
    head = "linear"
    heads = ("linear",)
    scale: Tensor  # (C,)

    def build(self) -> None:
        self.register_buffer("scale", torch.ones(len(self.net.head.weight)))

    def end_task(self) -> None:
        old, seen = self.task.old, self.task.seen
        self.scale.fill_(1)
        if old:
            length = self.net.head.weight.detach().norm(dim=1)
            self.scale[old:seen] = length[:old].mean() / length[old:seen].mean()

    def logits(self, features: Tensor) -> Tensor:
        head = self.net.head
        assert isinstance(head, nn.Linear)  # see `heads`
        return F.linear(features, head.weight * self.scale[:, None], head.bias)
