"""Order-free randomness: one generator per (seed, purpose).

All draws are made by CPU generators and sent to the device, so a seed gives the same stream,
augmentation and memory draws on a CPU and on a GPU, in any trial order, on any worker.
"""

from __future__ import annotations

import hashlib

from pcr_ray.lazy import torch


def derive(seed: int, purpose: str) -> int:
    """A 63-bit seed that depends on both, and on nothing else."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def generator(seed: int, purpose: str) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(derive(seed, purpose))
