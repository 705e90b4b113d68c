"""Sweeps over several hosts that share one folder and nothing else."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.hosts import Lan, tell
from tests.sweeping import TINY, children, histories, run_sweep, sweep_file, wait_for

pytestmark = pytest.mark.cluster
GRID = {"method": ["pcr", "er"], "seed": {"range": [0, 6]}}
RECORDING: dict[str, Any] = {"trainable": "tests.cluster.recording:Recording", "grid": GRID}
TASKS = 12 * TINY["tasks"]


@pytest.fixture(scope="module")
def one_nodes_numbers(tmp_path_factory: pytest.TempPathFactory, root: Path) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("here")
    sweep_file(folder, grid=GRID)
    done = run_sweep(folder, root)
    assert done.returncode == 0, done.stdout + done.stderr
    return histories(f"sqlite:///{folder}/mlflow.db")


def store(folder: Path) -> str:
    return f"sqlite:///{folder}/mlflow.db"


def test_trials_spread_over_the_nodes_and_have_one_nodes_numbers(
    lan: Lan, folder: Path, one_nodes_numbers: dict[str, Any]
) -> None:
    lan.three_nodes()
    sweep_file(folder, **RECORDING)
    code, text = lan.sweep(folder, "--storage", folder / "checkpoints")
    assert code == 0, text
    assert "running 3 at once" in text
    assert histories(store(folder)) == one_nodes_numbers
    runs = children(store(folder)).values()
    assert {r.data.tags["pcr_ray.node"] for r in runs} == {"h1", "h2", "h3"}
    assert len(lan.tasks("ended")) == TASKS and {host for host, *_ in lan.tasks("begun")} == {"h1", "h2", "h3"}
