"""Shared by all tests: one thread, and a data root that is nobody's cache."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A temporary data root, for `Learner(config, root=root)`."""
    return tmp_path_factory.mktemp("data")
