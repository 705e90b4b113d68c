"""The main job: python -m pcr_ray.sweep FILE. From YAML to Ray Tune to MLflow to an answer."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pcr_ray.config import TrialConfig
from pcr_ray.console import console, run
from pcr_ray.datasets import data_root, prepare
from pcr_ray.errors import InputError, NotNowError
from pcr_ray.execution.progress import Progress
from pcr_ray.study import load as sweepfile
from pcr_ray.study.load import Sweep
from pcr_ray.study.schema import Resources
from pcr_ray.text import duration, redact
from pcr_ray.tracking.spool import Courier, Spool
from pcr_ray.tracking.store import Record, tracking_uri
from pcr_ray.tracking.sweep_run import ParentRun

ALL_DONE, SOME_FAILED, INCOMPLETE = 0, 1, NotNowError.exit_code
FLUSH_SECONDS = float(
    os.environ.get("PCR_RAY_FLUSH_SECONDS", "60")
)  # how long the end of a sweep waits for a tracking server that is away


@dataclass
class Plan:
    """What there is to do."""

    sweep: Sweep
    done: set[str]
    failed: dict[str, str]  # failed before, and not to be tried again
    todo: dict[str, TrialConfig]


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="pcr-ray sweep",
        description="Run a sweep file; what is already done in MLflow is not run again.",
        epilog="exit codes: 0 all done, 1 some trials failed, 2 bad input, 75 stopped before all were done",
    )
    p.add_argument("file", metavar="FILE", help="a sweep file, such as sweeps/quickstart.yaml")
    p.add_argument("--dry-run", action="store_true", help="show the plan and a forecast, run nothing")
    p.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="override a key of the file: --set fixed.dataset=digits --set grid.seed='[0,1]'",
    )  # fmt: skip
    p.add_argument("--address", metavar="ADDR", help="an existing Ray cluster: auto or HOST:PORT")
    p.add_argument("--tracking-uri", metavar="URI", help="MLflow (default: MLFLOW_TRACKING_URI, else mlflow.db here)")
    p.add_argument("--storage", metavar="PATH", help="where checkpoints go; on several nodes a path that all share")
    p.add_argument("--data-root", metavar="DIR", help="where datasets are (default: PCR_RAY_DATA, else a cache)")
    p.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="where reports go (default: runs)")
    p.add_argument("--max-concurrent", type=int, metavar="N", help="at most N trials at once")
    p.add_argument("--retry-failed", action="store_true", help="also run trials that failed in an earlier run")
    p.add_argument("--compile", action="store_true", help="torch.compile the backbones")
    p.add_argument("--verbose", action="store_true", help="show Ray's own output too")
    return p


def main(argv: Sequence[str]) -> int:
    options = parser().parse_args(argv)
    if options.max_concurrent is not None and options.max_concurrent < 1:
        raise InputError(f"--max-concurrent {options.max_concurrent}: needs 1 or more")
    sweep = sweepfile.load(options.file, options.set)
    record = Record(tracking_uri(options.tracking_uri))
    if options.dry_run:
        return _dry_run(sweep, record, options)
    folder = options.out.absolute() / sweep.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        lock.acquire(timeout=0)
    except Timeout:
        raise NotNowError(
            f"sweep '{sweep.name}' is being run by another process (it holds {folder / '.lock'}): "
            "wait for it or stop it"
        ) from None
    except OSError as error:
        raise InputError(f"--out {options.out}: cannot be used: {error}") from None
    with lock, _stop_signals():
        try:
            return _run(sweep, record, options, folder)
        except KeyboardInterrupt:  # outside Tune, which handles it itself
            console.print("stopped: run the same command again to continue")
            return INCOMPLETE


@contextlib.contextmanager
def _stop_signals() -> Iterator[None]:
    """SIGTERM and SIGUSR1 stop a sweep as Ctrl-C does. Tune has handlers of its own for SIGINT and SIGUSR1."""

    def interrupt(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    before = {s: signal.signal(s, interrupt) for s in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def make_plan(sweep: Sweep, record: Record, spooled: set[str], retry_failed: bool) -> tuple[Plan, dict[str, Any]]:
    """Done is done: whichever sweep finished a trial, it is not run again."""
    known = record.trials()
    done, failed, todo = set(), {}, {}
    for identity, trial in sweep.trials.items():
        found = known.get(identity)
        if identity in spooled or (found and found.info.status == "FINISHED"):
            done.add(identity)
        elif found and found.info.status == "FAILED" and not retry_failed:
            failed[identity] = found.data.tags.get("pcr_ray.reason", "")
        else:
            todo[identity] = trial
    return Plan(sweep, done, failed, todo), known


def _dry_run(sweep: Sweep, record: Record, options: argparse.Namespace) -> int:
    from pcr_ray.execution import forecast

    known: dict[str, Any] = {}
    if record.missing_file:  # do not make a database for a look
        plan = Plan(sweep, set(), {}, dict(sweep.trials))
    else:
        with record.guarded():
            plan, known = make_plan(sweep, record, set(), options.retry_failed)
    _show_plan(plan, record)
    resources = sweep.spec.resources
    wanted = resources if isinstance(resources, Resources) else Resources()
    console.print(f"each trial: {wanted.cpu:g} CPU, " + ("auto GPU" if resources == "auto" else f"{wanted.gpu:g} GPU"))
    speeds = forecast.stored_speeds(known.values())
    guesses = [forecast.seconds(t, speeds) for t in plan.todo.values()]
    total = sum(g for g in guesses if g is not None)
    cores = max(1, int((os.cpu_count() or 1) / wanted.cpu))
    at_once = min(options.max_concurrent or cores, cores, len(guesses))
    if guesses and None not in guesses:
        sources = {forecast.key(t) in speeds for t in plan.todo.values()}
        names = {True: "earlier trials' speed", False: "a short calibration on one CPU thread here"}
        source = "from " + " and ".join(names[s] for s in sorted(sources, reverse=True))
        text = f"forecast: {duration(total)} of work, {source}"
        longest = max(g for g in guesses if g is not None)
        here = f"; about {duration(max(total / at_once, longest))} with {at_once} at once"
        console.print(text + ("" if options.address else here), soft_wrap=True)
    elif guesses:
        console.print("forecast: not possible before the image folder was read once")
    return 0


def _show_plan(plan: Plan, record: Record) -> None:
    sweep = plan.sweep
    console.print(
        f"[bold]{sweep.name}[/]: {len(sweep.trials)} trials over {', '.join(sweep.varying) or 'nothing'}; "
        f"{len(plan.done)} done already, {len(plan.failed)} failed before, {len(plan.todo)} to run",
        soft_wrap=True,
    )
    if sweep.collapsed:
        console.print(f"{sweep.collapsed} combinations left out: the same trials as others")
    console.print(f"record: {redact(record.uri)}", soft_wrap=True, markup=False)


def _run(sweep: Sweep, record: Record, options: argparse.Namespace, folder: Path) -> int:
    from pcr_ray.execution import tuner as launch

    launch.load_trainable(sweep.spec.trainable)
    spool = Spool(folder / "spool")
    if not options.address:
        with record.guarded():
            ahead, _ = make_plan(sweep, record, spool.finished(), options.retry_failed)
        _prepare_data(ahead.todo, data_root(options.data_root))  # before the record says that this sweep runs
    with record.guarded():
        parent = ParentRun(record, sweep)
        courier = Courier(spool, record, sweep.name, parent.run_id)
        courier.deliver_all()
        plan, known = make_plan(sweep, record, spool.finished(), options.retry_failed)
        parent.tidy(known)
    _show_plan(plan, record)
    failed, stopped = dict(plan.failed), False
    if plan.todo:
        try:
            outcome = _launch(plan, options, folder, spool, courier)
        except BaseException:
            with contextlib.suppress(Exception):  # the error matters more than the parent's status
                parent.close("KILLED")
            raise
        failed |= outcome.failed
        stopped = len(outcome.finished) + len(outcome.failed) < len(plan.todo)
    code = INCOMPLETE if stopped else SOME_FAILED if failed else ALL_DONE
    if not courier.close(FLUSH_SECONDS):
        console.print(
            f"MLflow is away ({courier.trouble}): the numbers wait in {spool.folder} and are delivered "
            "when this command is run again",
            soft_wrap=True, markup=False,
        )  # fmt: skip
        return code
    try:
        with record.guarded():
            _conclude(sweep, record, parent, folder, code, options)
    except InputError as error:  # the trials are done and recorded: only the report is not
        console.print(f"no report: {error}\n  python -m pcr_ray.report {sweep.name} writes it", markup=False)
    return code


def _launch(plan: Plan, options: argparse.Namespace, folder: Path, spool: Spool, courier: Courier) -> Any:
    from pcr_ray.execution import forecast
    from pcr_ray.execution import tuner as launch
    from pcr_ray.execution.callback import TuneTracker

    sweep, spec = plan.sweep, plan.sweep.spec
    root = data_root(options.data_root)
    storage = options.storage or str(folder / "checkpoints")
    if "://" not in storage:
        storage = str(Path(storage).absolute())
        try:
            Path(storage).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--storage {storage}: cannot be used: {error}") from None
    how = launch.Launch(
        name=spec.name,
        trainable=spec.trainable,
        resources=spec.resources if isinstance(spec.resources, Resources) else None,
        retries=spec.retries,
        storage=storage,
        data_root=str(root),
        address=options.address,
        max_concurrent=options.max_concurrent,
        compile=options.compile,
        verbose=options.verbose,
    )
    # Again inside: ray.init puts its own, deadly, handler of SIGTERM over ours.
    with launch.cluster(options.address, options.verbose), _stop_signals():
        resources = launch.settle_resources(how.resources)
        console.print(
            f"running {min(launch.concurrency(resources, how.max_concurrent), len(plan.todo))} trials at once, "
            f"{resources.cpu:g} CPU" + (f" and {resources.gpu:g} GPU" if resources.gpu else "") + " each"
        )
        if blind := launch.nodes_without(storage):
            console.print(
                f"warning: {storage} is not shared with {', '.join(blind)}: a trial that moves there starts over"
            )
        names = {i: sweep.trial_name(i) for i in plan.todo}
        courier.start()
        work = {i: forecast.work(t) for i, t in plan.todo.items()}
        counts = len(plan.done), len(plan.failed), len(sweep.trials)
        view = Progress(console, plan.todo, work, spec.report.series, *counts, courier)
        tracker = TuneTracker(plan.todo, names, spool, courier, storage, view)
        with view:
            try:
                launch.run(how, resources, plan.todo, tracker)
            finally:
                tracker.stop_running()
    return tracker.outcome


def _prepare_data(trials: dict[str, TrialConfig], root: Path) -> None:
    """Absent data is one error before anything starts, not one a trial."""
    seen = set()
    for trial in trials.values():
        key = (trial.dataset, trial.folder, trial.image_size)
        if key not in seen:
            seen.add(key)
            prepare(trial, root)


def _conclude(
    sweep: Sweep, record: Record, parent: ParentRun, folder: Path, code: int, options: argparse.Namespace
) -> None:  # fmt: skip
    from pcr_ray import report  # pandas and matplotlib: a dry run does without
    from pcr_ray.analysis.results import collect

    answer = collect(sweep, record)
    report.write(answer, record, folder)
    parent.conclude(folder, {ALL_DONE: "FINISHED", SOME_FAILED: "FAILED"}.get(code, "KILLED"))
    report.show(answer)
    console.print(f"report: {folder / 'report.html'}", soft_wrap=True, markup=False)
    where = f" --tracking-uri {redact(options.tracking_uri)}" if options.tracking_uri else ""
    console.print(f"compare in the browser: pcr-ray ui{where}", soft_wrap=True, markup=False)
    if code == INCOMPLETE:
        console.print("stopped before all trials were done: run the same command again to continue")


if __name__ == "__main__":
    sys.exit(run(main))
