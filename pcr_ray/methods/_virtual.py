"""A look one step ahead, for methods that choose or edit replay by its effect (MIR, GMED, ER-DVC)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from pcr_ray.lazy import nn, torch
from pcr_ray.memory import Recalled
from pcr_ray.methods.er import ER
from pcr_ray.stream import Batch

if TYPE_CHECKING:
    from torch import Tensor

    from pcr_ray.models import Network

    Gradients = list[tuple[nn.Parameter, Tensor | None]]


@contextmanager
def frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Batch statistics are used as in training, and the running ones stay as they are."""
    norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm2d)]
    momenta = [m.momentum for m in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum


class LookingAhead(ER):
    """ER that needs the stream's gradient before it replays, and takes it only once per step where it can.

    With `batchnorm: separate` the loss is a sum over stream and memory, so what the look ahead found for the stream is
    half of the step. With the others the two share their statistics and the step starts afresh.
    """

    _found: tuple[Batch, Tensor, Gradients] | None = None  # a batch, its loss, its gradients

    def look_ahead(self, batch: Batch) -> dict[str, Tensor]:
        """The network's parameters after one plain SGD step on the stream alone, on the views of its real step."""
        again = self.config.batchnorm != "separate"
        rng = self.stream_rng.get_state()
        with frozen_statistics(self.net) if again else nullcontext():
            loss = self.taken_loss(batch, None)
        trained = [p for p in self.parameters() if p.requires_grad]
        gradients: Gradients = list(zip(trained, torch.autograd.grad(loss, trained, allow_unused=True)))
        if again:
            self.stream_rng.set_state(rng)
        else:
            self._found = batch, loss.detach(), gradients
        step = {id(p): self.config.lr * g for p, g in gradients if g is not None}
        return {n: p.detach() - step.get(id(p), 0) for n, p in self.net.named_parameters()}

    def learn(self, batch: Batch, memory: Recalled | None) -> Tensor:
        found, self._found = self._found, None
        if found is None or found[0] is not batch or memory is None:
            return super().learn(batch, memory)
        _, stream_loss, gradients = found
        memory_loss = self.taken_loss(memory, None)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        memory_loss.backward()  # adds to it
        self.descend()
        return stream_loss + memory_loss.detach()


def logits_with(net: Network, parameters: dict[str, Tensor], images: Tensor) -> Tensor:
    """Logits of the network with other parameters."""
    return torch.func.functional_call(net, parameters, (images,), {"logits": True})


def outputs_with(net: Network, parameters: dict[str, Tensor], images: Tensor) -> tuple[Tensor, Tensor]:
    """Features and logits of the network with other parameters."""
    features = torch.func.functional_call(net, parameters, (images,))
    head = {name.removeprefix("head."): p for name, p in parameters.items() if name.startswith("head.")}
    return features, torch.func.functional_call(net.head, head, (features,))
