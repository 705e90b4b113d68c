"""OCM, online continual learning by mutual information maximisation (Guo et al., ICML 2022).

Every image is shown in 16 rotations, each (class, rotation) a label of its own for the contrastive terms.
u = unit-length projection d -> 128 of a feature, v = 128 successive dimensions of the unit-length feature from a
random start. For a batch of rotated images and, behind them, their augmented copies:
    S_ij = (u_i . v_j + u_i . u_j) / tau,   l_ij = -log(p_ij + 1e-8),   p_i = softmax_j(S_ij).
L_n   (stream, p_ii = 0): mean_i of l_i(its other copy) + 2 * mean of l_ij over all j with the label of i
L_uni (memory): mean_i of the mean of l_ij over all j with the label of i
L_pre (memory, rotations without augmentation): as L_uni, with S_ij = u_i . t_j / tau, t = the teacher's u
The teacher is the model as it was at the end of the previous task.
First task:  L = CE(augmented stream) + L_n, nothing is replayed.
Later tasks: L = CE(augmented memory) + L_n + L_uni + L_pre + MSE(logits of the old classes, the teacher's).
On CIFAR10, as in the authors' code for it, S of L_n and L_uni is halved from the second task on (`halve`).

Differences from the authors' code (preset `ocm` sets what fields can set):
1. Cross-entropy runs over the classes seen so far; the authors' runs over the whole head (`softmax: all`).
2. The start is one of the d - 128 + 1 possible ones; the authors' is never the last.
3. Grey is made before normalisation, the authors' after it; crop and flip commute with it.
4. It runs in float32, the authors' code in mixed precision.
5. Under preset `paper` its augmentation is that of all methods; its own is `augment: ocm`, as in preset `ocm`.
In both: i itself counts among those with its label in L_n, where it adds a constant; the teacher normalises by the
statistics of its batch; teacher and model see different augmented copies in the MSE; `views` does not apply; rotated
images move BatchNorm's running statistics, with which upright ones are classified. After the first task the head learns
new classes from memory only: with `replay_current: false` it learns them a task late.

With the linear head, the MSE needs a smaller step than the other methods: SGD at lr 0.1 diverged within 9 steps of
the second task on digits and on a part of CIFAR10. Preset `ocm` has the published Adam at lr 0.001.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

from pydantic import Field

from pcr_ray import seeds
from pcr_ray.augment import Draw
from pcr_ray.lazy import F, nn, torch
from pcr_ray.memory import Recalled
from pcr_ray.methods._base import METHODS, Method, Params, Views
from pcr_ray.stream import Batch

if TYPE_CHECKING:
    from torch import Tensor

PROJECTION = 128
ROTATIONS = 16
FLOOR = 1e-8  # added to probabilities: pairs that are further apart pull no more


class OCMParams(Params):
    by_dataset = {"cifar10": {"halve": True}}
    added = {"halve": False}

    temperature: float = Field(0.07, gt=0, allow_inf_nan=False, description="tau of the contrastive terms")
    halve: bool = Field(False, description="halve the similarities S of L_n and L_uni from the second task on")


def rotations(images: Tensor) -> Tensor:
    """(16 N, ...): {none, left half, both halves, right half turned by 180 degrees} x quarter turns of the whole."""
    left, right = images.tensor_split(2, dim=3)
    turned_left, turned_right = left.flip(2, 3), right.flip(2, 3)
    halves = [(left, right), (turned_left, right), (turned_left, turned_right), (left, turned_right)]
    inner = torch.cat([torch.cat(pair, dim=3) for pair in halves])
    return torch.cat([inner.rot90(quarters, (2, 3)) for quarters in range(4)])


def similarity(features: Tensor, projections: Tensor, start: int) -> Tensor:
    """u_i . v_j + u_i . u_j of unit-length projections (n, 128) and raw features (n, d)."""
    part = F.normalize(features)[:, start : start + projections.shape[1]]
    return projections @ (part + projections).T


def log_probabilities(logits: Tensor, *, without_self: bool = False) -> Tensor:
    """log(p + 1e-8) of each row's softmax."""
    if without_self:
        itself = torch.eye(len(logits), dtype=torch.bool, device=logits.device)
        logits = logits.masked_fill(itself, torch.finfo(logits.dtype).min)
    return torch.logaddexp(logits.log_softmax(1), logits.new_full((), math.log(FLOOR)))


def same_label_loss(log_p: Tensor, labels: Tensor) -> Tensor:
    """Rows and columns have the same labels: the mean over a row's columns of its label, then over the rows."""
    same = labels[:, None] == labels
    return -(torch.where(same, log_p, 0).sum(1) / same.sum(1)).mean()


def stream_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """L_n of S (2n, 2n): row i and row i + n are copies of each other."""
    log_p = log_probabilities(logits, without_self=True)
    half = len(logits) // 2
    copies = torch.cat([log_p.diagonal(half), log_p.diagonal(-half)])
    return 2 * same_label_loss(log_p, labels) - copies.mean()


@METHODS.register("ocm")
class OCM(Method):
    title = "OCM"
    idea = "contrastive terms over 16 rotations that keep whole features, and those of the previous model"
    cost = 18.4
    uncompiled = "it draws views while it computes, for the teacher too"
    Params = OCMParams
    batchnorm = "joint"
    inert = {"views": "both"}

    def build(self) -> None:
        self.projector = nn.Linear(self.net.backbone.dim, PROJECTION)
        self.rng = seeds.generator(self.config.seed, "method")
        self.teacher = nn.ModuleList([copy.deepcopy(self.net), copy.deepcopy(self.projector)]).requires_grad_(False)
        for module in self.teacher.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.track_running_stats = False  # in training mode: the batch's statistics, and no update

    def end_task(self) -> None:
        for teacher, model in zip(self.teacher, (self.net, self.projector)):
            teacher.load_state_dict(model.state_dict())

    def recall(self, batch: Batch) -> Recalled | None:
        return super().recall(batch) if self.task.old else None

    def loss(self, batch: Batch, memory: Recalled | None) -> Tensor:
        """Without anything to replay, a step of a later task is like one of the first."""
        tau = self.params.temperature
        halved = 0.5 if self.params.halve and self.task.old else 1.0
        pairs = [self.pairs(b) for b in (batch, memory) if b is not None]
        features = self.features(*pairs)
        projections = [F.normalize(self.projector(f)) for f in features]
        starts = torch.randint(features[0].shape[1] - PROJECTION + 1, (2,), generator=self.rng).tolist()
        logits = [halved * similarity(f, p, start) / tau for f, p, start in zip(features, projections, starts)]
        total = stream_loss(logits[0], pairs[0].labels) + self.classify(batch if memory is None else memory)
        if memory is None:
            return total
        half = len(pairs[1].labels) // 2
        with torch.no_grad():
            net, projector = self.teacher
            before = F.normalize(projector(net(pairs[1].images[:half])))
        previous = log_probabilities(projections[1][:half] @ before.T / tau)
        total = total + same_label_loss(log_probabilities(logits[1]), pairs[1].labels)
        return total + same_label_loss(previous, pairs[1].labels[:half])

    def classify(self, batch: Batch) -> Tensor:
        """Cross-entropy of the augmented images, and for a replayed batch the squared error of old logits."""
        logits = self.net(self.augmented(self.pixels(batch.images), batch), logits=True)
        loss = F.cross_entropy(logits[:, : self.trained], batch.labels)
        if not isinstance(batch, Recalled):
            return loss
        with torch.no_grad():
            before = self.teacher[0](self.augmented(self.pixels(batch.images), batch), logits=True)
        return loss + F.mse_loss(logits[:, : self.task.old], before[:, : self.task.old])

    def pairs(self, batch: Batch) -> Views:
        """All rotations and, behind them, their augmented copies; the labels tell rotations apart."""
        rotated = rotations(self.pixels(batch.images))
        offsets = len(self.net.head.weight) * torch.arange(ROTATIONS, device=rotated.device)
        labels = (batch.labels + offsets[:, None]).flatten()
        images = torch.cat([self.normalised(rotated), self.augmented(rotated, batch)])
        return Views(images, torch.cat([labels, labels]))

    def draws(self, batch: Batch) -> list[Draw]:
        return []  # drawn by `augmented`, each time that images are shown

    def augmented(self, images: Tensor, batch: Batch) -> Tensor:
        """Augmented and normalised, by the generator of the batch's kind."""
        rng = self.memory_rng if isinstance(batch, Recalled) else self.stream_rng
        return self.normalised(images if self.augmentation is None else self.augmentation(images, rng))

    def extra_state(self) -> dict[str, Any]:
        return {"rng": self.rng.get_state()}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        self.rng.set_state(state["rng"].cpu())
