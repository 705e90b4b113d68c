"""From Tune to the record: a callback that writes every event to the spool and tells whoever watches.

Ray's own MLflow callback lets a lost server or one bad trial end a sweep; here a callback only appends to a file,
and the courier's thread talks to MLflow.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ray.tune import Callback

from pcr_ray.checkpoints import CheckpointStore
from pcr_ray.datasets import known_fingerprint
from pcr_ray.execution.plan import Plan
from pcr_ray.provenance import code_of
from pcr_ray.tracking.courier import Courier
from pcr_ray.tracking.runs import Status, code_entry
from pcr_ray.tracking.spool import END, START, TASK, Spool

NO_TASKS = "the trainable's result has no list `tasks` with the metrics of each task; see trainables/online.py"


class Watcher(Protocol):
    """Anything that wants to know how trials fare: the progress view."""

    def started(self, identity: str) -> None: ...
    def task_done(self, identity: str, metrics: dict[str, Any]) -> None: ...
    def ended(self, identity: str, status: Status, reason: str | None) -> None: ...
    def stopping(self) -> None: ...


@dataclass
class Outcome:
    """How the trials of this invocation ended; what is in none of them was stopped before its end."""

    finished: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)


class TuneTracker(Callback):
    """Tune's view of the record. Holds no connection, and pickles as nothing: Tune copies callbacks to disk."""

    def __init__(
        self, plan: Plan, spool: Spool, courier: Courier, storage: str, watcher: Watcher, root: Path
    ) -> None:  # fmt: skip
        self.plan, self.storage, self.root = plan, storage, root
        self.spool, self.courier, self.watcher = spool, courier, watcher
        self.outcome = Outcome()
        self._spooled: dict[str, int] = {}
        self._begun: set[str] = set()
        self._listening = False

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Tune has its handlers of stop signals in place by now, and says nothing when one comes."""
        if self._listening or threading.current_thread() is not threading.main_thread():
            return
        self._listening = True
        for number in (signal.SIGINT, signal.SIGUSR1):
            tunes = signal.getsignal(number)
            if callable(tunes):
                signal.signal(number, functools.partial(self._told_to_stop, tunes))

    def _told_to_stop(self, tunes: Callable[..., Any], number: int, frame: Any) -> None:
        self.watcher.stopping()
        tunes(number, frame)

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        identity = _identity(trial)
        if self._over(identity):  # its worker was lost before Tune noted its end; the numbers are safe
            return
        self.outcome.running.add(identity)
        self._begin(identity)
        self.watcher.started(identity)

    def _begin(self, identity: str) -> None:
        """Once per trial: a retry goes on in the same run."""
        if identity in self._begun:
            return
        self._begun.add(identity)
        config = self.plan.study.trials[identity]
        code = code_entry(code_of(config, self.plan.study.spec.trainable))
        rerun = identity in self.plan.again
        name, data = self.plan.study.run_name(identity), known_fingerprint(config, self.root)
        self.spool.append(identity, START, name=name, params=config.flat(), code=code, rerun=rerun, data=data)
        self.courier.wake()

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        identity = _identity(trial)
        if self._over(identity):
            return
        if result.get("failure") or not result.get("tasks"):
            reason = result.get("failure") or NO_TASKS
            self._end(identity, Status.FAILED, reason, place=_place(result))
            return
        for metrics in result["tasks"][self._spooled.get(identity, 0) :]:
            numbers = {k: float(v) for k, v in metrics.items() if k != "task"}
            self.spool.append(identity, TASK, task=metrics["task"], metrics=numbers)
        self._spooled[identity] = len(result["tasks"])
        self.watcher.task_done(identity, result["tasks"][-1])
        if result.get("complete"):  # ours to say: a scheduler of Tune's may set `done` on a half-done trial
            self._end(identity, Status.FINISHED, None, result["results"], _place(result))
        self.courier.wake()

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Tune is done with it. If it did not say that it is complete, somebody stopped it early."""
        identity = _identity(trial)
        if identity in self.outcome.running:
            self._stop(identity, "stopped by a scheduler before it was complete")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._end(_identity(trial), Status.FAILED, _reason(trial))

    def stop_running(self) -> None:
        """Interrupted: what is half done is marked so, and continues when the sweep is run again."""
        for identity in sorted(self.outcome.running):
            self._stop(identity, "stopped before it was done")

    def _over(self, identity: str) -> bool:
        return identity in self.outcome.finished or identity in self.outcome.failed

    def _stop(self, identity: str, reason: str) -> None:
        self.outcome.running.discard(identity)
        self.spool.append(identity, END, status=Status.KILLED, reason=reason)
        self.watcher.ended(identity, Status.KILLED, None)
        self.courier.wake()

    def _end(
        self, identity: str, status: Status, reason: str | None,
        results: dict[str, Any] | None = None, place: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        if self._over(identity):
            return
        self._begin(identity)  # a worker may die before its trial started
        self.outcome.running.discard(identity)
        self.spool.append(identity, END, status=status, reason=reason, results=results, **(place or {}))
        if status is Status.FINISHED:
            self.outcome.finished.add(identity)
            with contextlib.suppress(Exception):  # a checkpoint too many is no reason to end a sweep
                CheckpointStore(self.storage, identity).delete()
        else:
            self.outcome.failed[identity] = reason or "unknown"
        self.watcher.ended(identity, status, reason)
        self.courier.wake()


def _identity(trial: Any) -> str:
    return trial.config["case"]["identity"]


def _place(result: dict[str, Any]) -> dict[str, Any]:
    """Where a trial ran; a trainable may say on which device and how many threads."""
    return {"node": result.get("hostname"), "device": result.get("device")}


def _reason(trial: Any) -> str:
    """The exception's own line, the last of the traceback in Tune's error file."""
    text = ""
    with contextlib.suppress(OSError, TypeError):
        text = Path(trial.error_file).read_text()
    lines = [line.strip() for line in (text or str(trial.get_error() or "")).splitlines() if line.strip()]
    return lines[-1][:1000] if lines else "the worker died"
