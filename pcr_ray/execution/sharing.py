"""Trials that another sweep of the same store runs at this moment: they are waited for, or taken over where it ends.

Who has a trial is said by its run in MLflow, which is RUNNING under a sweep that gives signs of life. A sweep itself is
run from one place at a time: two of one name would write into the same runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from pcr_ray.config import TrialConfig
from pcr_ray.console import console
from pcr_ray.errors import NotNowError
from pcr_ray.execution.plan import Plan
from pcr_ray.text import count, duration
from pcr_ray.tracking.courier import NEWS_EVERY
from pcr_ray.tracking.runs import Status, TrialRun
from pcr_ray.tracking.store import Store
from pcr_ray.tracking.sweep_run import SweepRun

LOOK_EVERY = 3.0  # seconds
PATIENCE = 3 * NEWS_EVERY  # seconds without a new sign of life after which a driver elsewhere is held for dead


def alone(name: str, store: Store, place: str, silent: Mapping[str, Any] | None = None) -> Mapping[str, Any] | None:
    """Refuses where the sweep of this name is driven from another place at this moment.

    A sign of life is one that changes while it is looked at: clocks of two machines need not agree. Gives the last
    sign of a driver that is held for dead; as `silent` it is not waited for again.
    """
    first = store.sweep(name)
    if first is None or first.status is not Status.RUNNING or first.progress.get("place", place) == place:
        return None
    if first.progress == silent:
        return silent
    host = first.progress.get("host", "another machine")
    text = f"sweep '{name}' is marked as running on {host}: looking for signs of life, up to {duration(PATIENCE)} …"
    console.print(text, markup=False, soft_wrap=True)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        time.sleep(LOOK_EVERY)
        now = store.sweep(name)
        if now is None or now.status is not Status.RUNNING:
            return None
        if now.progress != first.progress:
            raise NotNowError(
                f"sweep '{name}' of this store is being run on {host}: wait for it (pcr-ray status {name} tells how it "
                f"fares), or run it under another name (--set name=...), which shares its trials"
            )
    return first.progress


def rounds(plan: Plan, sweep_run: SweepRun, tracker: Any, run: Callable[[Mapping[str, TrialConfig]], None]) -> None:
    """Runs what nobody else runs, then waits for the rest; what others leave half done is run here in the end."""
    waiting = {i for i in plan.todo.keys() - plan.again if _elsewhere(plan.runs.get(i), sweep_run)}
    mine = plan.todo.keys() - waiting
    try:
        while mine or waiting:
            if mine:
                run({i: trial for i, trial in plan.todo.items() if i in mine})
                if tracker.outcome.asked or not mine <= tracker.outcome.known:  # interrupted, if only in the last step
                    return
            waiting |= tracker.elsewhere() & plan.todo.keys()
            mine = _wait(waiting, plan, sweep_run, tracker) if waiting else set()
            waiting -= mine | tracker.outcome.known - tracker.elsewhere()
            mine -= tracker.outcome.known  # of those only the delivery was waiting
    except KeyboardInterrupt:
        return


def _wait(waiting: set[str], plan: Plan, sweep_run: SweepRun, tracker: Any) -> set[str]:
    """Until one of them is free, or all have ended; the free ones."""
    store, left = sweep_run.store, set(waiting)
    told = False
    while left:
        try:
            runs = store.trials(left)
            busy = {i for i in left if _elsewhere(runs.get(i), sweep_run)}
            ended = {i: r for i, r in runs.items() if i not in busy and r.status in (Status.FINISHED, Status.FAILED)}
            sweep_run.claim(ended.values())
        except Exception:  # the store is away: later
            time.sleep(LOOK_EVERY)
            continue
        for run in ended.values():
            tracker.ended_elsewhere(run)
        if free := left - busy - ended.keys():
            for identity in free:
                tracker.release(identity)
            return free
        left = busy
        if left and not told:
            names = sorted({runs[i].sweep for i in left})
            text = f"waiting for {count(len(left), 'trial')} that sweep {' and '.join(names)} of the same store runs"
            console.print(text, markup=False, soft_wrap=True)
            told = True
        if left:
            time.sleep(LOOK_EVERY)
    return set()


def _elsewhere(run: TrialRun | None, sweep_run: SweepRun) -> bool:
    if run is None or run.status is not Status.RUNNING or run.sweep == sweep_run.study.name:
        return False
    return sweep_run.store.alive(run.sweep)
