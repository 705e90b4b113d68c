"""GSS, gradient-based sample selection, its greedy form (Aljundi et al., NeurIPS 2019).

ER whose memory prefers images with gradients unlike those it already has. Let G be the gradients, over all
parameters, of up to 10 random disjoint batches of 10 images in memory, and c_i = max cos(g_i, G) for the gradient g_i
of stream image i.
Not full: images enter in order, with score c_i (0.1 for those of the first batch).
Full: only if max cos(gradient of the stream batch, G) < 0, a slot is drawn for each stream image, without
replacement and in proportion to the scores s scaled to [0, 1]; image i takes its slot and the score c_i with
probability (s + 1) / ((s + 1) + (c_i + 1)).

Differences from the survey's code (preset `survey` sets what fields can set):
1. Doubled augmented batch, as the PCR paper has it for all methods.
2. Cross-entropies run over the classes seen so far; the survey's run over the whole head (`softmax: all`).
3. The scaled scores are raised by 1e-12: the lowest score is drawn last, and equal scores are drawn evenly instead of
   ending the run.
In both, gradients for the scores are those of un-augmented images with BatchNorm's running statistics, and the head is
linear; ER itself has the cosine head of the PCR paper's equation here (`head: cosine`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from pcr_ray.lazy import F, torch
from pcr_ray.methods._base import METHODS, Params
from pcr_ray.methods.er import ER
from pcr_ray.stream import Batch

if TYPE_CHECKING:
    from torch import Tensor

FIRST = 0.1  # the score of images that find the memory empty


class GSSParams(Params):
    strength: int = Field(10, ge=1, description="batches from memory whose gradients are compared with")
    compare: int = Field(10, ge=1, description="images in each of them")


def nearest(gradients: Tensor, reference: Tensor) -> Tensor:
    """The largest cosine of each row with any row of `reference`."""
    return (F.normalize(gradients) @ F.normalize(reference).T).amax(1)


def draw_slots(scores: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """`count` different slots, in proportion to the min-max-scaled scores."""
    low, high = scores.min(), scores.max()
    weights = (scores - low).double() / (high - low).double().clamp(min=1e-12) + 1e-12
    return torch.multinomial(weights, count, generator=rng)


@METHODS.register("gss")
class GSS(ER):
    title = "GSS"
    idea = "ER that stores images with gradients unlike those in memory"
    cost = 4.6
    Params = GSSParams
    head = "linear"
    syncs: ClassVar[str] = "whether and which images are stored depends on gradients"

    def remember(self, batch: Batch) -> None:
        memory = self.memory
        start, count = memory.filled, min(memory.size - memory.filled, len(batch))
        if count:
            scores = self.scores(batch) if start else self.net.head.weight.new_full((len(batch),), FIRST)
            memory.write(np.arange(start, start + count), np.arange(count), batch, score=scores)
        else:
            self.replace(batch)
        memory.seen += len(batch)

    def scores(self, batch: Batch) -> Tensor:
        """c_i of each image, while the memory fills."""
        return nearest(self.each_gradient(batch), self.memory_gradients())

    def replace(self, batch: Batch) -> None:
        reference = self.memory_gradients()
        whole = self.gradient(batch.images, batch.labels)
        if nearest(whole[None], reference) >= 0:  # the host waits here
            return
        fresh = nearest(self.each_gradient(batch), reference)
        stored, rng = self.memory.extras["score"].cpu(), self.memory.keep_rng
        slots = draw_slots(stored, min(len(batch), self.memory.size), rng)
        take = replaces(stored[slots], fresh.cpu()[: len(slots)], torch.rand(len(slots), generator=rng))
        rows = np.arange(len(slots))[take.numpy()]
        self.memory.write(slots.numpy()[rows], rows, batch, score=fresh)

    def memory_gradients(self) -> Tensor:
        """G (k, P): one row per random batch of the memory."""
        filled = self.memory.filled
        size = min(self.params.compare, filled)
        count = min(self.params.strength, filled // size)
        slots = torch.randperm(filled, generator=self.memory.keep_rng)[: count * size].numpy()
        drawn = self.memory.at(slots)
        parts = zip(drawn.images.split(size), drawn.labels.split(size))
        return torch.stack([self.gradient(images, labels) for images, labels in parts])

    def gradient(self, images: Tensor, labels: Tensor) -> Tensor:
        """(P,): the gradient over all parameters of the mean loss of stored images."""
        parameters = list(self.net.parameters())
        with self.evaluating():
            loss = F.cross_entropy(self.net(self.prepared(images), logits=True)[:, : self.trained], labels)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])

    def each_gradient(self, batch: Batch) -> Tensor:
        """(N, P): one row per image, in one pass."""
        parameters = {name: p.detach() for name, p in self.net.named_parameters()}

        def loss(parameters: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
            logits = torch.func.functional_call(self.net, parameters, (image[None],), {"logits": True})
            return F.cross_entropy(logits[:, : self.trained], label[None])

        # Inside vmap dynamo cannot compile; unless told, it would also give up on the network for good.
        with self.evaluating(), torch.compiler.set_stance("force_eager"):
            by_name = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(
                parameters, self.prepared(batch.images), batch.labels
            )
        return torch.cat([g.flatten(1) for g in by_name.values()], 1)

    def prepared(self, images: Tensor) -> Tensor:
        return self.normalised(self.pixels(images))


def replaces(stored: Tensor, fresh: Tensor, uniform: Tensor) -> Tensor:
    """True with probability (s + 1) / ((s + 1) + (c + 1)), for uniform numbers in [0, 1)."""
    return uniform * (stored + fresh + 2) < stored + 1
