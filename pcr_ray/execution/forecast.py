"""How long trials will take: from timings in MLflow where there are any, else from a short calibration here."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from functools import lru_cache
from statistics import median
from typing import Any

from pcr_ray.config import TrialConfig
from pcr_ray.datasets import DATASETS
from pcr_ray.execution.options import RunOptions
from pcr_ray.execution.plan import Plan
from pcr_ray.methods import METHODS
from pcr_ray.text import duration
from pcr_ray.tracking.runs import TrialRun

BACKWARD = 2  # a backward pass over a forward one; evaluation is forward only
MANY = 20  # times the forecast of a task: four trials on one core are 4 to 6 times slower, a first compilation minutes
LEAST_PATIENCE, UNKNOWN_PATIENCE = 1800.0, 6 * 3600.0  # seconds; the second where a task's length is not known
KEY = ("dataset", "method", "model", "batch_size", "replay_batch_size", "views", "batchnorm")


def describe(plan: Plan, options: RunOptions) -> str:
    """How long the trials that are left will take, as one line."""
    speeds = stored_speeds(plan.runs.values())
    guesses = [seconds(trial, speeds) for trial in plan.todo.values()]
    known = [g for g in guesses if g is not None]
    if len(known) < len(guesses):
        return "forecast: not possible before the image folder was read once"
    sources = {key(trial) in speeds for trial in plan.todo.values()}
    names = {True: "earlier trials' speed", False: "a short calibration on one CPU thread here"}
    source = " and ".join(names[s] for s in sorted(sources, reverse=True))
    text = f"forecast: {duration(sum(known))} of work, from {source}"
    if options.address:
        return text
    cores = max(1, int((os.cpu_count() or 1) / plan.study.spec.resources.cpu))
    at_once = min(options.max_concurrent or cores, cores, len(known))
    return f"{text}; about {duration(max(sum(known) / at_once, *known))} with {at_once} at once"


def stored_speeds(runs: Iterable[TrialRun]) -> dict[tuple[Any, ...], float]:
    """Median stream images per second of finished trials, by what decides it."""
    speeds: dict[tuple[Any, ...], list[float]] = {}
    for run in runs:
        if run.finished and "samples_per_second" in run.metrics:
            settings = tuple(run.params.get(k, "") for k in KEY)
            speeds.setdefault(settings, []).append(run.metrics["samples_per_second"])
    return {k: median(v) for k, v in speeds.items()}


def key(trial: TrialConfig) -> tuple[Any, ...]:
    return tuple(getattr(trial, k) for k in KEY)


def side(trial: TrialConfig) -> int:
    """Of an image, in pixels."""
    return trial.image_size or DATASETS.get(trial.dataset).image_size


def seconds(trial: TrialConfig, speeds: dict[tuple[Any, ...], float]) -> float | None:
    """Of one trial on one worker; None where the dataset's size is not known beforehand."""
    dataset = DATASETS.get(trial.dataset)
    if not dataset.train_images:
        return None
    speed = speeds.get(key(trial))
    one = 1 / (speed * passes(trial)) if speed else seconds_per_image(trial.model, side(trial))
    training = dataset.train_images * trial.fraction * passes(trial)
    # After each task the test images so far, and the memory for its class means. On all of CIFAR10 this is 6 % of the
    # training, which was measured too (5 and 6 %); in a quick look it can be most of the time.
    tasks = trial.tasks or 1
    evaluated = dataset.test_images * (tasks + 1) / 2 + trial.buffer * tasks
    return one * (training + evaluated / (1 + BACKWARD))


def patience(trial: TrialConfig, speeds: dict[tuple[Any, ...], float]) -> float:
    """Seconds without a finished task after which a trial counts as stalled: far more than a busy machine needs."""
    guess = seconds(trial, speeds)
    return UNKNOWN_PATIENCE if guess is None else max(LEAST_PATIENCE, MANY * guess / (trial.tasks or 1))


def passes(trial: TrialConfig) -> float:
    """Forward and backward passes of one image that a step makes for each image of the stream."""
    views = 2 if trial.views == "both" else 1
    images = views * (trial.batch_size + trial.replay_batch_size) / trial.batch_size
    return images * METHODS.get(trial.method).cost


def work(trial: TrialConfig) -> float:
    """A trial's share of a sweep in no unit, without a measurement; a dataset of unknown size counts as CIFAR's."""
    from pcr_ray.models import FILTERS

    images = (DATASETS.get(trial.dataset).train_images or 50_000) * trial.fraction
    return images * passes(trial) * (side(trial) * FILTERS[trial.model]) ** 2


@lru_cache(maxsize=16)
def seconds_per_image(model: str, size: int) -> float:
    """Forward and backward on one CPU thread, measured here in CPU time: a busy machine does not falsify it."""
    import torch

    from pcr_ray.models import build

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        net = build(model, "cosine", 10, 1.0, seed=0)
        batch = torch.rand(10, 3, size, size).to(memory_format=torch.channels_last)  # fewer cost more each
        times: list[float] = []
        while len(times) < 2 or sum(times) < 0.5:  # the fastest counts: the first ones warm up
            started = time.process_time()
            net(batch, logits=True).sum().backward()
            times.append(time.process_time() - started)
        return min(times) / len(batch)
    finally:
        torch.set_num_threads(threads)
