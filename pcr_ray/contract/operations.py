"""How much a step asks of the device: operations that compute something there, counted on torch's meta device.

On a GPU a step of small networks is bound by them, as each is launched by the host. Views and allocations launch
nothing; what is decided on the host, such as crops and which slots are drawn, never reaches the device.
"""

from __future__ import annotations

import functools
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from pcr_ray.contract.hostsync import device_learner
from pcr_ray.methods import Method

NOTHING = {"empty", "empty_like", "new_empty", "empty_strided", "detach", "_unsafe_view"}


class Operations(TorchDispatchMode):
    """Counts by name what runs on a device, 'meta' standing for it."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()
        self.flops = 0  # of convolutions and products of matrices, on any device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        tensors = (x for x in tree_leaves((args, kwargs, out)) if isinstance(x, torch.Tensor))
        if not func.is_view and name not in NOTHING and any(t.is_meta for t in tensors):
            self.count[name] += 1
        if flops := flop_registry.get(func.overloadpacket):
            self.flops += flops(*args, **(kwargs or {}), out_val=out)
        return out


def of_a_step(root: Path, **raw: Any) -> Counter[str]:
    """Of one step with a full batch, replay from a full memory and replacement in it; fields of a trial in `raw`.

    A method that has to wait for the device when it stores a batch is counted with the reservoir instead.
    """
    learner = device_learner(root, **raw)
    method = learner.method
    if method.syncs:
        method.remember = functools.partial(Method.remember, method)  # type: ignore[method-assign]
    method.begin_task(learner.stream.tasks[0])
    method.train()
    batches = learner.stream.batches(0)
    for batch in islice(batches, 3):
        method.step(batch)
    with Operations() as operations:
        method.step(next(batches))
    return operations.count
