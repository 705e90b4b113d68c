"""The interface that all methods share: recall, loss, learn, remember, end of task, inference.

A step is recall -> learn (loss, backward, optimiser) -> remember. A method overrides the part in which
it differs and inherits the rest; nothing outside its file asks for its name.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict

from pcr_ray import seeds
from pcr_ray.augment import PIPELINES, Draw
from pcr_ray.config import TrialConfig
from pcr_ray.lazy import F, nn, torch
from pcr_ray.memory import Memory, Recalled
from pcr_ray.methods._compiled import compiled
from pcr_ray.registry import Registry
from pcr_ray.stream import Batch, Task

if TYPE_CHECKING:
    from torch import Tensor

    from pcr_ray.models import Network

    Module = nn.Module
else:
    Module = object


B = TypeVar("B", bound=Batch | None)


class Params(BaseModel):
    """A method's own parameters; each method with any subclasses it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    by_dataset: ClassVar[dict[str, dict[str, Any]]] = {}  # defaults that are others on some datasets
    added: ClassVar[dict[str, Any]] = {}  # parameters added later: the value that means "as before", see identity.py


@dataclass
class Views:
    """What the network sees of a batch: float images (n, 3, H, W), originals first, and their labels."""

    images: Tensor
    labels: Tensor


WITHOUT_MEMORY = {
    "buffer": 0,
    "replay_batch_size": 0,
    "replay_per_class": None,
    "replay_current": True,
    "batchnorm": "joint",
}


class Method(Module):
    """Holds the network and whatever else is learned; the learner calls `step` and `end_task`.

    Declared without torch, so that lists, plans and checks need none; `create` makes it the torch module that it is.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    idea: ClassVar[str]  # in a line, for lists and docs
    Params: ClassVar[type[Params]] = Params
    cost: ClassVar[float] = 1.0  # a step's time over that of ER with as many images, for forecasts; see `make bench`
    uses_memory: ClassVar[bool] = True
    inert: ClassVar[dict[str, Any]] = {}  # fields of a trial that change nothing here, and what they are recorded as
    iid: ClassVar[bool] = False  # the whole stream shuffled, instead of task by task
    head: ClassVar[str] = "linear"  # what `head: auto` means
    heads: ClassVar[tuple[str, ...]] = ("cosine", "linear")
    nearest_mean: ClassVar[bool] = False  # its own classifier is the nearest class mean, not the head
    batchnorm: ClassVar[str] = "separate"  # what `batchnorm: auto` means
    syncs: ClassVar[str] = ""  # why `remember` has to wait for the device; empty: no part of a step does
    uncompiled: ClassVar[str] = ""  # why `--compile` compiles the network alone; empty: `loss`, its backward with it
    mean: Tensor  # (3, 1, 1)
    std: Tensor  # (3, 1, 1)
    proxy_gradients: Tensor  # (C,), summed over the task's steps

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.uses_memory:
            cls.inert = WITHOUT_MEMORY | cls.inert

    @classmethod
    def create(cls, config: TrialConfig, net: Network, memory: Memory, mean: list[float], std: list[float]) -> Method:
        return _module(cls)(config, net, memory, mean, std)

    def __init__(self, config: TrialConfig, net: Network, memory: Memory, mean: list[float], std: list[float]) -> None:
        super().__init__()
        self.config, self.net, self.memory = config, net, memory
        self.params: Any = self.Params.model_validate(config.params)
        self.augmentation = PIPELINES[config.augment]
        self.stream_rng = seeds.generator(config.seed, "augment/stream")
        self.memory_rng = seeds.generator(config.seed, "augment/memory")
        self.task = Task(0, 0, 0)
        self.optimiser: torch.optim.Optimizer
        self._loss: Callable[[Method, Batch, Recalled | None], Tensor] | None = None  # compiled
        self.register_buffer("mean", torch.tensor(mean)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(std)[:, None, None], persistent=False)
        self.register_buffer("proxy_gradients", torch.zeros(len(net.head.weight)))
        self.build()

    # What a method may override.

    def build(self) -> None:
        """Create further modules (a projector, a teacher); called once, under the trial's own seed."""

    def begin_task(self, task: Task) -> None:
        self.task = task

    def recall(self, batch: Batch) -> Recalled | None:
        """What to replay beside this batch; `learn` on the same batch comes next."""
        return self.draw(self.replay_count) if self.uses_memory else None

    def loss(self, batch: Batch, memory: Recalled | None) -> Tensor:
        raise NotImplementedError(f"method '{self.name}' defines no loss")

    def learn(self, batch: Batch, memory: Recalled | None) -> Tensor:
        """One update of the parameters; the loss, still on the device."""
        self.optimiser.zero_grad()
        loss = self.taken_loss(batch, memory)
        loss.backward()
        self.descend()
        return loss.detach()

    def remember(self, batch: Batch) -> None:
        if self.uses_memory:
            self.memory.reservoir(batch)

    def end_task(self) -> None:
        """After the last step of a task, before it is evaluated."""

    def logits(self, features: Tensor) -> Tensor:
        """Logits at inference, all classes."""
        return self.net.head(features)

    def predict(self, features: Tensor, means: Tensor | None) -> Tensor:
        """Classes by the method's own classifier, among those seen; `means` are the class means of `class_means`."""
        return self.logits(features)[:, : self.task.seen].argmax(1)

    def extra_state(self) -> dict[str, Any]:
        """What a method keeps beside its parameters and buffers, for checkpoints."""
        return {}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """The counterpart of `extra_state`."""

    # What methods use.

    @property
    def replay_count(self) -> int:
        """How many images to replay per step."""
        count, per_class = self.config.replay_batch_size, self.config.replay_per_class
        return count if per_class is None else min(count, per_class * self.task.seen)

    def draw(self, count: int) -> Recalled | None:
        """Up to so many random images of the memory, of earlier tasks only where the trial says so."""
        return self.memory.sample(count, below=None if self.config.replay_current else self.task.old)

    def step(self, batch: Batch) -> Tensor:
        loss = self.learn(batch, self.recall(batch))
        self.remember(batch)
        return loss

    def descend(self) -> None:
        """Apply the gradients; the one place that sees them all."""
        gradient = self.net.head.weight.grad  # None in methods that leave the head untrained
        if self.config.proxy_gradients and gradient is not None:
            self.proxy_gradients += gradient.norm(dim=1)
        self.optimiser.step()

    def pixels(self, images: Tensor) -> Tensor:
        """Stored uint8 (N, H, W, 3) to float (N, 3, H, W) in [0, 1], channels last in memory."""
        return images.permute(0, 3, 1, 2).to(torch.float32).mul_(1 / 255)

    def normalised(self, images: Tensor) -> Tensor:
        """Images in [0, 1] as the network sees them."""
        if self.config.normalise:
            return (images - self.mean) / self.std
        return 2 * images - 1 if self.config.pixels == "signed" else images

    def originals(self, batch: Batch) -> Tensor:
        """A batch's un-augmented images as floats (N, 3, H, W) in [0, 1]."""
        return self.pixels(batch.images)

    @property
    def trained(self) -> int:
        """How many classes, the first ones, compete in the cross-entropies of training."""
        return self.task.seen if self.config.softmax == "seen" else len(self.net.head.weight)

    def taken_loss(self, batch: Batch, memory: Recalled | None) -> Tensor:
        """`loss` as a step takes it: what is random is decided first, so that the rest can be compiled."""
        return (self._loss or type(self).loss)(self, self.decided(batch), self.decided(memory))

    def compile_loss(self, backend: str | Callable[..., Any] = "inductor") -> None:
        """Views, forward, loss and their backward pass behind one boundary, and the backbone for what remains."""
        self.net.compile_backbone(backend)
        if not self.uncompiled:
            # CUDA graphs, where a step has one loss: their next run overwrites what an earlier one returned.
            self._loss = compiled(backend, "reduce-overhead" if self.one_loss() and self.mean.is_cuda else None)

    @classmethod
    def one_loss(cls) -> bool:
        """Whether a step is one loss and one backward pass."""
        return cls.learn is Method.learn

    def draws(self, batch: Batch) -> list[Draw]:
        """What is random about a batch's views, for each time that `loss` asks for them; others are drawn then."""
        return [] if self.augmentation is None or self.config.views == "original" else [self.drawn(batch)]

    def drawn(self, batch: Batch) -> Draw:
        """For one time, from the generator of its kind."""
        assert self.augmentation is not None
        height, width = batch.images.shape[1:3]
        rng = self.memory_rng if isinstance(batch, Recalled) else self.stream_rng
        return self.augmentation.draw(len(batch), (height, width), rng)

    def decided(self, batch: B) -> B:
        """A batch with its draws: what is left to do with it is tensors alone."""
        if batch is not None:
            batch = copy.copy(batch)  # its draws hold for one loss
            batch.draws = self.draws(batch)
        return batch

    def views(self, *batches: Batch | None) -> list[Views]:
        """Originals and augmented copies of each batch that there is, or one of them, as the trial says."""
        given = [b for b in batches if b is not None]
        originals = [self.originals(b) for b in given]
        if self.augmentation is None or self.config.views == "original":
            return [Views(self.normalised(images), b.labels) for images, b in zip(originals, given)]
        draws = [b.draws.pop(0) if b.draws else self.drawn(b) for b in given]
        together = torch.cat(originals) if len(given) > 1 else originals[0]
        augmented = self.augmentation.apply(together, draws).split([len(b) for b in given])
        if self.config.views == "augmented":
            return [Views(self.normalised(images), b.labels) for images, b in zip(augmented, given)]
        pairs = self.normalised(torch.cat([images for pair in zip(originals, augmented) for images in pair]))
        labels = [torch.cat([b.labels, b.labels]) for b in given]
        return [Views(*pair) for pair in zip(pairs.split([len(x) for x in labels]), labels)]

    def features(self, *views: Views) -> list[Tensor]:
        """Features of each. What passes the network together shares BatchNorm's statistics: the trial says what."""
        if self.config.batchnorm == "views":
            sides = zip(*(v.images.chunk(2) for v in views))  # all originals, then all augmented copies
            halves = [len(v.labels) // 2 for v in views]
            passed = self.net(torch.cat([x for side in sides for x in side]), [sum(halves)] * 2).split(halves * 2)
            return [torch.cat(both) for both in zip(passed[: len(views)], passed[len(views) :])]
        counts = [len(v.labels) for v in views]
        if len(views) == 1:
            return [self.net(views[0].images)]
        parts = counts if self.config.batchnorm == "separate" else None
        return list(self.net(torch.cat([v.images for v in views]), parts).split(counts))

    def embed(self, images: Tensor, batch_size: int = 256) -> Tensor:
        """Features of stored images in evaluation mode, un-augmented."""
        with torch.no_grad(), self.evaluating():
            return torch.cat([self.net(self.normalised(self.pixels(part))) for part in images.split(batch_size)])

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """In evaluation mode: BatchNorm's running statistics, which stay as they are."""
        training = self.training
        self.eval()
        try:
            yield
        finally:
            self.train(training)

    def class_means(self) -> Tensor | None:
        """Unit-length mean feature of each seen class in memory (seen, dim), zero without exemplars."""
        filled = self.memory.filled
        if not filled:
            return None
        return mean_per_class(self.embed(self.memory.images[:filled]), self.memory.labels[:filled], self.task.seen)


_modules: dict[type[Method], type[Method]] = {}


def _module(cls: type[Method]) -> type[Method]:
    """The torch module. One class for all trials: what was compiled for one of them serves the next."""
    if cls not in _modules:
        _modules[cls] = type(cls.__name__, (cls, nn.Module), {})
    return _modules[cls]


def mean_per_class(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Normalise, average per class, normalise again; rows of absent classes are zero."""
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, F.normalize(features))
    return F.normalize(sums)  # the count cancels


def nearest_mean(features: Tensor, means: Tensor) -> Tensor:
    """The class with the nearest mean by cosine; a class without exemplars is never chosen."""
    similarity = F.normalize(features) @ means.T  # (N, C)
    absent = (means == 0).all(1)
    return similarity.masked_fill(absent, -torch.inf).argmax(1)


METHODS: Registry[Method] = Registry("method", "pcr_ray.methods")
