"""SS-IL, separated softmax (Ahn et al., ICCV 2021).

L = CE(stream) over the task's classes C_t + CE(memory of old tasks) over the old classes C_1:t-1
(eq. 5 of the PCR paper), cosine head. No gradient passes between old and new proxies.

Differences from the authors' method:
1. No task-wise distillation, as in the PCR paper's equation.
2. Two means are summed, as in AML's code; the authors have one sum over both parts, divided by the size of the whole
   batch.
3. Online: one epoch, stream and replay batch sizes as configured, where the authors keep a fixed ratio.
4. Doubled augmented batch and cosine head, as in the PCR paper; AML's code has one augmented view and a linear head
   (preset `aml`).
Replay begins with the second task, and `replay_current` makes no difference: the second term has no place
for the classes of the current task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcr_ray.lazy import F
from pcr_ray.memory import Recalled
from pcr_ray.methods._base import METHODS, Method
from pcr_ray.stream import Batch

if TYPE_CHECKING:
    from torch import Tensor


@METHODS.register("ss_il")
class SSIL(Method):
    title = "SS-IL"
    idea = "the stream competes among new classes, replay among old ones"
    head = "cosine"
    inert = {"replay_current": True, "softmax": "seen"}

    def recall(self, batch: Batch) -> Recalled | None:
        return self.memory.sample(self.replay_count, below=self.task.old)

    def loss(self, batch: Batch, memory: Recalled | None) -> Tensor:
        views = self.views(batch, memory)
        logits = [self.net.head(f) for f in self.features(*views)]
        old, seen = self.task.old, self.task.seen
        total = F.cross_entropy(logits[0][:, old:seen], views[0].labels - old)
        if memory is not None:
            total = total + F.cross_entropy(logits[1][:, :old], views[1].labels)
        return total
