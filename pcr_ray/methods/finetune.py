"""FINE-TUNE: the stream alone, no memory. The lower reference (Lin et al., CVPR 2023, eq. 2).

L = mean over the stream batch of -log softmax(s)_y over all classes seen so far, with s = gamma * cos(z, w).

Differences from public code:
1. Doubled augmented batch, as the PCR paper has it for all methods.
2. Cosine head, as in the PCR paper's equation, and a softmax over the classes seen so far. The survey's code has a
   linear head, a softmax over the whole of it and no augmentation (preset `survey`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcr_ray.lazy import F
from pcr_ray.memory import Recalled
from pcr_ray.methods._base import METHODS, Method
from pcr_ray.stream import Batch

if TYPE_CHECKING:
    from torch import Tensor


@METHODS.register("finetune")
class Finetune(Method):
    title = "FINE-TUNE"
    idea = "cross-entropy on the stream, no memory"
    uses_memory = False
    head = "cosine"

    def loss(self, batch: Batch, memory: Recalled | None) -> Tensor:
        (stream,) = self.views(batch)
        (features,) = self.features(stream)
        return F.cross_entropy(self.net.head(features)[:, : self.trained], stream.labels)
