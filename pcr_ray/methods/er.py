"""ER, experience replay: reservoir memory, uniform replay (Rolnick et al., NeurIPS 2019).

L = CE(stream) + CE(memory), both over all classes seen so far (eq. 4 of the PCR paper), cosine head.

Differences from published systems:
1. Doubled augmented batch, as the PCR paper says that all its methods have it.
2. Cosine head, as in the PCR paper's equation. The survey code bases have a linear one, a softmax over the whole head
   and no augmentation: `head: linear` and `views: original` come near.
3. The two means are summed, as in the survey code bases; the paper's equation has one expectation.
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
        views = [self.views(b) for b in (batch, memory) if b is not None]
        total = views[0].images.new_zeros(())
        for view, features in zip(views, self.features(*views)):
            total = total + F.cross_entropy(self.net.head(features)[:, : self.task.seen], view.labels)
        return total
