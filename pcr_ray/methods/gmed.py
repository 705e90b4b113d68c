"""GMED, gradient-based memory editing (Jin et al., NeurIPS 2021), with ER.

Before replay, every drawn image moves to where the coming step hurts it more:
    x <- x + decay^age * alpha * ((g2 - g1) - beta * g1),   g1 = grad_x l(x; theta),   g2 = grad_x l(x; theta'),
theta' = theta - lr * grad CE(stream; theta), age = how often x was edited before. The edited image replaces x in
memory. The regulariser beta keeps l(x; theta) from growing; the paper subtracts it, the authors' code adds it.

Differences from the authors' code (preset `gmed` sets what fields can set):
1. Doubled augmented batch, as the PCR paper has it for all methods. The edit sees the image itself.
2. Stream and memory pass the network one after the other (`batchnorm: separate`), as in ER here; in the authors' code
   together (`batchnorm: joint`).
3. Edited pixels are clamped to [0, 1]: augmentation is defined there.
4. theta' is a plain SGD step whatever the optimiser.
5. Cross-entropies run over the classes seen so far; the authors' run over the whole head (`softmax: all`).
6. Pixels are in [0, 1] everywhere while they are edited. The authors' of MiniImageNet are in [-1, 1], where alpha 1,
   the published value, moves an image as far as 0.25, the value for this dataset here.
In both, the edit leaves the running statistics of BatchNorm alone (the authors restore them from a copy), and l is the
mean over the replayed images, the scale that alpha was chosen for. Bytes would round most edits away (digits, 40 steps:
pixels moved by 0.03/255 on average in 3.7 edits), so the memory keeps a float copy of its images for them: five bytes
per pixel value instead of one. Class means (the NCM classifier) are those of the images as they came. The head is
linear, as in the authors' code; ER itself has the cosine head of the PCR paper's equation here (`head: cosine`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from pcr_ray.lazy import F, torch
from pcr_ray.memory import Recalled
from pcr_ray.methods._base import METHODS, Params
from pcr_ray.methods._virtual import LookingAhead, frozen_statistics, logits_with
from pcr_ray.stream import Batch

if TYPE_CHECKING:
    from torch import Tensor


class GMEDParams(Params):
    by_dataset = {"cifar100": {"alpha": 0.01, "beta": 0.001}, "mini_imagenet": {"alpha": 0.25, "beta": 0.1}}

    alpha: float = Field(0.05, ge=0, allow_inf_nan=False, description="stride of an edit")
    beta: float = Field(0.001, ge=0, allow_inf_nan=False, description="weight of the regulariser")
    regulariser: Literal["minus", "plus"] = Field("minus", description="its sign: minus as in the paper, plus in code")
    decay: float = Field(1.0, gt=0, le=1, description="factor on the stride for every earlier edit of the image")


@METHODS.register("gmed")
class GMED(LookingAhead):
    title = "GMED"
    idea = "ER that edits replayed images towards what the coming step would forget"
    cost = 1.4  # more with `batchnorm: joint`, where the look ahead is not used again
    Params = GMEDParams
    head = "linear"

    def originals(self, batch: Batch) -> Tensor:
        return batch.extras["edited"] if isinstance(batch, Recalled) else super().originals(batch)

    def recall(self, batch: Batch) -> Recalled | None:
        memory = super().recall(batch)
        if memory is None:
            return None
        edited = self.edit(memory, self.look_ahead(batch))
        memory.extras["edited"] = self.memory.extras["edited"][memory.slots] = edited
        self.memory.extras["age"][memory.slots] += 1
        return memory

    def edit(self, memory: Recalled, ahead: dict[str, Tensor]) -> Tensor:
        """The drawn images after one more edit, given the network's parameters after the coming step."""
        images = self.originals(memory).requires_grad_()
        now: dict[str, Tensor] = dict(self.net.named_parameters())
        with frozen_statistics(self.net):
            g1, g2 = (self.input_gradient(images, memory.labels, p) for p in (now, ahead))
        regulariser = self.params.beta * g1
        direction = g2 - g1 + (regulariser if self.params.regulariser == "plus" else -regulariser)
        stride = self.params.alpha * self.params.decay ** memory.extras["age"]
        return (images.detach() + stride[:, None, None, None] * direction).clamp(0, 1)

    def input_gradient(self, images: Tensor, labels: Tensor, parameters: dict[str, Tensor]) -> Tensor:
        logits = logits_with(self.net, parameters, self.normalised(images))
        return torch.autograd.grad(F.cross_entropy(logits[:, : self.trained], labels), images)[0]

    def remember(self, batch: Batch) -> None:
        ages = torch.zeros_like(batch.labels)
        self.memory.reservoir(batch, edited=self.originals(batch), age=ages)
