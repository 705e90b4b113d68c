"""ResNet18 in two widths, with a cosine or a linear head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pcr_ray.config import map_side

FILTERS = {"reduced_resnet18": 20, "resnet18": 64}


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet18(nn.Module):
    """3x3 stem without pooling, four stages of two blocks, average pool: of the whole map, or `pool` by `pool` cells.

    Features are 8 * filters, times the number of cells that fit into the map.
    """

    def __init__(self, filters: int, pool: int | None, image_size: int) -> None:
        super().__init__()
        self.pool = pool
        self.dim = 8 * filters * (1 if pool is None else (map_side(image_size) // pool) ** 2)
        self.stem = nn.Sequential(nn.Conv2d(3, filters, 3, 1, 1, bias=False), nn.BatchNorm2d(filters), nn.ReLU())
        widths = [filters, filters, 2 * filters, 4 * filters, 8 * filters]
        self.stages = nn.Sequential(
            *(
                nn.Sequential(Block(before, after, stride), Block(after, after, 1))
                for before, after, stride in zip(widths, widths[1:], (1, 2, 2, 2))
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        maps = self.stages(self.stem(x))
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

        # Enough for a worker that runs trial after trial, with other batches and modes; beyond it dynamo gives up.
        torch._dynamo.config.recompile_limit = 64
        self.backbone.compile(backend=backend)

    def forward(self, x: Tensor, *, logits: bool = False) -> Tensor:
        features = self.backbone(x)
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
