"""Hosts for the tests of several nodes, made once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import hosts
from tests.cluster.hosts import Lan
from tests.sweeping import histories, run_sweep, sweep_file

GRID: dict[str, Any] = {"method": ["pcr", "er"], "seed": {"range": [0, 6]}}


@pytest.fixture(scope="session")
def one_nodes_numbers(tmp_path_factory: pytest.TempPathFactory, root: Path) -> dict[str, Any]:
    """Of the tiny sweep over GRID, run on this machine without a cluster."""
    folder = tmp_path_factory.mktemp("here")
    sweep_file(folder, grid=GRID)
    done = run_sweep(folder, root)
    assert done.returncode == 0, done.stdout + done.stderr
    return histories(f"sqlite:///{folder}/mlflow.db")


@pytest.fixture(scope="session")
def lan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lan]:
    if hosts.missing():
        pytest.skip(hosts.missing())
    with Lan(tmp_path_factory.mktemp("shared")) as made:
        yield made


@pytest.fixture
def folder(lan: Lan, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Of one test, shared by all hosts."""
    yield Path(tempfile.mkdtemp(dir=lan.shared, prefix=f"{request.node.originalname[:30]}-"))
    (lan.shared / "slow").unlink(missing_ok=True)
    (lan.shared / "tasks.txt").unlink(missing_ok=True)
