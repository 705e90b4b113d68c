"""ER-WA: ER with weight alignment at inference (Zhao et al., CVPR 2020).

Trained as ER. After each task t > 1 the classifier's weights of its classes, and of no others, are scaled by
    min(1, mean over old classes of |w_c| / mean over the task's classes of |w_c|)
at inference, so that new classes have no head start by the length of their weights. The bias is left as it is.

Differences from the authors' code:
1. |w| is the L2 norm; the authors' default is L1 (`norm: l1`).
2. Head weights may be negative; the authors set negative ones to 0 after each step (`clip: true`).
3. The head has a bias; the authors' has none.
4. No distillation from the model of the previous task.
5. Online: one epoch, ER's replay, doubled augmented batch; the authors train for many epochs per task, with a new head
   in each (preset `wa` sets what fields can set).
`clamp: false` leaves out the minimum with 1, as the formula in the authors' paper and other public code (PyCIL) do: old
weights may then be the longer ones, and new classes are scaled up.
The head is linear: a cosine head has no length to align.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from pcr_ray.lazy import F, nn, torch
from pcr_ray.methods._base import METHODS, Params
from pcr_ray.methods.er import ER

if TYPE_CHECKING:
    from torch import Tensor


class ERWAParams(Params):
    added = {"clamp": False, "norm": "l2", "clip": False}

    clamp: bool = Field(True, description="new weights are scaled down only, as in the authors' code")
    norm: Literal["l2", "l1"] = Field("l2", description="norm by which weights are long")
    clip: bool = Field(
        False, description="negative weights of the head become 0 after each step, as in the authors' code"
    )


@METHODS.register("er_wa")
class ERWA(ER):
    title = "ER-WA"
    idea = "ER, with the new classes' weights scaled to the old ones' length at inference"
    Params = ERWAParams
    head = "linear"
    heads = ("linear",)
    scale: Tensor  # (C,)

    def build(self) -> None:
        self.register_buffer("scale", torch.ones(len(self.net.head.weight)))

    def descend(self) -> None:
        super().descend()
        if self.params.clip:
            with torch.no_grad():
                self.net.head.weight.clamp_(min=0)

    def end_task(self) -> None:
        old, seen = self.task.old, self.task.seen
        self.scale.fill_(1)
        if old:
            length = self.net.head.weight.detach().norm(p=1 if self.params.norm == "l1" else 2, dim=1)
            scale = length[:old].mean() / length[old:seen].mean()
            self.scale[old:seen] = scale.clamp(max=1) if self.params.clamp else scale

    def logits(self, features: Tensor) -> Tensor:
        head = self.net.head
        assert isinstance(head, nn.Linear)  # see `heads`
        return F.linear(features, head.weight * self.scale[:, None], head.bias)
