"""How many trials share a GPU: from the memory that the largest trial needs and what the smallest GPU has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pcr_ray.config import TrialConfig
from pcr_ray.datasets import DATASETS
from pcr_ray.execution import forecast
from pcr_ray.methods import METHODS
from pcr_ray.study.schema import GPU_SHARE, Resources

MIB = 2**20
CONTEXT = 700 * MIB  # of a process: CUDA's context, kernels and cuDNN's work space
FRAGMENTS = 1.3  # the allocator's blocks over what is in them
USABLE = 0.92  # of a GPU: its display, its driver and others' processes have the rest
MOST = 8  # trials per GPU: they share its time too
STAGES = (1, 2, 4, 8)  # of a ResNet18: so many times the filters, on sides so many times smaller
KEPT = 10  # maps per stage for the backward pass: two blocks of two convolutions, two normalisations and a sum
AT_ONCE = 4  # times the pass of a plain step that a method holds at the same time; GSS's further ones come in turn
UNKNOWN_IMAGES = 60_000  # of a folder that was not read yet: as many as CIFAR has


def need(trial: TrialConfig) -> float:
    """Bytes that a trial takes on a GPU: its process, all images, the memory, the network, the maps of a step."""
    from pcr_ray.models import FILTERS

    side, filters = forecast.side(trial), FILTERS[trial.model]
    dataset = DATASETS.get(trial.dataset)
    images = (dataset.train_images + dataset.test_images) or UNKNOWN_IMAGES
    stored = 3 * side**2 * (images + trial.buffer)  # uint8
    weights = 4 * 2730 * filters**2  # 1.1 million of the reduced network (20 filters), 11.2 of the full one (64)
    copies = 4 if trial.optimiser == "adam" else 3  # the gradient, and what a method keeps beside it
    views = (2 if trial.views == "both" else 1) * min(AT_ONCE, METHODS.get(trial.method).cost)
    step = views * (trial.batch_size + trial.replay_batch_size) * kept(filters, side)
    return CONTEXT + FRAGMENTS * (stored + weights * copies + step)


def kept(filters: int, side: int) -> float:
    """Bytes per image that a forward pass keeps for the backward one."""
    return 4 * KEPT * sum(filters * factor * (side / factor) ** 2 for factor in STAGES)


def share(trials: Iterable[TrialConfig], size: float | None) -> float:
    """Of a GPU of `size` bytes, per trial; Ray counts in 1/10,000. Where the size is not known, a quarter."""
    largest = max(map(need, trials), default=0.0)
    if not size or not largest:
        return GPU_SHARE
    fit = max(1, min(MOST, int(USABLE * size / largest)))
    return int(10_000 / fit) / 10_000


def refined(wanted: Resources, settled: Resources, trials: Iterable[TrialConfig]) -> Resources:
    """`settled`, where `gpu: auto` was `wanted`, with the share that these trials need on the GPUs that are there."""
    import ray

    if wanted.gpu is not None or not settled.gpu:
        return settled
    return settled.model_copy(update={"gpu": share(trials, smallest(ray.nodes()))})


def smallest(nodes: list[dict[str, Any]]) -> float | None:
    """Bytes of the smallest GPU of a cluster's nodes, as they say themselves; None where one does not."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(num_cpus=0, num_gpus=0, max_retries=0)(_sizes)
    there = [n["NodeID"] for n in nodes if n["Alive"] and n["Resources"].get("GPU", 0)]
    pin = NodeAffinitySchedulingStrategy
    try:
        answers = [ask.options(scheduling_strategy=pin(node, soft=False)).remote() for node in there]
        return min((size for sizes in ray.get(answers, timeout=60) for size in sizes), default=None)
    except Exception:  # no torch there, or too busy: the usual share does
        return None


def _sizes() -> list[int]:
    """Runs on a node. Ray hides the GPUs from a task that asks for none, and torch is told before it looks."""
    import os

    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    import torch

    return [torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count())]
