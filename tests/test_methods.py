"""The contract of every registered method, and what the checks of it can tell apart."""

import inspect
import re

import pytest
import torch

from pcr_ray import models
from pcr_ray.contract import METHOD_CHECKS
from pcr_ray.contract.methods import build, differences, state
from pcr_ray.methods import METHODS
from pcr_ray.study.resolve import ConfigProblems, resolve

methods = pytest.mark.parametrize("method", METHODS.names())


@pytest.fixture
def learner(root):
    return lambda **raw: build(root, **raw)


@pytest.mark.parametrize("check", METHOD_CHECKS)
@methods
def test_a_method_keeps_the_contract(method, check, root):
    METHOD_CHECKS[check](method, root)


@methods
def test_a_methods_file_has_numbered_differences_at_the_top(method):
    assert re.search(r"^1\. ", inspect.getmodule(METHODS.get(method)).__doc__, re.MULTILINE)


DEFAULTS = {  # as the sources give them
    "aser": {"cifar10": {"k": 3, "candidates": 9}, "cifar100": {"candidates": 2}, "mini_imagenet": {"candidates": 3}},
    "derpp": {"cifar10": {"alpha": 0.1, "beta": 0.5}},
    "er_dvc": {"cifar10": {"dl": 2, "candidates": 50}, "cifar100": {"dl": 4}, "mini_imagenet": {"dl": 4}},
    "gmed": {
        "cifar10": {"alpha": 0.05, "beta": 0.001},
        "cifar100": {"alpha": 0.01, "beta": 0.001},
        "mini_imagenet": {"alpha": 0.25, "beta": 0.1},  # 1 with pixels in [-1, 1]
    },
    "gss": {"cifar10": {"strength": 10, "compare": 10}},
    "hpcr": {"cifar10": {"alpha": 0.01, "beta": 0.5}, "cifar100": {"alpha": 0.1}, "mini_imagenet": {"alpha": 0.1}},
    "mir": {"cifar10": {"candidates": 50}},
    "ocm": {"cifar100": {"temperature": 0.07}},
}


@pytest.mark.parametrize("method", DEFAULTS)
def test_defaults_are_those_of_the_sources_on_each_dataset(method):
    for dataset, expected in DEFAULTS[method].items():
        params = resolve({"method": method, "dataset": dataset}).params
        assert {k: params[k] for k in expected} == expected


def test_another_seed_is_another_trial(learner):
    a, b = (learner(seed=s, fraction=0.02) for s in (1, 2))
    assert differences(a.method.state_dict(), b.method.state_dict())
    assert a.stream.class_order != b.stream.class_order
    a.run_task(), b.run_task()
    assert a.training.losses != b.training.losses


@pytest.mark.parametrize(
    "optimiser", [{"optimiser": "adam", "lr": 1e-3}, {"momentum": 0.9, "weight_decay": 1e-4}], ids=["adam", "momentum"]
)
def test_an_optimisers_state_survives_a_checkpoint(optimiser, learner, tmp_path):
    trial = learner(method="er", proxy_gradients=True, **optimiser)
    trial.run_task()
    trial.save(tmp_path)
    continued = learner(method="er", proxy_gradients=True, **optimiser)
    continued.load(tmp_path)
    trial.run_task(), continued.run_task()
    assert differences(state(trial), state(continued)) == []
    assert len(continued.results()["proxy_gradients"]) == 2


def test_two_learners_of_one_state_do_not_share_it(learner):
    trial, other = learner(method="er", momentum=0.9), learner(method="er", momentum=0.9)
    trial.run_task()
    other.load_state_dict(trial.state_dict())
    other.run_task()
    assert trial.tasks_done == len(trial.matrices["softmax"]) == 1
    trial.run_task()
    assert differences(state(trial), state(other)) == []


def test_the_comparison_of_states_sees_a_single_bit(learner):
    a, b = state(learner(method="er", fraction=0.02)), state(learner(method="er", fraction=0.02))
    assert differences(a, b) == []
    b["memory"]["keep_rng"] = b["memory"]["keep_rng"].clone()
    b["memory"]["keep_rng"][100] ^= 1
    b["training"]["losses"] = [1.0]
    assert sorted(differences(a, b)) == ["state.memory.keep_rng", "state.training.losses"]


def test_a_single_image_of_the_smallest_size_can_be_learned_and_a_smaller_one_is_refused():
    folder = {"dataset": "folder", "folder": "x", "tasks": 2}
    size = resolve(folder | {"image_size": 9}).image_size
    net = models.build("reduced_resnet18", "linear", 2, None, seed=0).train()
    net(torch.rand(1, 3, size, size), logits=True).sum().backward()
    with pytest.raises(ConfigProblems, match="image_size"):
        resolve(folder | {"image_size": 8})
