"""The replay memory: uint8 images on the learner's device, filled by reservoir sampling.

Which slots are drawn or overwritten is decided on the host from its own generators, so neither
needs an answer from the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pcr_ray import seeds
from pcr_ray.device import send
from pcr_ray.lazy import torch
from pcr_ray.stream import Batch

if TYPE_CHECKING:
    from torch import Tensor

    from pcr_ray.augment import Draw


@dataclass(kw_only=True)
class Recalled(Batch):
    """A batch from memory, with the slots it came from and what was stored beside the images."""

    slots: Tensor
    extras: dict[str, Tensor]

    def part(self, rows: slice, draws: list[Draw]) -> Recalled:
        """Some of it, with the draws for these."""
        labels = None if self.host_labels is None else self.host_labels[rows]
        extras = {name: values[rows] for name, values in self.extras.items()}
        return Recalled(self.images[rows], self.labels[rows], labels, draws, slots=self.slots[rows], extras=extras)


class Memory:
    """`size` slots; `filled` of them hold images; `seen` images were offered so far."""

    def __init__(self, size: int, image_shape: tuple[int, ...], seed: int, device: torch.device) -> None:
        self.size, self.device = size, device
        self.images = torch.zeros((size, *image_shape), dtype=torch.uint8, device=device)
        self.labels = torch.zeros(size, dtype=torch.int64, device=device)
        self.host_labels = np.zeros(size, np.int64)
        self.extras: dict[str, Tensor] = {}
        self.seen = 0
        self.draw_rng = seeds.generator(seed, "memory/draw")
        self.keep_rng = seeds.generator(seed, "memory/keep")

    @property
    def filled(self) -> int:
        return min(self.seen, self.size)

    def sample(self, count: int, *, below: int | None = None) -> Recalled | None:
        """Up to `count` different images at random, of classes below `below` if given; None if there are none."""
        eligible = np.arange(self.filled)
        if below is not None:
            eligible = eligible[self.host_labels[: self.filled] < below]
        chosen = eligible[torch.randperm(len(eligible), generator=self.draw_rng)[:count].numpy()]
        return self.at(chosen) if len(chosen) else None

    def at(self, slots: np.ndarray | Tensor) -> Recalled:
        """The images in these slots; slots chosen on the device leave the host labels unknown (None)."""
        if isinstance(slots, torch.Tensor):
            return self._recalled(slots, None)
        return self._recalled(self._send(slots), self.host_labels[slots])

    def _recalled(self, slots: Tensor, host_labels: np.ndarray | None) -> Recalled:
        extras = {name: values[slots] for name, values in self.extras.items()}
        return Recalled(self.images[slots], self.labels[slots], host_labels, slots=slots, extras=extras)

    def reservoir(self, batch: Batch, **extras: Tensor) -> None:
        """Offer a batch: every image seen so far ends up in memory with equal chance."""
        slots = self.draw_slots(len(batch))
        kept = {slot: row for row, slot in enumerate(slots.tolist()) if slot < self.size}  # the later one wins
        self.seen += len(batch)
        if kept:
            self.write(np.fromiter(kept, int), np.fromiter(kept.values(), int), batch, **extras)

    def draw_slots(self, count: int) -> np.ndarray:
        """Image number n (from 0) goes to slot n while there is room, then to a uniform one of 0..n."""
        numbers = np.arange(self.seen, self.seen + count)
        uniform = torch.rand(count, generator=self.keep_rng, dtype=torch.float64).numpy()
        return np.where(numbers < self.size, numbers, np.floor(uniform * (numbers + 1)).astype(np.int64))

    def write(self, slots: np.ndarray, rows: np.ndarray, batch: Batch, **extras: Tensor) -> None:
        """Put the batch's images `rows` into `slots` (no slot twice)."""
        assert batch.host_labels is not None
        self.host_labels[slots] = batch.host_labels[rows]
        to, source = self._send(slots), self._send(rows)
        self.images[to] = batch.images[source]
        self.labels[to] = batch.labels[source]
        for name, values in extras.items():
            if name not in self.extras:
                self.extras[name] = torch.zeros((self.size, *values.shape[1:]), dtype=values.dtype, device=self.device)
            self.extras[name][to] = values.detach()[source]

    def state_dict(self) -> dict[str, Any]:
        """A snapshot: copies, as a slice would go on changing and be saved with the whole memory behind it."""
        return {
            "images": self.images[: self.filled].clone(),
            "labels": self.labels[: self.filled].clone(),
            "extras": {name: values[: self.filled].clone() for name, values in self.extras.items()},
            "seen": self.seen,
            "draw_rng": self.draw_rng.get_state(),
            "keep_rng": self.keep_rng.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]
        self.images[: self.filled] = state["images"].to(self.device)
        self.labels[: self.filled] = state["labels"].to(self.device)
        self.host_labels[: self.filled] = state["labels"].cpu().numpy()
        self.extras = {}
        for name, values in state["extras"].items():
            self.extras[name] = torch.zeros((self.size, *values.shape[1:]), dtype=values.dtype, device=self.device)
            self.extras[name][: self.filled] = values.to(self.device)
        self.draw_rng.set_state(state["draw_rng"].cpu())
        self.keep_rng.set_state(state["keep_rng"].cpu())

    def _send(self, indices: np.ndarray) -> Tensor:
        return send(torch.from_numpy(np.ascontiguousarray(indices)), self.device)
