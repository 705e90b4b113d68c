"""Drives one sweep on this machine or a cluster: from the plan to the last delivered number."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pcr_ray import plugins
from pcr_ray.config import TrialConfig
from pcr_ray.console import console
from pcr_ray.datasets import available, known_fingerprint, prepare
from pcr_ray.errors import NotNowError
from pcr_ray.execution import cluster, folders, forecast, gpu, nodes, order, search, sharing, signals, tuner, watch
from pcr_ray.execution.options import RunOptions
from pcr_ray.execution.plan import Plan, make_plan
from pcr_ray.execution.progress import Progress
from pcr_ray.execution.storage import Tidier, marked
from pcr_ray.provenance import packages
from pcr_ray.study.load import Study
from pcr_ray.study.schema import Resources
from pcr_ray.study.search import describe, searched
from pcr_ray.text import count, redact
from pcr_ray.tracking.courier import Courier
from pcr_ray.tracking.runs import Status, TrialRun
from pcr_ray.tracking.spool import Spool
from pcr_ray.tracking.store import Store
from pcr_ray.tracking.sweep_run import SweepRun
from pcr_ray.tracking.uri import tracking_uri

RERUN_ALL = ".rerun-all"  # in the sweep's folder, until all of it has run again
LAST_WORDS = 20.0  # seconds for MLflow when the cluster's head is gone


@dataclass(frozen=True)
class Result:
    """How a sweep stands at the end of an invocation."""

    failed: dict[str, str]  # identity -> reason
    stopped: bool  # trials are left to run
    asked: bool  # to stop, if only after the last trial's end
    delivered: bool  # every number is in MLflow
    sweep_run: SweepRun
    known: Mapping[str, TrialRun]  # what stood for each trial in the record before
    ran: bool  # this invocation ran trials

    @property
    def status(self) -> Status:
        return (
            Status.KILLED if self.stopped or not self.delivered else Status.FAILED if self.failed else Status.FINISHED
        )


def preview(study: Study, options: RunOptions) -> None:
    """The plan and a forecast; refuses what a run would refuse, and leaves nothing behind."""
    store = Store(tracking_uri(options.tracking_uri))
    if searched(study.spec.search):
        study = _next_of_search(study, store, options.rerun)
    if store.missing_file:  # do not make a database for a look
        plan = make_plan(study, None, options.root, rerun=options.rerun)
    else:
        store.open()
        with store.guarded():
            plan = make_plan(study, store, options.root, rerun=options.rerun)
    _show(plan, store)
    resources = study.spec.resources
    console.print(f"per trial: {resources}")
    if plan.todo:
        console.print(forecast.describe(plan, options), soft_wrap=True)
    tuner.check_trainable(study.spec.trainable)
    folders.check(options, study.name)
    if not options.address:
        cluster.fit(resources, cluster.local_nodes(resources))
        for trial in _datasets(plan.todo):
            available(trial, options.root, study.place)


def _next_of_search(study: Study, store: Store, rerun: str | None) -> Study:
    """The round of trials that comes next, or the final trials where all settings are chosen."""
    console.print(describe(study), markup=False, soft_wrap=True)
    if not store.missing_file:
        store.open()
    try:
        with store.guarded():
            # Of `changed` and `all` the rounds that have ended are not shown: there may be nothing to do in them.
            return search.settle(study, store, rerun=rerun if rerun == "failed" else None)
    except search.Unfinished as error:
        console.print(f"then {count(len(study.trials), 'trial')} with what it finds", markup=False)
        return error.round


def execute(study: Study, store: Store, options: RunOptions, *, scheduler: Any = None) -> Result:
    """Run what is left of a study. The record changes only once everything that can be refused was not."""
    folder = options.folder(study.name)
    looking = "making a new record, which takes a while" if store.missing_file else "looking up what is done"
    console.print(f"{looking}: {redact(store.uri)} …", soft_wrap=True, markup=False)
    cluster.quiet(options.verbose)
    tuner.check_trainable(study.spec.trainable)
    if not options.address:
        cluster.fit(study.spec.resources, cluster.local_nodes(study.spec.resources))
        if store.missing_file:  # what will be refused makes no database
            for trial in _datasets(study.trials):
                available(trial, options.root, study.place)
    store.open()
    with store.guarded():
        silent = sharing.alone(study.name, store, folders.place(folder))
    spool = Spool(folder / "spool")
    sweep_run = SweepRun(store, study)
    courier = Courier(spool, store, study.name, lambda: sweep_run.run_id)
    with store.guarded():
        courier.deliver_all()
        stamp = folder / RERUN_ALL
        since = rerun_since(stamp) if options.rerun == "all" else math.inf
        plan = make_plan(study, store, options.root, spooled=spool.finished(), rerun=options.rerun, since=since)
    _show(plan, store)
    if plan.todo:
        if not options.address:
            for trial in _datasets(plan.todo):
                prepare(trial, options.root, study.place)  # absent data is one error before anything starts
        tuner.load_trainable(study.spec.trainable)
    failed, stopped, asked = dict(plan.failed), False, False
    with sweep_run.killed_on_error(), courier, Tidier(options.checkpoints(study.name), spool) as tidier:
        if not stamp.exists():  # else half-done trials of `--rerun all` may be among them, as of other code
            tidier.clear(plan.done - plan.outdated.keys())
        if plan.todo:

            def begin() -> None:
                with store.guarded():
                    sharing.alone(study.name, store, folders.place(folder), silent)  # Ray's start may take minutes
                    _begin(plan, sweep_run, options)

            outcome = _launch(plan, options, spool, courier, sweep_run, tidier, begin, scheduler)
            failed |= outcome.failed
            stopped = not plan.todo.keys() <= outcome.finished | outcome.failed.keys()
            asked = outcome.asked
        else:
            with store.guarded():
                _begin(plan, sweep_run, options)
        if not stopped:
            stamp.unlink(missing_ok=True)
        with signals.patience(stopped or asked, "their record") as heard:
            delivered = courier.close(options.flush_seconds)
    if not delivered:
        stopped |= _tell_undelivered(spool, courier)
    return Result(failed, stopped, heard.asked, delivered, sweep_run, plan.runs, bool(plan.todo))


def _tell_undelivered(spool: Spool, courier: Courier) -> bool:
    """Whether numbers are in neither place; the checkpoints of their trials are kept."""
    lost = spool.unwritten()
    if lost:
        console.print(
            f"the last numbers of {count(len(lost), 'trial')} could be neither written to {spool.folder} "
            f"({spool.trouble}) nor delivered to MLflow: make room and run the same command again",
            soft_wrap=True, markup=False,
        )  # fmt: skip
    console.print(
        f"MLflow is away ({courier.trouble}): the numbers wait in {spool.folder}, and there is no report yet; "
        "when MLflow is back, run the same command again: it delivers them and writes the report",
        soft_wrap=True, markup=False,
    )  # fmt: skip
    return bool(lost)


def _begin(plan: Plan, sweep_run: SweepRun, options: RunOptions) -> None:
    study = plan.study
    prints = {trial.dataset: known_fingerprint(trial, options.root, study.place) for trial in _datasets(study.trials)}
    place = folders.place(options.folder(study.name))
    sweep_run.begin(plan.runs.values(), {name: text for name, text in prints.items() if text}, place)


def rerun_since(stamp: Path) -> float:
    """When a `--rerun all` began: interrupted, it goes on with what it has not run again yet."""
    with contextlib.suppress(OSError, ValueError):  # none, or one that a full disk cut short
        return float(stamp.read_text())
    now = time.time() * 1000
    stamp.write_text(str(now))
    return now


def _launch(
    plan: Plan, options: RunOptions, spool: Spool, courier: Courier, sweep_run: SweepRun, tidier: Tidier,
    begin: Callable[[], None], scheduler: Any,
) -> Any:  # fmt: skip
    from pcr_ray.execution.callback import TuneTracker

    study, storage = plan.study, options.checkpoints(plan.study.name)
    with marked(storage):
        pass  # refused here where it cannot be used
    shipped = packages(study.spec.trainable) if options.ship else []
    if options.address:  # its nodes may not have them; they are small
        shipped += plugins.files(study.plugins)
    where = f"joining the Ray cluster at {options.address}" if options.address else "starting Ray on this machine"
    console.print(f"{where} …", markup=False, soft_wrap=True)
    # Stop signals are caught here too, for callers that do not.
    with cluster.connected(options.address, options.verbose, shipped), signals.caught():
        sides: list[Any] = []  # the tracker and the view, once there are

        def lost() -> None:
            _last_words(sides, courier, sweep_run, options)

        with watch.head(lost, local=not options.address):
            resources = cluster.settle(study.spec.resources, options.address, options.wait)
            resources = gpu.refined(study.spec.resources, resources, plan.todo.values())
            if options.address:
                nodes.check(study, plan.todo.values(), storage, options.root, resources)
            at_once = min(cluster.concurrency(resources, options.max_concurrent), len(plan.todo))
            console.print(f"running {count(at_once, 'trial')} at once, each with {resources}")
            begin()
            courier.start()
            view = Progress(console, plan, courier)
            place = folders.place(options.folder(study.name))
            courier.news = lambda: {"place": place, **view.news()}
            tracker = TuneTracker(plan, spool, courier, tidier, view, options.root)
            sides += [tracker, view]
            _run(plan, options, resources, at_once, tracker, view, sweep_run, scheduler)
    return tracker.outcome


def _run(
    plan: Plan, options: RunOptions, resources: Resources, at_once: int, tracker: Any, view: Progress,
    sweep_run: SweepRun, scheduler: Any,
) -> None:  # fmt: skip
    """All trials to their ends, or until a stop signal."""

    def started() -> bool:
        return bool(tracker.outcome.running or tracker.outcome.known)

    def run(trials: Mapping[str, TrialConfig]) -> None:
        try:
            arranged = order.arrange(trials, at_once, forecast.work)
            with signals.caught(), watch.start(started, resources, options.wait):
                tuner.run(plan.study, arranged, options, resources, tracker, scheduler)
        finally:
            tracker.stop_running()

    with view, _stalled(plan, options, tracker), sweep_run.watched():
        sharing.rounds(plan, sweep_run, tracker, run)


def _stalled(plan: Plan, options: RunOptions, tracker: Any) -> contextlib.AbstractContextManager[None]:
    """The watch over trials that do not get on. Without an option their forecasts say how long is too long."""
    if options.stall_minutes:
        limit = 60 * options.stall_minutes
        return watch.stalled(tracker.idle, limit, lambda _: limit, tracker.end_stalled)
    speeds = forecast.stored_speeds(plan.runs.values())
    return watch.stalled(
        tracker.idle, forecast.LEAST_PATIENCE, lambda i: forecast.patience(plan.todo[i], speeds), tracker.end_stalled
    )


def _last_words(sides: Sequence[Any], courier: Courier, sweep_run: SweepRun, options: RunOptions) -> None:
    """The head is gone, and Ray will end this process 60 s later with a line of its own: be done before."""
    if sides:
        tracker, view = sides
        view.close()
        tracker.stop_running()
    what = "the head of the Ray cluster" if options.address else "the Ray of this sweep"
    console.print(
        f"{what} is gone: everything up to the last finished task of each trial is safe; "
        "run the same command again to continue", soft_wrap=True,
    )  # fmt: skip
    end = threading.Timer(LAST_WORDS, os._exit, [NotNowError.exit_code])  # MLflow may be gone with the head
    end.daemon = True
    end.start()
    courier.close(LAST_WORDS)
    with contextlib.suppress(Exception):
        if sweep_run.begun:
            sweep_run.close(Status.KILLED)
    os._exit(NotNowError.exit_code)


def _show(plan: Plan, store: Store) -> None:
    console.print(f"[bold]{plan.study.name}[/]: {plan.describe()}", soft_wrap=True)
    if plan.study.collapsed:
        console.print(f"{count(plan.study.collapsed, 'combination')} left out: the same trials as others")
    if plan.outdated:
        console.print("  --rerun changed runs trials of other code again")
    console.print(f"record: {redact(store.uri)}", soft_wrap=True, markup=False)


def _datasets(trials: dict[str, TrialConfig]) -> list[TrialConfig]:
    """One trial of every dataset in use."""
    return list({(t.dataset, t.folder, t.image_size): t for t in trials.values()}.values())
