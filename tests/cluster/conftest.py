"""Hosts for the tests of several nodes, made once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import hosts
from tests.cluster.hosts import Lan


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
