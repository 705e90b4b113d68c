"""The contract of a method, on digits: it learns, repeats itself, continues where it stopped, works at the edges."""

from __future__ import annotations

import inspect
import math
import random
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pcr_ray.contract._base import Check, expect
from pcr_ray.lazy import torch
from pcr_ray.methods import METHODS, Method
from pcr_ray.study.resolve import resolve

EDGES: dict[str, dict[str, Any]] = {
    "one image a step, one slot": {"batch_size": 1, "buffer": 1, "fraction": 0.015},
    "one class a task, replay beyond the filling": {"tasks": 10, "replay_batch_size": 64},
    "one step a task, separate, proxy gradients": {"batch_size": 1000, "batchnorm": "separate",
                                                   "proxy_gradients": True},
    "no augmentation, no replay of the current task": {"augment": "none", "replay_current": False},
    "augmented only, normalised, joint, Adam": {"views": "augmented", "normalise": True, "batchnorm": "joint",
                                                "optimiser": "adam", "lr": 1e-3},
}  # fmt: skip


def build(root: Path, **raw: Any) -> Any:
    """A small trial on digits."""
    from pcr_ray.learner import Learner

    return Learner(resolve({"dataset": "digits", "buffer": 40, "fraction": 0.1, **raw}), root=root, device="cpu")


def state(learner: Any) -> dict[str, Any]:
    """All that a continuation needs, but the clock."""
    found = learner.state_dict()
    for measured in ("seconds", "memory"):  # the machine's, not the method's
        found["training"].pop(measured)
    return found


def differences(a: Any, b: Any, path: str = "state") -> list[str]:
    """Where two nested states are not bit for bit the same."""
    if type(a) is not type(b):
        return [path]
    if isinstance(a, torch.Tensor):
        return [] if a.dtype == b.dtype and torch.equal(a, b) else [path]
    if isinstance(a, dict):
        keys = sorted(a.keys() | b.keys(), key=str)
        return [d for k in keys for d in differences(a.get(k), b.get(k), f"{path}.{k}")]
    if isinstance(a, list | tuple):
        odd = [] if len(a) == len(b) else [path]
        return odd + [d for i, (x, y) in enumerate(zip(a, b)) for d in differences(x, y, f"{path}.{i}")]
    return [] if a == b else [path]


def check_sound(learner: Any, tasks: int) -> None:
    """Finite losses, accuracies of all tasks so far, and a memory that knows its labels."""
    memory, method = learner.method.memory, learner.method
    expect(learner.tasks_done == tasks, f"{learner.tasks_done} tasks done instead of {tasks}")
    expect(all(map(math.isfinite, learner.training.losses)), f"losses {learner.training.losses}: not finite")
    rows = learner.matrices["softmax"]
    expect([len(row) for row in rows] == list(range(1, tasks + 1)), "not one accuracy per task so far")
    expect(all(0 <= a <= 100 for row in rows for a in row), "accuracies outside of 0 to 100")
    expect(all(p.isfinite().all() for p in method.parameters()), "parameters that are not finite")
    offered = sum(learner.stream.samples(t) for t in range(tasks))
    wanted = min(memory.size, offered) if method.uses_memory else 0
    expect(memory.filled == wanted, f"the memory holds {memory.filled} images, {wanted} were expected")
    same = memory.host_labels[: memory.filled].tolist() == memory.labels[: memory.filled].tolist()
    expect(same, "the memory's labels on the host and on the device differ")
    expect(len(learner.matrices["ncm"]) == (tasks if method.uses_memory else 0), "nearest-mean accuracies are missing")


def says_what_it_is(name: str, root: Path) -> None:
    cls = METHODS.get(name)
    expect(issubclass(cls, Method), "not a subclass of pcr_ray.methods.Method")
    expect(bool(getattr(cls, "title", "").strip()), "`title` is empty: what tables call it")
    expect(0 < len(getattr(cls, "idea", "").strip()) < 100, "`idea` has to be one line of fewer than 100 characters")
    expect(cls.head in cls.heads and set(cls.heads) <= {"cosine", "linear"}, "`head` is not one of `heads`")
    expect(cls.batchnorm in ("joint", "separate", "views"), f"`batchnorm` is {cls.batchnorm}")
    expect(not (cls.iid and cls.uses_memory), "`iid` and `uses_memory` exclude each other")
    expect(
        bool(inspect.getdoc(inspect.getmodule(cls))), "its file has no text at the top: formula, source, differences"
    )
    bare = [key for key, field in cls.Params.model_fields.items() if not field.description]
    expect(not bare, f"parameters without a description: {', '.join(bare)}")


def learns(name: str, root: Path) -> None:
    # All images, 29 steps a task: fewer leave the BatchNorm statistics raw. Adam, under which every method learns fast.
    trial = build(root, method=name, fraction=1.0, optimiser="adam", lr=0.001)
    for _ in range(2):
        trial.run_task()
    check_sound(trial, 2)
    # Each task right after it was learned: what is forgotten later is the methods' business. Chance is one in the
    # classes that compete; four standard deviations of guessing lie in between.
    chances = [1 / task.seen for task in trial.stream.tasks[:2]]
    variances = [p * (1 - p) / len(trial.stream.test(t)[0]) for t, p in enumerate(chances)]
    beyond = 100 * (np.mean(chances) + 4 * math.sqrt(sum(variances)) / 2)
    found = np.mean([row[-1] for row in trial.matrices["softmax"]])
    expect(bool(found > beyond), f"{found:.1f} % on the newest task, where guessing may give {beyond:.1f} %")


def continues(name: str, root: Path) -> None:
    few = {"method": name, "seed": 1, "fraction": 0.07, "buffer": 15}  # the second step already replaces
    undisturbed = build(root, **few)
    before = torch.get_rng_state()
    undisturbed.run_task()
    undisturbed.run_task()
    expect(torch.equal(before, torch.get_rng_state()), "it draws from torch's global generator; use pcr_ray.seeds")
    torch.manual_seed(99)
    np.random.seed(99)
    random.seed(99)
    first = build(root, **few)
    first.run_task()
    with tempfile.TemporaryDirectory() as folder:
        first.save(Path(folder))
        second = build(root, **few)
        expect(second.load(Path(folder)), "its checkpoint cannot be read")
    odd = differences(state(first), state(second))
    expect(not odd, f"after loading a checkpoint these differ: {', '.join(odd[:5])}; see `extra_state`")
    second.run_task()
    check_sound(second, 2)
    odd = differences(state(undisturbed), state(second))
    expect(not odd, f"a second run, continued from a checkpoint, differs in {', '.join(odd[:5])}")
    same = undisturbed.results()["accuracy_matrix"] == second.results()["accuracy_matrix"]
    expect(same, "a second run has other accuracies")


def works_at(edge: str, name: str, root: Path) -> None:
    trial = build(root, **{"method": name, "fraction": 0.05, **EDGES[edge]})
    for _ in range(2):
        trial.run_task()
    check_sound(trial, 2)


def has_its_heads(name: str, root: Path) -> None:
    for head in METHODS.get(name).heads:
        trial = build(root, method=name, head=head, fraction=0.05)
        before = trial.method.net.backbone.stem[0].weight.clone()
        trial.run_task()
        check_sound(trial, 1)
        moved = not torch.equal(before, trial.method.net.backbone.stem[0].weight)
        expect(moved, f"with head {head} the backbone does not learn")


def never_waits(name: str, root: Path) -> None:
    from pcr_ray.contract.hostsync import no_step_waits

    no_step_waits(name, root)


METHOD_CHECKS: dict[str, Check] = {
    "says what it is": says_what_it_is,
    "learns two tasks beyond chance": learns,
    "repeats itself, and continues from a checkpoint bit for bit": continues,
    **{f"works with {edge}": partial(works_at, edge) for edge in EDGES},
    "works with every head it claims": has_its_heads,
    "no step waits for the device": never_waits,
}
