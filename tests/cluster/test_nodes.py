"""Sweeps over several hosts that share one folder and nothing else."""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cluster.conftest import GRID
from tests.cluster.hosts import Lan, tell
from tests.sweeping import TINY, children, histories, sweep_file, wait_for

pytestmark = pytest.mark.cluster
RECORDING: dict[str, Any] = {"trainable": "tests.cluster.recording:Recording", "grid": GRID}
TASKS = 12 * TINY["tasks"]


def store(folder: Path) -> str:
    return f"sqlite:///{folder}/mlflow.db"


def test_trials_spread_over_the_nodes_and_have_one_nodes_numbers(
    lan: Lan, folder: Path, one_nodes_numbers: dict[str, Any]
) -> None:
    lan.three_nodes()
    (lan.shared / "slow").touch()  # until all have work: one that is slow to start would find nothing left
    sweep_file(folder, **RECORDING)
    driver = lan.start(folder, "--storage", folder / "checkpoints")
    wait_for(lambda: hosts_of(lan, "begun") == {"h1", "h2", "h3"}, "a task on every host", doer=driver)
    (lan.shared / "slow").unlink()
    assert driver.wait(300) == 0, (folder / "out.txt").read_text()
    assert "running 3 trials at once" in (folder / "out.txt").read_text()
    assert histories(store(folder)) == one_nodes_numbers
    runs = children(store(folder)).values()
    assert {r.data.tags["pcr_ray.node"] for r in runs} == {"h1", "h2", "h3"}
    assert len(lan.tasks("begun")) == len(lan.tasks("ended")) == TASKS


def test_lost_added_and_drained_nodes_and_a_killed_driver_cost_at_most_the_tasks_they_were_in(
    lan: Lan, folder: Path, one_nodes_numbers: dict[str, Any]
) -> None:
    lan.three_nodes()
    (lan.shared / "slow").touch()
    sweep_file(folder, **RECORDING)
    driver = lan.start(folder, "--storage", folder / "checkpoints")
    wait_for(lambda: hosts_of(lan, "ended") == {"h1", "h2", "h3"}, "a task on every host", doer=driver)
    lan.hosts["h2"].kill("raylet/raylet")
    lan.join("h4")
    wait_for(lambda: "h4" in hosts_of(lan, "ended"), "a task on the new host", doer=driver)
    lan.hosts["h3"].drain()
    lan.hosts["h3"].ray.wait(120)
    wait_for(lambda: len(lan.tasks("begun")) > 20, "more tasks", doer=driver)
    running = len(lan.tasks("begun")) - len(lan.tasks("ended"))
    tell(driver, signal.SIGKILL)
    assert driver.wait(30) != 0
    text = (folder / "out.txt").read_text()
    assert text.count("node 10.77.0.12 is lost") == 1 and "raylet" not in text, text
    (lan.shared / "slow").unlink()
    code, text = lan.sweep(folder, "--storage", folder / "checkpoints")
    assert code == 0, text
    assert histories(store(folder)) == one_nodes_numbers
    assert max(Counter(tuple(task) for _, *task in lan.tasks("ended")).values()) == 1, "a finished task was done again"
    assert len(lan.tasks("begun")) <= TASKS + running + 2, lan.tasks("begun")


def hosts_of(lan: Lan, what: str) -> set[str]:
    return {host for host, *_ in lan.tasks(what)}


@pytest.mark.parametrize("on", ["h1", "h2"])
def test_a_lost_head_is_told_and_a_new_one_continues(
    lan: Lan, folder: Path, on: str, one_nodes_numbers: dict[str, Any]
) -> None:
    lan.three_nodes()
    (lan.shared / "slow").touch()
    sweep_file(folder, **(RECORDING | {"grid": GRID | {"seed": [0, 1]}}))
    driver = lan.start(folder, "--storage", folder / "checkpoints", on=on)
    wait_for(lambda: len(lan.tasks("ended")) > 3, "some tasks", doer=driver)
    lan.head.kill("gcs_server")
    lan.head.kill("raylet/raylet")
    began = time.monotonic()
    code = driver.wait(120)
    seconds, text = time.monotonic() - began, (folder / "out.txt").read_text()
    assert code == 75 and seconds < 60, (code, seconds, text)
    assert "the head of the Ray cluster is gone" in text and "Traceback" not in text, text
    assert statuses(folder) <= {"FINISHED", "KILLED"}
    lan.off()  # what still ran on the other nodes saves no more
    (lan.shared / "slow").unlink()
    noted, begun = {tuple(task) for _, *task in lan.tasks("ended")}, len(lan.tasks("begun"))
    saved = tasks_saved(folder)
    assert all(saved[method, seed] >= int(task) for method, seed, task in noted), (noted, saved)
    lan.three_nodes()
    code, text = lan.sweep(folder, "--storage", folder / "checkpoints")
    assert code == 0, text
    numbers = histories(store(folder))
    assert len(numbers) == 4 and numbers == {name: one_nodes_numbers[name] for name in numbers}
    left = [(*trial, str(task)) for trial, done in saved.items() for task in range(done, TINY["tasks"])]
    assert sorted(tuple(task) for _, *task in lan.tasks("begun")[begun:]) == sorted(left), "each task left, once"


def tasks_saved(folder: Path) -> dict[tuple[str, str], int]:
    """How many tasks of each trial, known by method and seed, are in a checkpoint or, with all of them, in MLflow."""
    states = [torch.load(file, weights_only=True) for file in (folder / "checkpoints").rglob("checkpoint.pt")]
    half = {(s["config"]["method"], str(s["config"]["seed"])): len(s["training"]["losses"]) for s in states}
    runs = [run for run in children(store(folder)).values() if run.info.status == "FINISHED"]
    done = {(run.data.params["method"], run.data.params["seed"]): int(TINY["tasks"]) for run in runs}
    trials = {(method, seed): 0 for method in GRID["method"] for seed in ("0", "1")}
    return trials | half | done


def statuses(folder: Path) -> set[str]:
    from mlflow import MlflowClient

    client = MlflowClient(store(folder))
    experiment = client.get_experiment_by_name("pcr_ray").experiment_id
    return {run.info.status for run in client.search_runs([experiment])}
