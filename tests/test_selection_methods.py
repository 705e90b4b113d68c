"""Every method that chooses or edits its replay learns, and continues from a checkpoint bit for bit."""

from __future__ import annotations

import pytest
import torch

from pcr_ray.learner import Learner
from tests.methods_support import fresh

METHODS = ["mir", "gmed", "er_dvc", "gss", "aser"]
# Little to choose from, for speed.
PARAMS = {"mir": {"candidates": 20}, "er_dvc": {"candidates": 20}, "gss": {"strength": 1}}


def flat(state, prefix=""):
    """A nested state as path -> value."""
    if isinstance(state, dict):
        return {k: v for key, part in state.items() for k, v in flat(part, f"{prefix}/{key}").items()}
    return {prefix: state}


@pytest.mark.parametrize("method", METHODS)
def test_two_tasks_are_learned_far_above_chance(root, method):
    learner = fresh(root, method, seed=1, fraction=0.7, buffer=60, views="original", params=PARAMS.get(method, {}))
    learner.run_task()
    learner.run_task()
    assert sum(learner.matrices[""][-1]) / 2 > 50  # chance among four classes is 25


@pytest.mark.parametrize("method", METHODS)
def test_continued_run_equals_the_undisturbed_one_bit_for_bit(root, method, tmp_path):
    learner = fresh(root, method, fraction=0.12, buffer=12, params=PARAMS.get(method, {}))
    learner.run_task()
    learner.save(tmp_path)
    learner.run_task()
    continued = Learner(learner.config, root=root, device="cpu")
    assert continued.load(tmp_path)
    continued.run_task()
    undisturbed, again = flat(learner.state_dict()), flat(continued.state_dict())
    assert undisturbed.keys() == again.keys()
    for key, value in undisturbed.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, again[key]), key
        elif "seconds" not in key:
            assert value == again[key], key
