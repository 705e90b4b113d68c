"""ResNet18 in two widths, with a cosine or a linear head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pcr_ray.config import map_side

FILTERS = {"reduced_resnet18": 20, "resnet18": 64}


class _Normalise(torch.autograd.Function):
    """BatchNorm in training, each part of a batch by its own statistics; the running ones move part by part.

    The parts' results are written into one tensor: torch.cat of them would cost 4 % of a step on a CPU.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: BatchNorm, weight: Tensor, bias: Tensor, parts: list[int]) -> Tensor:
        out, statistics = torch.empty_like(x), weight.new_empty(len(parts), 2, x.shape[1])
        for mine, result, (mean, scale) in zip(x.split(parts), out.split(parts), statistics):
            out_ = (result, mean, scale)
            torch.native_batch_norm(mine, weight, bias, *norm.moving, True, norm.rate, norm.eps, out=out_)
        ctx.save_for_backward(x, weight, statistics)
        ctx.parts, ctx.eps = parts, norm.eps
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight, statistics = ctx.saved_tensors
        backward, wanted = torch.ops.aten.native_batch_norm_backward, [True, True, True]
        pieces = [
            backward(g, mine, weight, None, None, mean, scale, True, ctx.eps, wanted)
            for g, mine, (mean, scale) in zip(gradient.split(ctx.parts), x.split(ctx.parts), statistics)
        ]
        of_input, (of_weight, *weights), (of_bias, *biases) = zip(*pieces)
        for more in zip(weights, biases):
            torch._foreach_add_([of_weight, of_bias], more)
        return torch.cat(of_input), None, of_weight, of_bias, None


class BatchNorm(nn.BatchNorm2d):
    """Its statistics in training are those of each part of a batch. The backbone counts batches, for all at once."""

    def forward(self, x: Tensor, parts: list[int] | None = None) -> Tensor:
        if self.training and parts and len(parts) > 1:
            if not torch.compiler.is_compiling():
                return cast(Tensor, _Normalise.apply(x, self, self.weight, self.bias, parts))
            return torch.cat([self._normalised(part) for part in x.split(parts)])
        return self._normalised(x)

    @property
    def moving(self) -> tuple[Tensor | None, Tensor | None]:
        """The running statistics, unless they are neither used nor moved."""
        used = self.track_running_stats or not self.training
        return (self.running_mean, self.running_var) if used else (None, None)

    @property
    def rate(self) -> float:
        """How far a batch moves the running statistics."""
        return self.momentum or 0.0

    def _normalised(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, *self.moving, self.weight, self.bias, self.training, self.rate, self.eps)


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = BatchNorm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = BatchNorm(outputs)
        changes = stride != 1 or inputs != outputs
        convolution = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), BatchNorm(outputs)] if changes else []
        self.shortcut = nn.Sequential(*convolution)

    def forward(self, x: Tensor, parts: list[int] | None = None) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x), parts))
        out = self.bn2(self.conv2(out), parts)
        if self.shortcut:
            convolution, norm = self.shortcut
            x = norm(convolution(x), parts)
        return F.relu(out + x)


class ResNet18(nn.Module):
    """3x3 stem without pooling, four stages of two blocks, average pool: of the whole map, or `pool` by `pool` cells.

    Features are 8 * filters, times the number of cells that fit into the map.
    """

    def __init__(self, filters: int, pool: int | None, image_size: int) -> None:
        super().__init__()
        self.pool = pool
        self.dim = 8 * filters * (1 if pool is None else (map_side(image_size) // pool) ** 2)
        self.stem = nn.Sequential(nn.Conv2d(3, filters, 3, 1, 1, bias=False), BatchNorm(filters), nn.ReLU())
        widths = [filters, filters, 2 * filters, 4 * filters, 8 * filters]
        self.stages = nn.Sequential(
            *(
                nn.Sequential(Block(before, after, stride), Block(after, after, 1))
                for before, after, stride in zip(widths, widths[1:], (1, 2, 2, 2))
            )
        )

    def forward(self, x: Tensor, parts: list[int] | None = None) -> Tensor:
        """`parts`, if given, are the lengths of what has BatchNorm statistics of its own in training."""
        if self.training:
            norms = (m for m in self.modules() if isinstance(m, BatchNorm) and m.track_running_stats)
            if counters := [cast(Tensor, norm.num_batches_tracked) for norm in norms]:
                torch._foreach_add_(counters, len(parts or [x]))
        convolution, norm, relu = self.stem
        maps = relu(norm(convolution(x), parts))
        for stage in self.stages:
            for block in cast(nn.Sequential, stage):
                maps = block(maps, parts)
        return maps.mean((2, 3)) if self.pool is None else F.avg_pool2d(maps, self.pool).flatten(1)  # (N, dim)


class CosineHead(nn.Module):
    """gamma * cos(z, w_c): the rows of `weight` are the class proxies."""

    def __init__(self, dim: int, classes: int, gamma: float) -> None:
        super().__init__()
        self.gamma = gamma
        self.weight = nn.Parameter(nn.Linear(dim, classes, bias=False).weight.data)

    def forward(self, z: Tensor) -> Tensor:
        return self.gamma * F.linear(F.normalize(z), F.normalize(self.weight))  # (N, C)

    def between(self, z: Tensor) -> Tensor:
        """gamma * cos of all pairs of rows (N, N)."""
        directions = F.normalize(z)
        return self.gamma * directions @ directions.T


class Network(nn.Module):
    """Backbone and head. `forward` gives features, or logits when asked; `head` turns features into logits."""

    def __init__(
        self, model: str, head: str, classes: int, gamma: float | None, pool: int | None, image_size: int
    ) -> None:
        super().__init__()
        self.bf16 = False  # the backbone in bfloat16
        self.backbone = ResNet18(FILTERS[model], pool, image_size)
        dim = self.backbone.dim
        self.head: CosineHead | nn.Linear
        if head == "cosine":
            assert gamma is not None  # without one a config is not valid
            self.head = CosineHead(dim, classes, gamma)
        else:
            self.head = nn.Linear(dim, classes)

    def compile_backbone(self, backend: str | Callable[..., Any] = "inductor") -> None:
        """For the rest of the process: networks of one kind share what was compiled."""
        import torch._dynamo
        import torch._functorch.config

        # Beyond a limit dynamo gives up, or ends a step that has to be one graph: a worker runs trials of many kinds.
        torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 10_000
        # A-GEM takes two gradients of one pass, which torch refuses where a backward pass may reuse buffers.
        torch._functorch.config.donated_buffer = False
        self.backbone.compile(backend=backend)

    def forward(self, x: Tensor, parts: list[int] | None = None, *, logits: bool = False) -> Tensor:
        if self.bf16:
            with torch.autocast(x.device.type, torch.bfloat16):
                features = self.backbone(x, parts).float()
        else:
            features = self.backbone(x, parts)
        return self.head(features) if logits else features


def build(
    model: str,
    head: str,
    classes: int,
    gamma: float | None,
    seed: int,
    *,
    pool: int | None = None,
    image_size: int = 32,
) -> Network:
    """A freshly initialised network that depends on `seed` alone and leaves the global generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Network(model, head, classes, gamma, pool, image_size).to(memory_format=torch.channels_last)
