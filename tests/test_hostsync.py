"""The detector of host syncs, which the contract of every method uses: it sees every kind of wait and nothing else."""

import pytest
import torch

from pcr_ray.contract import Broken
from pcr_ray.contract.hostsync import HostSync, NoHostSync, device_learner, no_step_waits
from pcr_ray.methods import METHODS, Method


@pytest.mark.parametrize("method", [m.name for m in METHODS if m.syncs])
def test_a_reason_to_wait_still_holds(method, root):
    learner = device_learner(root, method=method)
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


@pytest.mark.parametrize("wait", [lambda x: x.max().item(), lambda x: x[x > 0], lambda x: x.nonzero()])
def test_a_method_that_waits_in_its_step_is_caught(wait, monkeypatch, root):
    plain = METHODS.get("finetune").remember
    monkeypatch.setattr(METHODS.get("finetune"), "remember", lambda self, b: (plain(self, b), wait(b.labels)))
    with pytest.raises(Broken, match="a step waits for the device"):
        no_step_waits("finetune", root)
