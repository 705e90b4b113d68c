"""The contract of every registered method: it learns, it repeats itself, it continues where it stopped."""

import inspect
import math
import random
import re

import numpy as np
import pytest
import torch

from pcr_ray import models
from pcr_ray.learner import Learner
from pcr_ray.methods import METHODS, Method
from pcr_ray.study.resolve import ConfigProblems, resolve

methods = pytest.mark.parametrize("method", METHODS.names())


@pytest.fixture
def learner(root):
    def build(**raw):
        return Learner(resolve({"buffer": 40, "fraction": 0.1, **raw}), root=root, device="cpu")

    return build


def state(learner):
    """All that a continuation needs, but the clock."""
    found = learner.state_dict()
    found["training"].pop("seconds")
    return found


def differences(a, b, path="state"):
    """Where two nested states are not bit for bit the same."""
    if type(a) is not type(b):
        return [path]
    if isinstance(a, torch.Tensor):
        return [] if a.dtype == b.dtype and torch.equal(a, b) else [path]
    if isinstance(a, dict):
        keys = a.keys() | b.keys()
        return [d for k in keys for d in differences(a.get(k), b.get(k), f"{path}.{k}")]
    if isinstance(a, list | tuple):
        odd = [] if len(a) == len(b) else [path]
        return odd + [d for i, (x, y) in enumerate(zip(a, b)) for d in differences(x, y, f"{path}.{i}")]
    return [] if a == b else [path]


def check_sound(learner, tasks):
    """Finite losses, accuracies of all tasks so far, and a memory that knows its labels."""
    memory, method = learner.method.memory, learner.method
    assert learner.tasks_done == tasks
    assert all(map(math.isfinite, learner.training.losses))
    assert [len(row) for row in learner.matrices["softmax"]] == list(range(1, tasks + 1))
    assert all(0 <= a <= 100 for row in learner.matrices["softmax"] for a in row)
    assert all(p.isfinite().all() for p in method.parameters())
    offered = sum(learner.stream.samples(t) for t in range(tasks))
    assert memory.filled == (min(memory.size, offered) if method.uses_memory else 0)
    assert memory.host_labels[: memory.filled].tolist() == memory.labels[: memory.filled].tolist()
    assert len(learner.matrices["ncm"]) == (tasks if method.uses_memory else 0)


@methods
def test_a_method_says_what_it_is(method):
    cls = METHODS.get(method)
    assert issubclass(cls, Method)
    assert cls.name == method
    assert cls.title.strip()
    assert cls.idea.strip()
    assert len(cls.idea) < 100
    assert cls.head in cls.heads
    assert set(cls.heads) <= {"cosine", "linear"}
    assert cls.batchnorm in ("joint", "separate", "views")
    assert not (cls.iid and cls.uses_memory)
    assert re.search(r"^1\. ", inspect.getmodule(cls).__doc__, re.MULTILINE), "no numbered differences at the top"


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


@methods
def test_learns_two_tasks_beyond_chance(method, learner):
    # All images, 29 steps a task: fewer leave the BatchNorm statistics raw. Adam, under which every method learns fast.
    trial = learner(method=method, fraction=1.0, optimiser="adam", lr=0.001)
    for _ in range(2):
        trial.run_task()
    check_sound(trial, 2)
    # Each task right after it was learned: what is forgotten later is the methods' business. Chance is one in the
    # classes that compete; four standard deviations of guessing lie in between.
    chances = [1 / task.seen for task in trial.stream.tasks[:2]]
    variances = [p * (1 - p) / len(trial.stream.test(t)[0]) for t, p in enumerate(chances)]
    beyond = np.mean(chances) + 4 * math.sqrt(sum(variances)) / 2
    assert np.mean([row[-1] for row in trial.matrices["softmax"]]) > 100 * beyond


@methods
def test_repeats_itself_and_continues_from_a_checkpoint_bit_for_bit(method, learner, tmp_path):
    few = {"method": method, "seed": 1, "fraction": 0.07, "buffer": 15}  # the second step already replaces
    undisturbed = learner(**few)
    before = torch.get_rng_state()
    undisturbed.run_task()
    undisturbed.run_task()
    assert torch.equal(before, torch.get_rng_state()), "it draws from the global generator"

    torch.manual_seed(99)
    np.random.seed(99)
    random.seed(99)
    first = learner(**few)
    first.run_task()
    first.save(tmp_path)
    second = learner(**few)
    assert second.load(tmp_path)
    assert differences(state(first), state(second)) == []
    second.run_task()
    check_sound(second, 2)
    assert differences(state(undisturbed), state(second)) == []
    assert undisturbed.results()["accuracy_matrix"] == second.results()["accuracy_matrix"]


def test_another_seed_is_another_trial(learner):
    a, b = (learner(seed=s, fraction=0.02) for s in (1, 2))
    assert differences(a.method.state_dict(), b.method.state_dict())
    assert a.stream.class_order != b.stream.class_order
    a.run_task(), b.run_task()
    assert a.training.losses != b.training.losses


EDGES = {
    "one image a step, one slot": {"batch_size": 1, "buffer": 1, "fraction": 0.015},
    "one class a task, replay beyond the filling": {"tasks": 10, "replay_batch_size": 64},
    "one step a task, separate, proxy gradients": {"batch_size": 1000, "batchnorm": "separate",
                                                   "proxy_gradients": True},
    "no augmentation, no replay of the current task": {"augment": "none", "replay_current": False},
    "augmented only, normalised, joint, Adam": {"views": "augmented", "normalise": True, "batchnorm": "joint",
                                                "optimiser": "adam", "lr": 1e-3},
}  # fmt: skip


@pytest.mark.parametrize("edge", EDGES)
@methods
def test_works_at_the_edges(method, edge, learner):
    trial = learner(**{"method": method, "fraction": 0.05, **EDGES[edge]})
    for _ in range(2):
        trial.run_task()
    check_sound(trial, 2)


@methods
def test_works_with_every_head_it_claims(method, learner):
    for head in METHODS.get(method).heads:
        trial = learner(method=method, head=head, fraction=0.05)
        before = trial.method.net.backbone.stem[0].weight.clone()
        trial.run_task()
        check_sound(trial, 1)
        assert not torch.equal(before, trial.method.net.backbone.stem[0].weight)


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
