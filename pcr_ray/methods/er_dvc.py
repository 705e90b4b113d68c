"""ER-DVC, dual view consistency (Gu et al., CVPR 2022).

z and z' are the logits of an image and of its augmented copy, z_joint = Q(z, z') those of a small network that sees
both (2C -> 128 -> ReLU -> C), P = softmax. For the stream and for the memory
    L = CE(z and z') + 1/3 sum_k sum_c Pbar_k log Pbar_k + dl * mean |P_joint - P_view|
with k over z, z' and z_joint, Pbar_k the mean of P_k over the batch, and the last mean over views, images, classes.
Replay: MIR's virtual step, here on the stream's whole L, and of 50 random images those whose gradient at the head it
would raise most,
    score = change of ||softmax(z) - onehot(y)||_1 * ||feature||_1.

Differences from the authors' code (preset `dvc` sets what fields can set):
1. Augmentation is drawn per image, and colours are jittered with probability 0.8, as for all methods of the PCR paper.
   The authors draw one crop, flip, jitter and grey per batch, jitter always (`augment: dvc`).
2. Candidates are scored as they are and replayed with fresh augmented copies; the authors score them in one batch with
   augmented copies, and replay these very copies.
3. All probabilities run over the classes seen so far, the authors' over the whole head (`softmax: all`). The mean of
   |P_joint - P_view| divides by all classes in both, so that `dl` weighs the same.
4. With `views` other than `both` the one view stands for both.
5. The virtual step is plain SGD whatever the optimiser.
In both, scoring with the present parameters moves BatchNorm's running statistics (`move_statistics: false`: it does
not).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from pcr_ray.lazy import F, nn, torch
from pcr_ray.memory import Recalled
from pcr_ray.methods._base import METHODS
from pcr_ray.methods._virtual import outputs_with
from pcr_ray.methods.mir import MIR, MIRParams
from pcr_ray.stream import Batch

if TYPE_CHECKING:
    from torch import Tensor

HIDDEN = 128  # width of the joint network


class DVCParams(MIRParams):
    by_dataset = {"cifar100": {"dl": 4.0}, "mini_imagenet": {"dl": 4.0}}

    dl: float = Field(
        2.0, ge=0, allow_inf_nan=False, description="weight of the distance between joint and single predictions"
    )


def negative_entropy(probabilities: Tensor) -> Tensor:
    """sum_c p log p of the mean prediction p of a batch (N, C)."""
    mean = probabilities.mean(0)
    return (mean * mean.clamp(min=torch.finfo(mean.dtype).tiny).log()).sum()  # 0 log 0 = 0, gradient included


@METHODS.register("er_dvc")
class ERDVC(MIR):
    title = "ER-DVC"
    idea = "ER on two consistent views, replaying what the coming step changes most"
    cost = 1.8  # more with `batchnorm: joint`, where the look ahead is not used again
    Params = DVCParams

    def build(self) -> None:
        classes = len(self.net.head.weight)
        self.joint = nn.Sequential(nn.Linear(2 * classes, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes))

    def loss(self, batch: Batch, memory: Recalled | None) -> Tensor:
        batches = [b for b in (batch, memory) if b is not None]
        views = self.views(*batches)
        total = views[0].images.new_zeros(())
        for b, view, features in zip(batches, views, self.features(*views)):
            logits = self.net.head(features)
            total = total + F.cross_entropy(logits[:, : self.trained], view.labels)
            total = total + sum(self.consistency(logits[: len(b)], logits[-len(b) :]))
        return total

    def consistency(self, z: Tensor, augmented: Tensor) -> tuple[Tensor, Tensor]:
        """The entropy term and the distance term of two views' logits (N, C)."""
        joint = self.joint(torch.cat([z, augmented], 1))
        single, double, both = (x[:, : self.trained].softmax(1) for x in (z, augmented, joint))
        entropy = (negative_entropy(single) + negative_entropy(double) + negative_entropy(both)) / 3
        distance = ((both - single).abs() + (both - double).abs()).sum() / (2 * z.numel())
        return entropy, self.params.dl * distance

    def rating(self, parameters: dict[str, Tensor], candidates: Recalled) -> Tensor:
        """The L1 norm of each candidate's gradient at the head: of (p - onehot) times the feature."""
        images = self.normalised(self.originals(candidates))
        features, logits = outputs_with(self.net, parameters, images)
        p = logits[:, : self.trained].softmax(1)
        error = 2 * (1 - p.gather(1, candidates.labels[:, None])[:, 0])  # sum_c |p_c - onehot_c|
        return error * features.abs().sum(1)
