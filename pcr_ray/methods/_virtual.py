"""A look one step ahead, for methods that choose or edit replay by its effect (MIR, GMED, ER-DVC)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pcr_ray.methods._base import Method
from pcr_ray.models import Network
from pcr_ray.stream import Batch


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


def after_step(net: Network, loss: Tensor, lr: float) -> dict[str, Tensor]:
    """The network's parameters after one plain SGD step on `loss`, without taking it."""
    names, parameters = zip(*net.named_parameters())
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {n: p.detach() if g is None else p.detach() - lr * g for n, p, g in zip(names, parameters, gradients)}


def look_ahead(method: Method, batch: Batch) -> dict[str, Tensor]:
    """The network's parameters after one SGD step on the stream batch alone, on the views its real step will see."""
    views = method.stream_rng.get_state()
    with frozen_statistics(method.net):
        parameters = after_step(method.net, method.loss(batch, None), method.config.lr)
    method.stream_rng.set_state(views)
    return parameters


def logits_with(net: Network, parameters: dict[str, Tensor], images: Tensor) -> Tensor:
    """Logits of the network with other parameters."""
    return functional_call(net, parameters, (images,), {"logits": True})


def outputs_with(net: Network, parameters: dict[str, Tensor], images: Tensor) -> tuple[Tensor, Tensor]:
    """Features and logits of the network with other parameters."""
    features = functional_call(net, parameters, (images,))
    head = {name.removeprefix("head."): p for name, p in parameters.items() if name.startswith("head.")}
    return features, functional_call(net.head, head, (features,))
