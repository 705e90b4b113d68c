"""No host sync in a step: the learner runs on torch's meta device, whose tensors have shapes but no values.

Whatever asks such a tensor for a value cannot be answered: the same calls that make a CPU wait for a GPU.
A dispatch mode adds what the meta device lets pass and a GPU does not.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pcr_ray import learner as learner_module
from pcr_ray.contract._base import Broken, expect
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


class HostSync(Broken):
    """A step waited for the device."""


class NoHostSync(TorchDispatchMode):
    """Raises where the host would wait for a device, 'meta' standing for it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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
    def check_copy(name: str, tensors: list[torch.Tensor], args: Any, kwargs: Any) -> None:
        source = tensors[-1].device.type
        target = tensors[0].device.type if name == "copy_" else torch.device(kwargs.get("device") or source).type
        blocking = not (kwargs.get("non_blocking") or (name == "copy_" and args[2:] and args[2]))
        if source == "meta" and target == "cpu":
            raise HostSync("copy from the device")
        if source == "cpu" and target == "meta" and blocking:
            raise HostSync("blocking copy to the device")


class Enough(Exception):
    """Ends a task before its evaluation, which may wait."""


def device_learner(root: Path, **raw: Any) -> Learner:
    """A small trial on the meta device."""
    with patch.object(learner_module, "pick_device", lambda name: torch.device("meta")):
        return Learner(resolve({"dataset": "digits", "buffer": 15, "fraction": 0.2, **raw}), root=root)


def run_steps(learner: Learner, steps: int = 3) -> None:
    """The learner's own loop over the next task, watched from its second step on, when its data is there."""
    mode, done = NoHostSync(), 0

    def on_step() -> None:
        nonlocal done
        done += 1
        if done == 1:
            mode.__enter__()
        if done == steps:
            raise Enough

    try:
        learner.run_task(on_step)
    except Enough:
        pass
    else:
        raise Broken("the task was over before it was looked at")
    finally:
        if done:
            mode.__exit__(None, None, None)
    learner.method.end_task()
    learner.training.losses.append(0.0)  # the task counts as done


def no_step_waits(name: str, root: Path) -> None:
    """Of two tasks; storing may wait where the method says why."""
    learner = device_learner(root, method=name)
    if METHODS.get(name).syncs:
        learner.method.remember = functools.partial(Method.remember, learner.method)  # type: ignore[method-assign]
    for _ in range(2):
        try:
            run_steps(learner)
        except HostSync as error:
            raise Broken(f"a step waits for the device ({error}): keep values on it, or say why in `syncs`") from error
        except (RuntimeError, TypeError, NotImplementedError) as error:  # what torch says of a tensor without values
            if "meta" not in str(error):
                raise
            raise Broken(f"a step waits for the device ({str(error).splitlines()[0]})") from error
    if METHODS.get(name).uses_memory:
        expect(learner.method.memory.seen > learner.method.memory.size, "replacement in the memory was not reached")
