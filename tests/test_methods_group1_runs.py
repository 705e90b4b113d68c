"""The same methods in whole trials: they learn, and a checkpoint continues them bit for bit."""

import pytest
import torch

from pcr_ray.config import resolve
from pcr_ray.learner import Learner

METHODS = ["iid", "er_a", "pcr_c", "er_ace", "ss_il", "er_wa", "agem", "derpp"]


def digits(method, root, **fields):
    """Two tasks of 5 digits, 11 steps each."""
    fixed = {"dataset": "digits", "tasks": 2, "fraction": 0.15, "buffer": 100, "augment": "none", "lr": 0.03}
    return Learner(resolve(fixed | {"method": method} | fields), root=root, device="cpu")


def assert_equal(a, b, path="state"):
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), path
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            assert_equal(a[key], b[key], f"{path}.{key}")
    else:
        assert a == b, path


@pytest.mark.parametrize("method", METHODS)
def test_two_tasks_are_learned_above_chance(method, root):
    learner = digits(method, root)
    learner.run_task()
    metrics = learner.run_task()
    # Ten classes, about 360 test images: chance is 10 with a deviation of 1.6; 18 is five of them above.
    assert metrics["average_accuracy"] > 18


@pytest.mark.parametrize("method", METHODS)
def test_a_checkpoint_continues_as_if_undisturbed(method, root, tmp_path):
    small = {"fraction": 0.05, "buffer": 20, "augment": "paper"}
    undisturbed = digits(method, root, **small)
    undisturbed.run_task()
    undisturbed.save(tmp_path)
    undisturbed.run_task()
    continued = digits(method, root, **small)
    assert continued.load(tmp_path)
    continued.run_task()
    states = [learner.state_dict() for learner in (undisturbed, continued)]
    for state in states:
        state.pop("seconds")
    assert_equal(*states)


def test_er_wa_trains_exactly_as_er_with_a_linear_head(root):
    er, er_wa = digits("er", root, head="linear", fraction=0.05), digits("er_wa", root, fraction=0.05)
    for learner in (er, er_wa):
        learner.run_task()
        learner.run_task()
    assert_equal(er.method.net.state_dict(), er_wa.method.net.state_dict())
    assert er.losses == er_wa.losses
