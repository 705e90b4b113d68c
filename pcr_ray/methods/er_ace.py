"""ER-ACE, asymmetric cross-entropy (Caccia et al., ICLR 2022).

L = CE(stream) over the task's classes C_t + CE(memory) over all classes seen so far (eq. 6 of the PCR paper),
cosine head. New classes do not push the proxies of old ones away; replay still separates them.

`stream_classes: batch` is the published task-free form: the stream's softmax runs over the classes of the
stream batch and those that never occurred in the stream so far.

Differences from the authors' code (AML; preset `aml` sets what fields can set):
1. Doubled augmented batch and gamma 1 / 0.09, as in the PCR paper; the authors have one augmented view and gamma 10.
2. Replay runs over the classes seen so far; the authors' runs over the whole head (`softmax: all`).
3. The task-free form holds from the first step on, as in mammoth; in the authors' code from the second task on.
4. A class never seen is one that no batch had; the authors take all from the largest class number seen upwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from pcr_ray.lazy import F, torch
from pcr_ray.memory import Recalled
from pcr_ray.methods._base import METHODS, Method, Params
from pcr_ray.stream import Batch

if TYPE_CHECKING:
    from torch import Tensor


class ERACEParams(Params):
    stream_classes: Literal["task", "batch"] = Field(
        "task", description="the stream's softmax: the task's classes, or the batch's and those never seen"
    )


@METHODS.register("er_ace")
class ERACE(Method):
    title = "ER-ACE"
    idea = "the stream competes among its own classes, replay among all seen"
    Params = ERACEParams
    head = "cosine"
    met: Tensor  # (C,) whether a class occurred in the stream

    def build(self) -> None:
        self.register_buffer("met", torch.zeros(len(self.net.head.weight), dtype=torch.bool))

    def stream_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of `logits` (N, C) over the classes that the stream may move."""
        if self.params.stream_classes == "task":
            return F.cross_entropy(logits[:, self.task.old : self.task.seen], labels - self.task.old)
        earlier = self.met.index_fill(0, labels, False)
        return F.cross_entropy(logits.masked_fill(earlier, -torch.inf), labels)

    def loss(self, batch: Batch, memory: Recalled | None) -> Tensor:
        views = self.views(batch, memory)
        logits = [self.net.head(f) for f in self.features(*views)]
        total = self.stream_loss(logits[0], views[0].labels)
        if memory is not None:
            total = total + F.cross_entropy(logits[1][:, : self.trained], views[1].labels)
        return total

    def remember(self, batch: Batch) -> None:
        super().remember(batch)
        self.met.index_fill_(0, batch.labels, True)
