"""The order of trials: Table 1 with the costs that forecasts know, worked off by simulated workers."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from pcr_ray.config import TrialConfig
from pcr_ray.execution import forecast
from pcr_ray.execution.order import arrange
from pcr_ray.study.load import load
from pcr_ray.study.resolve import resolve

Trials = dict[str, TrialConfig]


@pytest.fixture(scope="module")
def table1() -> Trials:
    return load(Path(__file__).parents[1] / "sweeps" / "table1.yaml").trials


def makespan(order: Iterable[str], seconds: Mapping[str, float], workers: int) -> float:
    """Each worker takes the next trial of the list when it is free, as Tune does."""
    free = [0.0] * workers
    for identity in order:
        heapq.heapreplace(free, free[0] + seconds[identity])
    return max(free)


def lower_bound(seconds: Mapping[str, float], workers: int) -> float:
    return max(sum(seconds.values()) / workers, *seconds.values())


@pytest.mark.parametrize("workers", [1, 2, 16, 64, 256])
def test_table1_ends_within_5_percent_of_the_lower_bound(table1: Trials, workers: int) -> None:
    seconds = {identity: forecast.work(trial) for identity, trial in table1.items()}
    order = arrange(table1, workers, forecast.work)
    assert order == table1 and len(order) == 1740
    assert makespan(order, seconds, workers) <= 1.05 * lower_bound(seconds, workers)


@pytest.mark.parametrize("workers", [2, 16, 64])
def test_costs_that_are_a_fifth_off_add_little(table1: Trials, workers: int) -> None:
    draw = random.Random(0)
    seconds = {i: forecast.work(trial) * draw.uniform(0.8, 1.2) for i, trial in table1.items()}
    order = arrange(table1, workers, forecast.work)
    by_seed = sorted(table1, key=lambda i: table1[i].seed)
    best = lower_bound(seconds, workers)
    assert makespan(order, seconds, workers) <= min(1.15 * best, makespan(by_seed, seconds, workers))


@pytest.mark.parametrize("workers", [2, 16, 64])
def test_the_first_seed_of_everything_comes_first(table1: Trials, workers: int) -> None:
    seeds = [trial.seed for trial in arrange(table1, workers, forecast.work).values()]
    assert set(seeds[: seeds.count(0)]) == {0}


def test_the_longest_of_a_seed_comes_first() -> None:
    trials = {
        f"{method} {seed}": resolve({"dataset": "cifar10", "method": method, "seed": seed})
        for method in ("er", "ocm", "finetune") for seed in (1, 0)
    }  # fmt: skip
    length = {"finetune": 1.0, "er": 2.0, "ocm": 3.0}
    order = list(arrange(trials, 1, lambda trial: length[trial.method]))
    assert order == ["ocm 0", "er 0", "finetune 0", "ocm 1", "er 1", "finetune 1"]


def test_a_long_trial_of_the_last_seed_starts_in_time() -> None:
    """Six trials of 1 and one of 3 on two workers: the sweep ends at 5, in the order of seeds at 6."""
    trials = {f"er {seed}": resolve({"dataset": "cifar10", "method": "er", "seed": seed}) for seed in range(6)}
    trials["ocm 6"] = resolve({"dataset": "cifar10", "method": "ocm", "seed": 6})
    length = {"er": 1.0, "ocm": 3.0}
    order = arrange(trials, 2, lambda trial: length[trial.method])
    assert list(order)[:2] == ["er 0", "er 1"]
    assert makespan(order, {i: length[t.method] for i, t in trials.items()}, 2) == 5.0
    assert makespan(trials, {i: length[t.method] for i, t in trials.items()}, 2) == 6.0


def test_nothing_to_do_is_no_order() -> None:
    assert arrange({}, 4, forecast.work) == {}
