"""FINE-TUNE: the stream alone, no memory. The lower reference.

L = mean over the stream batch of -log softmax(s)_y over all classes seen so far (eq. 2 of the PCR paper),
with s = gamma * cos(z, w).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from pcr_ray.memory import Recalled
from pcr_ray.methods._base import METHODS, Method
from pcr_ray.stream import Batch


@METHODS.register("finetune")
class Finetune(Method):
    title = "FINE-TUNE"
    idea = "cross-entropy on the stream, no memory"
    uses_memory = False
    head = "cosine"

    def loss(self, batch: Batch, memory: Recalled | None) -> Tensor:
        stream = self.views(batch)
        (features,) = self.features(stream)
        return F.cross_entropy(self.net.head(features)[:, : self.task.seen], stream.labels)
