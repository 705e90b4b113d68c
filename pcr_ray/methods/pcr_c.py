"""ER+A+B+C, PCR with the samples of the batch beside their proxies (Lin et al., CVPR 2023, section 5.3).

Anchor i of the joint batch B is compared with the proxy w_(y_j) of every j in B, itself included, as in PCR,
and with the sample z_j of every j != i, as in SCR. With s_c = gamma * cos(z_i, w_c), r_j = gamma * cos(z_i, z_j):
    D_i = sum_{j in B} e^{s_(y_j)} + sum_{j != i} e^{r_j}
    L_i = log D_i - mean of the terms of the anchor's class: n_y times s_y, and n_y - 1 samples' r_j,
n_y being how often the class occurs in B. L is the mean over the anchors.

Settled here, as the paper says only that anchor-to-sample pairs are kept beside anchor-to-proxy pairs:
1. Positives are averaged uniformly, repeated proxies included, so proxy and samples weigh about the same.
2. One gamma scales both kinds of pairs, and samples are compared by the features the head sees, no projector.
3. The first step of a run, with an empty memory, learns from the stream; PCR's public code skips it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pcr_ray.lazy import torch
from pcr_ray.memory import Recalled
from pcr_ray.methods._base import METHODS, Method
from pcr_ray.stream import Batch

if TYPE_CHECKING:
    from torch import Tensor

    from pcr_ray.models import CosineHead


def pcr_samples_loss(logits: Tensor, similarity: Tensor, labels: Tensor) -> Tensor:
    """`logits` (N, C) are s, `similarity` (N, N) is r with a diagonal that does not matter."""
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    counts = torch.zeros_like(logits[0]).index_add_(0, labels, torch.ones_like(logits[:, 0]))
    pairs = torch.cat([logits + counts.log(), similarity.masked_fill(itself, -torch.inf)], dim=1)  # (N, C + N)
    same = (labels[:, None] == labels) & ~itself  # (N, N)
    n = counts[labels]  # (N,)
    positive = n * logits.gather(1, labels[:, None])[:, 0] + torch.where(same, similarity, 0).sum(1)
    return (torch.logsumexp(pairs, dim=1) - positive / (2 * n - 1)).mean()


@METHODS.register("pcr_c")
class PCRC(Method):
    title = "ER+A+B+C"
    idea = "PCR that also contrasts with the samples of the batch"
    head = "cosine"
    heads = ("cosine",)
    inert = {"softmax": "seen"}  # its sum runs over the classes of the batch

    def loss(self, batch: Batch, memory: Recalled | None) -> Tensor:
        views = self.views(batch, memory)
        features = torch.cat(self.features(*views))
        head = cast("CosineHead", self.net.head)  # see `heads`
        return pcr_samples_loss(head(features), head.between(features), torch.cat([v.labels for v in views]))
