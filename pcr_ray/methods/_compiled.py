"""`--compile`: a method's views, forward pass and loss, and with them their backward pass, as one compiled function.

One boundary without a graph break. What changes from step to step is data or a size that is variable from the
beginning, so that a trial traces its first step, without memory, and its second, with memory, and no other.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pcr_ray.lazy import torch
from pcr_ray.memory import Recalled
from pcr_ray.stream import Batch, Task

if TYPE_CHECKING:
    from torch import Tensor

    from pcr_ray.methods._base import Method


class Sizes:
    """A task for compiled code: its numbers of classes are sizes of a tensor, which can be variable.

    From 2 on, as torch compiles anew for sizes 0 and 1. `seen` is a size of which nothing is assumed (unbacked), as
    torch would compile anew for a slice of all classes; on a GPU it is not, for fear of losing CUDA graphs.
    """

    def __init__(self, task: Task, device: torch.device) -> None:
        self.index = task.index
        self.sizes = torch.empty(0, task.old + 2, task.seen + 2, device=device)
        torch._dynamo.maybe_mark_dynamic(self.sizes, 1)
        mark = torch._dynamo.maybe_mark_dynamic if device.type == "cuda" else torch._dynamo.decorators.mark_unbacked
        mark(self.sizes, 2)

    @property
    def old(self) -> int:
        return self.sizes.shape[1] - 2

    @property
    def seen(self) -> int:
        return self.sizes.shape[2] - 2


def _traced(method: Method, batch: Batch, memory: Recalled | None, task: Task) -> Tensor:
    method.task = task  # sizes of what hangs on a module would be constants
    return method.loss(batch, memory)


@functools.cache
def compiled(backend: str | Callable[..., Any], mode: str | None) -> Callable[[Method, Batch, Recalled | None], Tensor]:
    boundary = torch.compile(_traced, fullgraph=True, backend=backend, mode=mode)

    def loss(method: Method, batch: Batch, memory: Recalled | None) -> Tensor:
        task, device = method.task, batch.images.device
        sizes: Any = Sizes(task, device)
        if mode == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        try:
            return boundary(method, _ready(batch, device), _ready(memory, device), sizes)
        finally:
            method.task = task

    return loss


def _ready(batch: Batch | None, device: torch.device) -> Any:
    """A batch for compiled code: its draws on the device, its length variable."""
    if batch is None:
        return None
    batch = copy.copy(batch)
    batch.draws = [draw.sent(device) for draw in batch.draws]
    batch.labels = batch.labels.clone()  # a slice: where in the task's labels it begins would be a size too
    if len(batch) > 1:  # 1 cannot be variable
        for tensor in (batch.images, batch.labels, *getattr(batch, "extras", {}).values()):
            torch._dynamo.mark_dynamic(tensor, 0)
        for draw in batch.draws:
            torch._dynamo.mark_dynamic(draw.values, 1)
    return batch
