"""DER++, dark experience replay (Buzzega et al., NeurIPS 2020).

L = CE(stream) + alpha * MSE(f(x1), logits1) + beta * CE(f(x2), y2)
with two independent draws from memory. An image enters the reservoir with the logits that the network had
for it in the forward pass of its own step, before the update.

Differences from the authors' code (mammoth; preset `mammoth` sets what fields can set):
1. Doubled augmented batch, as the PCR paper has it for all methods. The stored logits are those of the original view
   (with `views: augmented` those of the augmented one, as in the authors' code). An image has one vector of stored
   logits, and all its views at replay are drawn to it: the mean runs over originals and augmented copies.
2. Cross-entropies run over the classes seen so far; the authors' run over the whole head (`softmax: all`). The squared
   error runs over the whole head in both, so it also holds an old image's logits of later classes where they were.
3. alpha 0.1, beta 0.5 and lr 0.1 everywhere; the authors choose all three per dataset and buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from pcr_ray.augment import Draw
from pcr_ray.lazy import F, torch
from pcr_ray.memory import Recalled
from pcr_ray.methods._base import METHODS, Method, Params
from pcr_ray.stream import Batch

if TYPE_CHECKING:
    from torch import Tensor


class DERPPParams(Params):
    alpha: float = Field(0.1, ge=0, allow_inf_nan=False, description="weight of the squared error to stored logits")
    beta: float = Field(0.5, ge=0, allow_inf_nan=False, description="weight of the cross-entropy of the second draw")


@METHODS.register("derpp")
class DERPP(Method):
    title = "DER++"
    idea = "ER that also keeps the logits which an image had when it was seen"
    cost = 1.5
    Params = DERPPParams
    pending: Tensor  # logits of the batch, from its forward to `remember`

    def recall(self, batch: Batch) -> Recalled | None:
        """Both draws in one, the first in its first half."""
        first, second = super().recall(batch), super().recall(batch)
        if first is None or second is None:
            return None
        both = self.memory.at(torch.cat([first.slots, second.slots]))
        both.host_labels = np.concatenate([first.host_labels, second.host_labels])
        return both

    def loss(self, batch: Batch, memory: Recalled | None) -> Tensor:
        draws = [] if memory is None else self.halves(memory)
        views = self.views(batch, *draws)
        logits = [self.net.head(f) for f in self.features(*views)]
        self.pending = logits[0].detach()[: len(batch)]  # originals come first
        total = F.cross_entropy(logits[0][:, : self.trained], views[0].labels)
        if draws:
            target = draws[0].extras["logits"]  # (n, C)
            target = target.repeat(len(logits[1]) // len(target), 1)  # once per view
            total = total + self.params.alpha * F.mse_loss(logits[1], target)
            total = total + self.params.beta * F.cross_entropy(logits[2][:, : self.trained], views[2].labels)
        return total

    def draws(self, batch: Batch) -> list[Draw]:
        if isinstance(batch, Recalled):
            return [draw for half in self.halves(batch) for draw in super(DERPP, self).draws(half)]
        return super().draws(batch)

    def halves(self, memory: Recalled) -> list[Recalled]:
        middle = len(memory) // 2
        return [memory.part(slice(middle), memory.draws[:1]), memory.part(slice(middle, None), memory.draws[1:])]

    def remember(self, batch: Batch) -> None:
        self.memory.reservoir(batch, logits=self.pending)
