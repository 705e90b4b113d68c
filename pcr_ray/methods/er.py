"""ER, experience replay: reservoir memory, uniform replay (Rolnick et al., NeurIPS 2019).

L = CE(stream) + CE(memory), both over all classes seen so far (eq. 4 of the PCR paper), cosine head.

Differences from public code:
1. Doubled augmented batch, as the PCR paper has it for all methods.
2. Cosine head and a softmax over the classes seen so far, as in the PCR paper's equation. Public code has a linear head
   and a softmax over the whole of it, and no augmentation (presets `survey`, `mir`) or one augmented view (`aml`).
3. The two means are summed, as in public code; the paper's equation has one expectation, so its step is half as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcr_ray.lazy import F
from pcr_ray.memory import Recalled
from pcr_ray.methods._base import METHODS, Method
from pcr_ray.stream import Batch

if TYPE_CHECKING:
    from torch import Tensor


@METHODS.register("er")
class ER(Method):
    title = "ER"
    idea = "cross-entropy on the stream and on uniform replay"
    head = "cosine"

    def loss(self, batch: Batch, memory: Recalled | None) -> Tensor:
        views = self.views(batch, memory)
        total = views[0].images.new_zeros(())
        for view, features in zip(views, self.features(*views)):
            total = total + F.cross_entropy(self.net.head(features)[:, : self.trained], view.labels)
        return total
