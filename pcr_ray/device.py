"""Where a trial computes, how precisely, and how what the host decides gets there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pcr_ray.errors import InputError
from pcr_ray.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def pick_device(name: str) -> torch.device:
    """auto, cpu, cuda or cuda:N, if it is there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    known = re.fullmatch(r"cpu|cuda(?::(\d+))?", name)
    if not known:
        raise InputError(f"device: '{name}' is not one of auto, cpu, cuda, cuda:N")
    gpus = torch.cuda.device_count()
    if name != "cpu" and int(known[1] or 0) >= gpus:
        raise InputError(f"device: '{name}' asked for, but torch sees {gpus or 'no'} GPU; use --device auto or cpu")
    return torch.device(name)


def check_precision(device: torch.device, precision: str) -> None:
    """bfloat16 is refused on a CPU too, where torch has it: on some, convolutions in it end the process (SIGILL)."""
    if precision == "float32":
        return
    if device.type == "cpu":
        raise InputError(f"precision: '{precision}' needs a GPU, and this trial runs on the CPU; use float32")
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        name = torch.cuda.get_device_name(device)
        raise InputError(f"precision: '{precision}' needs a GPU from Ampere on, and this is {name}; use float32")


@contextmanager
def rounding(precision: str) -> Iterator[None]:
    """TF32 for products of matrices and convolutions on a GPU, or not; as it was afterwards.

    torch's own defaults are TF32 in convolutions and float32 in products of matrices. The two switches are the older
    ones: torch's newer `fp32_precision` makes reading these an error, and its code generator reads them.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def send(values: Tensor, device: torch.device) -> Tensor:
    """To the device, without waiting: from pinned memory a GPU fetches it while the host goes on."""
    pinned = values.pin_memory() if device.type == "cuda" else values
    return pinned.to(device, non_blocking=True)
