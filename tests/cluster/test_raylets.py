"""Where there can be no hosts of their own: several Ray nodes on this machine, which share its disk."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import hosts
from tests.cluster.conftest import GRID
from tests.sweeping import TINY, environment, histories, run_sweep, start_sweep, sweep_file, wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not hosts.missing(), reason=f"test_nodes.py has real hosts here ({hosts.SWITCH}=1: not)"),
]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Three nodes of one CPU each, whose workers know `tests` and the test's folder."""
    from ray.cluster_utils import Cluster

    for name, value in environment(tmp_path, RAY_AUTH_MODE="disabled").items():
        monkeypatch.setenv(name, value)
    made = Cluster(True, shutdown_at_exit=False, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(2):
        made.add_node(num_cpus=1)
    made.wait_for_nodes()
    yield made
    made.shutdown()


def test_a_lost_and_an_added_node_and_a_killed_driver_change_no_number(
    cluster: Any, tmp_path: Path, root: Path, one_nodes_numbers: dict[str, Any]
) -> None:
    def ended() -> list[str]:
        file = tmp_path / "tasks.txt"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if line.startswith("ended")]

    sweep_file(tmp_path, trainable="tests.cluster.recording:Recording", grid=GRID)
    (tmp_path / "slow").touch()
    options = ("--address", cluster.address)
    driver = start_sweep(tmp_path, root, *options)
    wait_for(lambda: len(ended()) > 3, "some tasks", doer=driver)
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    cluster.add_node(num_cpus=1)
    before = len(ended())
    wait_for(lambda: len(ended()) > before + 3, "tasks without the lost node", doer=driver)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait(30)
    (tmp_path / "slow").unlink()
    done = run_sweep(tmp_path, root, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert histories(f"sqlite:///{tmp_path}/mlflow.db") == one_nodes_numbers
    assert len(ended()) == 12 * TINY["tasks"] and max(Counter(ended()).values()) == 1, "a finished task was done again"
