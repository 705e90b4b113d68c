"""PCR, proxy-based contrastive replay (Lin et al., CVPR 2023).

L = mean over the anchors of the joint batch B (stream and memory, originals and augmented) of
    -s_y + log sum_{j in B} e^{s_(y_j)},   s_c = gamma * cos(z, w_c).
The sum runs over the labels of the batch with repetition. With n_c = how often class c occurs among them
it is sum_c n_c e^{s_c}: a log-softmax of s + log n over C classes instead of N batch entries.

Differences from the authors' code:
1. The first step of a run, with an empty memory, learns from the stream; the authors' code skips it.
2. The last, smaller batch of a task is learned too; the authors drop it.
3. Only the classes seen so far compete at inference, as in the paper and in the later version of the authors' code; in
   its first version all do.
4. On MiniImageNet the whole feature map is pooled (160 features). Both public versions of the authors' code pool 4 x 4
   cells, which gives 640 features, and fail there, as their proxies have 160; `pool: 4` gives both 640.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcr_ray.lazy import torch
from pcr_ray.memory import Recalled
from pcr_ray.methods._base import METHODS, Method
from pcr_ray.stream import Batch

if TYPE_CHECKING:
    from torch import Tensor


def pcr_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """`logits` (N, C) are s; `labels` (N,) are both the anchors' classes and the batch's proxies."""
    counts = torch.zeros_like(logits[0]).index_add_(0, labels, torch.ones_like(logits[:, 0]))
    log_sum = torch.logsumexp(logits + counts.log(), dim=1)  # log 0 = -inf drops absent classes
    return (log_sum - logits.gather(1, labels[:, None])[:, 0]).mean()


@METHODS.register("pcr")
class PCR(Method):
    title = "PCR"
    idea = "contrastive replay against the proxies of the classes in the batch"
    head = "cosine"
    heads = ("cosine",)
    inert = {"softmax": "seen"}  # its sum runs over the classes of the batch

    def loss(self, batch: Batch, memory: Recalled | None) -> Tensor:
        views = self.views(batch, memory)
        logits = self.net.head(torch.cat(self.features(*views)))
        return pcr_loss(logits, torch.cat([v.labels for v in views]))
