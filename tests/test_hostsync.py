"""No host sync in a step: the learner runs on torch's meta device, whose tensors have shapes but no values.

Whatever asks such a tensor for a value cannot be answered: the same calls that make a CPU wait for a GPU.
A dispatch mode adds what the meta device lets pass and a GPU does not.
"""

import functools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pcr_ray import learner as learner_module
from pcr_ray.learner import Learner
from pcr_ray.methods import METHODS, Method
from pcr_ray.study.resolve import resolve

# Kernels that read a value back inside, whose result has a shape that depends on values, or, as lift_fresh
# in torch.tensor([...], device=...), that stand for a blocking copy.
WAITING = {
    *("_local_scalar_dense", "is_nonzero", "item", "equal", "multinomial", "lift_fresh", "nonzero", "masked_select"),
    *("bincount", "repeat_interleave", "_unique", "_unique2", "unique_dim", "unique_consecutive"),
}
COPIES = {"_to_copy", "copy_"}


class HostSync(AssertionError):
    """A step waited for the device."""


class NoHostSync(TorchDispatchMode):
    """Raises where the host would wait for a device, 'meta' standing for it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        devices = {t.device.type for t in tensors if t.dim()}
        if name in COPIES:
            self.check_copy(name, tensors, args, kwargs)
        elif devices == {"cpu", "meta"}:
            raise HostSync(f"{name} takes tensors of host and device")
        if any(t.is_meta for t in tensors):
            if name in WAITING:
                raise HostSync(name)
            if name in {"index", "index_put", "index_put_"} and any(
                i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]
            ):
                raise HostSync(f"{name} with a mask")
        return func(*args, **kwargs)

    @staticmethod
    def check_copy(name, tensors, args, kwargs):
        source = tensors[-1].device.type
        target = tensors[0].device.type if name == "copy_" else torch.device(kwargs.get("device") or source).type
        blocking = not (kwargs.get("non_blocking") or (name == "copy_" and args[2:] and args[2]))
        if source == "meta" and target == "cpu":
            raise HostSync("copy from the device")
        if source == "cpu" and target == "meta" and blocking:
            raise HostSync("blocking copy to the device")


class Enough(Exception):
    """Ends a task before its evaluation, which may wait."""


def device_learner(monkeypatch, root, **raw):
    monkeypatch.setattr(learner_module, "pick_device", lambda name: torch.device("meta"))
    return Learner(resolve({"buffer": 15, "fraction": 0.2, **raw}), root=root)


def run_steps(learner, steps=3):
    """The learner's own loop over the next task, watched from its second step on, when its data is there."""
    mode, done = NoHostSync(), 0

    def on_step():
        nonlocal done
        done += 1
        if done == 1:
            mode.__enter__()
        if done == steps:
            raise Enough

    try:
        with pytest.raises(Enough):
            learner.run_task(on_step)
    finally:
        if done:
            mode.__exit__(None, None, None)
    learner.method.end_task()
    learner.training.losses.append(0.0)  # the task counts as done


@pytest.mark.parametrize("method", METHODS.names())
def test_no_step_waits_for_the_device(method, monkeypatch, root):
    learner = device_learner(monkeypatch, root, method=method)
    if METHODS.get(method).syncs:  # they say why storing has to wait: all else in a step must not
        reservoir = functools.partial(Method.remember, learner.method)
        monkeypatch.setattr(learner.method, "remember", reservoir)
    for _ in range(2):
        run_steps(learner)
    if METHODS.get(method).uses_memory:
        assert learner.method.memory.seen > learner.method.memory.size, "replacement was not reached"


@pytest.mark.parametrize("method", [m.name for m in METHODS if m.syncs])
def test_a_reason_to_wait_still_holds(method, monkeypatch, root):
    learner = device_learner(monkeypatch, root, method=method)
    learner.method.begin_task(learner.stream.tasks[0])
    batches = learner.stream.batches(0)
    for _ in range(2):
        Method.remember(learner.method, next(batches))  # the memory is full now
    learner.method.memory.extras["score"] = torch.zeros(15, device="meta")  # as if GSS had filled it
    with pytest.raises(HostSync), NoHostSync():
        learner.method.remember(next(batches))


SYNCS = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "if": lambda x: 1 if x.sum() > 0 else 0,
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu", non_blocking=True),
    "copy_": lambda x: torch.zeros(len(x), dtype=x.dtype).copy_(x),
    "numpy": lambda x: x.numpy(),
    "tolist": lambda x: x.tolist(),
    "iteration": lambda x: [int(y) for y in x],
    "range": lambda x: range(x.max()),
    "format": lambda x: f"{x.sum():.3f}",
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0),
    "mask": lambda x: x[x > 0],
    "mask assignment": lambda x: x.clone().__setitem__(x > 0, x),
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "unique rows": lambda x: x[:, None].unique(dim=0),
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x.float(), x.float()),
    "bincount": lambda x: x.bincount(),
    "repeat": lambda x: x.repeat_interleave(x),
    "multinomial": lambda x: x.float().multinomial(1),
    "one_hot": lambda x: torch.nn.functional.one_hot(x),
    "host index": lambda x: x[torch.tensor([0])],
    "list index": lambda x: x[[0]],
    "new tensor": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "blocking copy": lambda x: torch.zeros(3).to(x.device),
}


@pytest.mark.parametrize("sync", SYNCS)
def test_the_detector_sees_every_kind_of_wait(sync):
    labels = torch.ones(10, dtype=torch.int64)
    SYNCS[sync](labels)  # nothing else is wrong with it
    # HostSync from the mode; the rest is what torch says of a tensor without values.
    with pytest.raises((HostSync, RuntimeError, TypeError)), NoHostSync():
        SYNCS[sync](labels.to("meta"))


FREE = {
    "arithmetic": lambda x: (x * 2 + 1).float().softmax(0).topk(3),
    "gather": lambda x: x[x] + x.gather(0, x),
    "slice": lambda x: x[2:5].repeat(3),
    "masked_fill": lambda x: torch.where(x > 0, x, 0).masked_fill(x > 1, 5),
    "one_hot": lambda x: torch.nn.functional.one_hot(x, 10),
    "scatter": lambda x: torch.zeros(10, device=x.device).index_add_(0, x, x.float()),
    "write": lambda x: x.clone().__setitem__(x, x),
    "copy": lambda x: x + torch.zeros(10).to(x.device, non_blocking=True),
    "host draws": lambda x: torch.randperm(4).tolist() + torch.zeros(3)[torch.rand(3) > 0.5].tolist(),
}


@pytest.mark.parametrize("free", FREE)
def test_the_detector_lets_pass_what_needs_no_wait(free):
    with NoHostSync():
        FREE[free](torch.ones(10, dtype=torch.int64, device="meta"))


def test_a_method_that_waits_in_its_step_is_caught(monkeypatch, root):
    learner = device_learner(monkeypatch, root, method="finetune")
    remember = learner.method.remember
    learner.method.remember = lambda batch: (remember(batch), batch.labels.max().item())
    with pytest.raises(RuntimeError, match="meta"):
        run_steps(learner)
