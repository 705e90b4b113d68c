"""MIR, maximally interfered retrieval (Aljundi et al., NeurIPS 2019).

ER that chooses what to replay: of 50 images drawn at random, those whose loss the coming step would raise most,
    score(x, y) = CE(x, y; theta') - CE(x, y; theta),   theta' = theta - lr * grad CE(stream; theta).

Differences from the authors' code (preset `mir` sets what fields can set):
1. Doubled augmented batch, as the PCR paper has it for all methods: in the stream's loss behind theta' (the very views
   of the real step) and at replay. Candidates are scored un-augmented. The authors have no augmentation.
2. Cross-entropies run over the classes seen so far; the authors' run over the whole head (`softmax: all`).
3. theta' is a plain SGD step whatever the optimiser.
4. Candidates come from the whole memory; the authors' come from earlier tasks only (`replay_current: false`).
In both, scoring with the present parameters moves BatchNorm's running statistics (`move_statistics: false`: it does
not), and the head is linear; ER itself has the cosine head of the PCR paper's equation here (`head: cosine`).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from pydantic import Field

from pcr_ray.lazy import F, torch
from pcr_ray.memory import Recalled
from pcr_ray.methods._base import METHODS, Params
from pcr_ray.methods._virtual import LookingAhead, frozen_statistics, logits_with
from pcr_ray.stream import Batch

if TYPE_CHECKING:
    from torch import Tensor


class MIRParams(Params):
    candidates: int = Field(
        50,
        ge=1,
        description="images drawn at random to choose the replay from; fewer than the replay count as that many",
    )
    move_statistics: bool = Field(
        True, description="scoring moves BatchNorm's running statistics, as in all public code"
    )


@METHODS.register("mir")
class MIR(LookingAhead):
    title = "MIR"
    idea = "ER that replays the images whose loss the coming step raises most"
    cost = 1.8  # more with `batchnorm: joint`, where the look ahead is not used again
    Params = MIRParams
    head = "linear"

    def recall(self, batch: Batch) -> Recalled | None:
        count = self.replay_count
        candidates = self.draw(max(self.params.candidates, count))
        if candidates is None or len(candidates) <= count:
            return candidates
        best = self.scores(batch, candidates).topk(count).indices
        return self.memory.at(candidates.slots[best])

    def scores(self, batch: Batch, candidates: Recalled) -> Tensor:
        """How much the coming step on `batch` would raise each candidate's rating."""
        now: dict[str, Tensor] = dict(self.net.named_parameters())
        ahead = self.look_ahead(batch)
        with torch.no_grad():
            with frozen_statistics(self.net):
                after = self.rating(ahead, candidates)
            with nullcontext() if self.params.move_statistics else frozen_statistics(self.net):
                return after - self.rating(now, candidates)

    def rating(self, parameters: dict[str, Tensor], candidates: Recalled) -> Tensor:
        """Each candidate's loss under these parameters of the network."""
        logits = logits_with(self.net, parameters, self.normalised(self.originals(candidates)))
        return F.cross_entropy(logits[:, : self.trained], candidates.labels, reduction="none")
