"""ER+A, the selection component of PCR's ablation (Lin et al., CVPR 2023, section 5.3).

L = mean over the anchors of the joint batch B (stream and memory, originals and augmented) of
    -s_y + log sum_{c in C_B} e^{s_c},   s_c = gamma * cos(z, w_c),
with C_B the classes that occur in B, each once: PCR with its counts n_c replaced by 1.

Settled here, as the paper gives the ablation in words only:
1. One mean over the joint batch, as in PCR, where ER sums the means of stream and memory.
2. The first step of a run, with an empty memory, learns from the stream; PCR's public code skips it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcr_ray.lazy import F, torch
from pcr_ray.memory import Recalled
from pcr_ray.methods._base import METHODS, Method
from pcr_ray.stream import Batch

if TYPE_CHECKING:
    from torch import Tensor


def selected_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of `logits` (N, C) over the classes that occur in `labels` (N,)."""
    absent = torch.ones_like(logits[0], dtype=torch.bool).index_fill(0, labels, False)
    return F.cross_entropy(logits.masked_fill(absent, -torch.inf), labels)


@METHODS.register("er_a")
class ERA(Method):
    title = "ER+A"
    idea = "cross-entropy over the classes in the batch"
    head = "cosine"
    inert = {"softmax": "seen"}  # its sum runs over the classes of the batch

    def loss(self, batch: Batch, memory: Recalled | None) -> Tensor:
        views = self.views(batch, memory)
        logits = self.net.head(torch.cat(self.features(*views)))
        return selected_loss(logits, torch.cat([v.labels for v in views]))
