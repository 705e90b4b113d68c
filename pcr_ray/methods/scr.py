"""SCR, supervised contrastive replay (Mai et al., CVPR Workshops 2021).

L = mean over the anchors i of the joint batch B (memory and stream, originals and augmented) of
    -1/|P(i)| sum_{p in P(i)} log( e^{u_i . u_p / tau} / sum_{j in B, j != i} e^{u_i . u_j / tau} ),
P(i) = the others in B with the label of i, u = unit-length output of an MLP d -> d -> 128 on the features
(eq. 7 of the PCR paper). Inference is by the nearest class mean of the memory's features, without the MLP;
the softmax head takes no part and gets no gradient. Originals and augmented copies pass the network one after the
other (`batchnorm: views`), as in the authors' code.

With `review`, the authors' review trick, the memory is learned once more after each task: in random batches of
`replay_batch_size` (images left over are not used), with a tenth of the gradient.

Differences from the authors' code (preset `scr` sets what fields can set):
1. It replays what `replay_batch_size` says, 10 in the PCR paper's table; the authors replay 100, and review.
2. The first step of a run, with an empty memory, learns from the stream; the authors' code skips it.
3. tau 0.07 is the default of the authors' code; their settings for the paper have 0.1.
4. A reviewed batch passes the network once per view; in the authors' code its originals pass once more before, which
   moves BatchNorm's running statistics.
5. A class without images in memory cannot be predicted; the authors give it a random mean.
6. With `views` other than `both` an anchor may have no positive: it then adds 0 to the mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from pcr_ray.lazy import F, nn, torch
from pcr_ray.memory import Recalled
from pcr_ray.methods._base import METHODS, Method, Params, nearest_mean
from pcr_ray.stream import Batch

if TYPE_CHECKING:
    from torch import Tensor

PROJECTION = 128


class SCRParams(Params):
    added = {"review": False}

    temperature: float = Field(0.07, gt=0, allow_inf_nan=False, description="tau of the contrastive loss")
    review: bool = Field(False, description="after each task, learn the memory once more with a tenth of the gradient")


def supcon_loss(similarity: Tensor, labels: Tensor) -> Tensor:
    """`similarity` (N, N) is u_i . u_j / tau; its diagonal does not matter."""
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    # The lowest number instead of -inf: a batch of one has nothing else in its sum, and its gradient stays 0.
    log_p = similarity.masked_fill(itself, torch.finfo(similarity.dtype).min).log_softmax(1)
    positive = (labels[:, None] == labels) & ~itself
    return -(torch.where(positive, log_p, 0).sum(1) / positive.sum(1).clamp(min=1)).mean()


@METHODS.register("scr")
class SCR(Method):
    title = "SCR"
    idea = "supervised contrastive loss on stream and replay, nearest class mean at inference"
    Params = SCRParams
    nearest_mean = True
    batchnorm = "views"
    inert = {"head": "linear", "gamma": None, "softmax": "seen", "proxy_gradients": False}

    def build(self) -> None:
        dim = self.net.backbone.dim
        self.projector = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, PROJECTION))

    def loss(self, batch: Batch, memory: Recalled | None) -> Tensor:
        views = self.views(memory, batch)
        directions = F.normalize(self.projector(torch.cat(self.features(*views))))  # (N, 128)
        labels = torch.cat([v.labels for v in views])
        return supcon_loss(directions @ directions.T / self.params.temperature, labels)

    def end_task(self) -> None:
        size = self.config.replay_batch_size
        if self.params.review:
            slots = torch.randperm(self.memory.filled, generator=self.memory.draw_rng).numpy()
            for start in range(0, len(slots) - size + 1, size):
                self.review(self.memory.at(slots[start : start + size]))

    def review(self, memory: Recalled) -> None:
        self.optimiser.zero_grad()
        (self.taken_loss(memory, None) / 10).backward()  # a tenth of the gradient
        self.descend()

    def predict(self, features: Tensor, means: Tensor | None) -> Tensor:
        assert means is not None, "the memory holds something after every task"
        return nearest_mean(features, means)
