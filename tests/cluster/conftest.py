"""Hosts for the tests of several nodes, made once."""

from __future__ import annotations

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
    """Of one test, shared by all hosts; a report of what was printed there if it fails."""
    place = lan.shared / request.node.name[:40]
    place.mkdir()
    yield place
    (lan.shared / "slow").unlink(missing_ok=True)
    (lan.shared / "tasks.txt").unlink(missing_ok=True)
