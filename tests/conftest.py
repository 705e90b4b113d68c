"""What all tests share: one CPU thread, and a data root that is thrown away."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")
