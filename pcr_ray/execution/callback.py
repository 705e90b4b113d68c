"""From Tune to the record: a callback that writes every event to the spool and tells whoever watches.

Ray's own MLflow callback lets a lost server or one bad trial end a sweep; here a callback only appends to a file,
and the courier's thread talks to MLflow. No callback raises: Tune would end the sweep.
"""

from __future__ import annotations

import contextlib
import functools
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ray.tune import Callback

from pcr_ray.console import console
from pcr_ray.datasets import known_fingerprint
from pcr_ray.execution import verdict
from pcr_ray.execution.plan import Plan
from pcr_ray.execution.storage import Tidier
from pcr_ray.provenance import code_of
from pcr_ray.text import duration, first_line, redact
from pcr_ray.tracking.courier import Courier
from pcr_ray.tracking.runs import Status, TrialRun, code_entry
from pcr_ray.tracking.spool import END, START, TASK, Spool

LESS_AT_ONCE = "run fewer trials at once (--max-concurrent N, or more resources.cpu per trial)"


def _never_raises(method: Callable[..., None]) -> Callable[..., None]:
    """A callback whose trial fails where it would raise."""

    @functools.wraps(method)
    def careful(self: TuneTracker, iteration: int, trials: list[Any], trial: Any, *more: Any, **info: Any) -> None:
        try:
            method(self, iteration, trials, trial, *more, **info)
        except Exception as error:
            reason = f"its result cannot be used: {type(error).__name__}: {first_line(error)}"
            try:
                self._end(_identity(trial), Status.FAILED, reason)
            except Exception:
                console.print(f"trial {trial} {reason}", markup=False, soft_wrap=True)

    return careful


class Watcher(Protocol):
    """Anything that wants to know how trials fare: the progress view."""

    def started(self, identity: str) -> None: ...
    def task_done(self, identity: str, metrics: dict[str, Any]) -> None: ...
    def ended(self, identity: str, status: Status, reason: str | None) -> None: ...
    def finished_elsewhere(self, identity: str, metrics: Mapping[str, float]) -> None: ...
    def stopping(self) -> None: ...


@dataclass
class Outcome:
    """How the trials of this invocation ended; what is in none of them was stopped before its end."""

    finished: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)  # to another sweep that runs them
    asked: bool = False  # a stop signal came while Tune ran

    @property
    def known(self) -> set[str]:
        return self.finished | self.failed.keys() | self.left


class TuneTracker(Callback):
    """Tune's view of the record. Holds no connection, and pickles as nothing: Tune copies callbacks to disk."""

    def __init__(
        self, plan: Plan, spool: Spool, courier: Courier, tidier: Tidier, watcher: Watcher, root: Path
    ) -> None:  # fmt: skip
        self.plan, self.tidier, self.root = plan, tidier, root
        self.spool, self.courier, self.watcher = spool, courier, watcher
        self.outcome = Outcome()
        self._spooled: dict[str, int] = {}
        self._begun: set[str] = set()
        self._listening = False
        self._progress: dict[str, tuple[float, Any]] = {}  # running: when it last got on (monotonic), Tune's trial
        self._stalled: dict[str, str] = {}
        self._told: str | None = None  # the spool's trouble, as told

    def elsewhere(self) -> set[str]:
        """Trials that another sweep runs or has finished, as far as MLflow was asked."""
        return set(self.courier.elsewhere) | self.outcome.left

    def over(self, trial_id: str, result: dict[str, Any]) -> bool:
        """For Tune: whether to stop a trial after this result. Not a callback, but what it raises ends a sweep too."""
        try:
            identity = result["config"]["case"]["identity"]
            if not result.get("complete") and identity in self.courier.elsewhere:
                self.outcome.left.add(identity)
            return verdict.over(trial_id, result) or identity in self.outcome.left
        except Exception:
            return True  # `on_trial_result` finds the same, and fails the trial

    def release(self, identity: str) -> None:
        """Nobody else runs it any more."""
        self.outcome.left.discard(identity)
        self.courier.elsewhere.pop(identity, None)

    def ended_elsewhere(self, run: TrialRun) -> None:
        """What another sweep finished is as good as ours; where it failed, what we have finished is better."""
        identity = run.identity
        self.release(identity)
        if identity in self.outcome.finished and not run.finished:
            return  # the courier delivers it in place of theirs
        self.spool.forget(identity)
        if identity in self.outcome.finished:
            return
        if run.finished:
            self.outcome.failed.pop(identity, None)
            self.outcome.finished.add(identity)
            self.spool.mark_progress()
            self._tell("finished_elsewhere", identity, run.metrics)
            self.tidier.delete(identity)
        else:
            self.outcome.failed[identity] = run.reason or "unknown"
            self._tell("ended", identity, Status.FAILED, run.reason)

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
        self.outcome.asked = True
        self._tell("stopping")
        tunes(number, frame)

    @_never_raises
    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        identity = _identity(trial)
        self._stalled.pop(identity, None)
        if self._over(identity):  # its worker was lost before Tune noted its end; the numbers are safe
            return
        self.outcome.running.add(identity)
        self._progress[identity] = time.monotonic(), trial
        self._begin(identity)
        self._tell("started", identity)

    def _begin(self, identity: str) -> None:
        """Once per trial: a retry goes on in the same run."""
        if identity in self._begun:
            return
        self._begun.add(identity)
        config = self.plan.study.trials[identity]
        code = code_entry(code_of(config, self.plan.study.spec.trainable))
        rerun = identity in self.plan.again
        name, data = self.plan.study.run_name(identity), known_fingerprint(config, self.root, self.plan.study.place)
        self._append(identity, START, name=name, params=config.flat(), code=code, rerun=rerun, data=data)

    @_never_raises
    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        identity = _identity(trial)
        if self._over(identity):
            return
        if identity in self.outcome.left:
            self._leave(identity)
            return
        if reason := verdict.problem(result, self.plan.study.trials[identity].tasks):
            self._end(identity, Status.FAILED, reason, place=_place(result))
            return
        if result.get("note"):
            console.print(f"{self.plan.study.describe(identity)}: {result['note']}", markup=False, soft_wrap=True)
        fresh = result["tasks"][self._spooled.get(identity, 0) :]
        for metrics in fresh:
            numbers = {k: float(v) for k, v in metrics.items() if k != "task"}
            self._append(identity, TASK, task=metrics["task"], metrics=numbers)
        self._spooled[identity] = len(result["tasks"])
        if fresh:
            self._progress[identity] = time.monotonic(), trial
            self.spool.mark_progress()
        self._tell("task_done", identity, result["tasks"][-1])
        if result.get("complete"):  # ours to say: a scheduler of Tune's may set `done` on a half-done trial
            self._end(identity, Status.FINISHED, None, result.get("results"), _place(result))

    @_never_raises
    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Tune is done with it. If it did not say that it is complete, somebody stopped it early."""
        identity = _identity(trial)
        if identity in self.outcome.running:
            self._stop(identity, "stopped by a scheduler before it was complete")
        _lighten(trial)

    @_never_raises
    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        identity = _identity(trial)
        self._end(identity, Status.FAILED, self._stalled.get(identity) or _reason(trial))
        _lighten(trial)

    def idle(self) -> dict[str, float]:
        """Running trials, and for how many seconds each has finished no task."""
        now = time.monotonic()
        return {i: now - since for i, (since, _) in list(self._progress.items()) if i in self.outcome.running}

    def end_stalled(self, identity: str) -> None:
        """Ends the worker of a trial that does not get on; Tune tries the trial again, as after any worker's death."""
        import ray

        since, trial = self._progress[identity]
        idle = duration(time.monotonic() - since)
        self._progress[identity] = time.monotonic(), trial
        self._stalled[identity] = f"no task was finished within {idle} (--stall-minutes)"
        name = self.plan.study.describe(identity)
        console.print(f"{name}: no task finished within {idle}: its worker is ended, to try again", soft_wrap=True)
        with contextlib.suppress(Exception):  # it may have ended this very moment
            ray.kill(trial.temporary_state.ray_actor)

    def stop_running(self) -> None:
        """Interrupted: what is half done is marked so, and continues when the sweep is run again."""
        self._listening = False  # Tune sets its handlers anew when it runs again
        for identity in sorted(self.outcome.running):
            self._stop(identity, "stopped before it was done")

    def _leave(self, identity: str) -> None:
        """Another sweep runs it: as if it had not begun here, but for its checkpoint."""
        self.outcome.running.discard(identity)
        self._begun.discard(identity)
        self._spooled.pop(identity, None)
        self.spool.forget(identity)
        self._tell("ended", identity, Status.KILLED, None)

    def _over(self, identity: str) -> bool:
        return identity in self.outcome.finished or identity in self.outcome.failed

    def _stop(self, identity: str, reason: str) -> None:
        self.outcome.running.discard(identity)
        self._append(identity, END, status=Status.KILLED, reason=reason)
        self._tell("ended", identity, Status.KILLED, None)

    def _append(self, identity: str, event: str, **content: Any) -> None:
        """To the spool's file; where that cannot be written, to memory, which is told once."""
        self.spool.append(identity, event, **content)
        self.courier.wake()
        trouble = self.spool.trouble
        if (trouble is None) != (self._told is None):
            where = self.spool.folder
            news = (
                f"{where} cannot be written ({trouble}): numbers are kept in memory and written when that is possible"
            )
            console.print(news if trouble else f"{where} can be written again", markup=False, soft_wrap=True)
        self._told = trouble

    def _tell(self, what: str, *news: Any) -> None:
        with contextlib.suppress(Exception):  # a view that fails is no reason to fail a trial
            getattr(self.watcher, what)(*news)

    def _end(
        self, identity: str, status: Status, reason: str | None,
        results: dict[str, Any] | None = None, place: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        if self._over(identity):
            return
        reason = reason and redact(reason)  # an error may quote the URI of a store or of the storage
        self._begin(identity)  # a worker may die before its trial started
        self._append(identity, END, status=status, reason=reason, results=results, **(place or {}))
        self.outcome.running.discard(identity)
        if status is Status.FINISHED:
            self.outcome.finished.add(identity)
            self.tidier.delete(identity)
        else:
            self.outcome.failed[identity] = reason or "unknown"
        self._tell("ended", identity, status, reason)


def _identity(trial: Any) -> str:
    return trial.config["case"]["identity"]


def _lighten(trial: Any) -> None:
    """Tune keeps the last result of every trial and, to its end, averages of each number: MLflow has them all."""
    with contextlib.suppress(Exception):  # fields of Tune's own: where they are called otherwise, it keeps them
        run = trial.run_metadata
        iteration = run.last_result.get("training_iteration")
        run.last_result = {"training_iteration": iteration}  # empty, Tune would ask for it
        run.metric_analysis, run.metric_n_steps = {}, {}


def _place(result: dict[str, Any]) -> dict[str, Any]:
    """Where a trial ran; a trainable may say on which device and how many threads."""
    device = result.get("device")
    return {"node": result.get("hostname"), "device": device if isinstance(device, str) else None}


def _reason(trial: Any) -> str:
    """The exception's own line, the last of the traceback in Tune's error file; Ray's page about memory in a line."""
    text = ""
    with contextlib.suppress(OSError, TypeError):
        text = Path(trial.error_file).read_text()
    lines = [line.strip() for line in (text or str(trial.get_error() or "")).splitlines() if line.strip()]
    if memory := re.search(r"low on memory.*? was (\S+ used / \S+) limit", " ".join(lines)):
        return f"its worker was ended, as its node was short of memory ({memory[1]}): {LESS_AT_ONCE}"
    return lines[-1][:1000] if lines else "the worker died"
