"""How far sweeps are, from any machine that reaches the store: pcr-ray status [NAME], pcr-ray list"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from rich.table import Table

from pcr_ray import plugins
from pcr_ray.console import Parser, console, run
from pcr_ray.errors import InputError
from pcr_ray.execution.board import LEGEND, Board, bar_of
from pcr_ray.text import count, duration, grouped
from pcr_ray.tracking.runs import Status, SweepInfo, TrialRun

FAILURES = 10  # reasons that are shown


def _options(argv: Sequence[str], name: str, description: str, sweep: bool) -> argparse.Namespace:
    p = Parser(prog=f"pcr-ray {name}", description=description)
    if sweep:
        p.add_argument("sweep", nargs="?", metavar="NAME|FILE", help="a sweep (default: the one last heard of)")
        plugins.add_argument(p)
    p.add_argument("--tracking-uri", metavar="URI", help="MLflow (default: MLFLOW_TRACKING_URI, else mlflow.db here)")
    return p.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    options = _options(argv, "status", "Show how far a running or ended sweep is, and what failed.", True)
    plugins.load(options.plugins)
    from pcr_ray import api

    store = api.existing_store(options.tracking_uri)
    with store.guarded():
        sweeps = store.sweeps()
        if not options.sweep and not sweeps:
            raise InputError(f"no sweep was run with {store} yet")
        study = api.look_up(options.sweep or sweeps[0].name, store)
        runs = store.trials(study.trials.keys())
    sweep = next((s for s in sweeps if s.name == study.name), None)
    board = Board(study)
    for identity, trial in runs.items():
        if trial.finished:
            board.add(identity, trial.metrics)
        elif trial.status is Status.FAILED:
            board.fail(identity)
    alive = sweep is not None and sweep.alive(time.time())
    running = sweep.progress.get("running", []) if sweep and alive else []
    board.run(i for i in running if i not in runs or not runs[i].finished)
    console.print(f"[bold]{study.name}[/]: {_state(sweep)}", soft_wrap=True)
    _counts(len(study.trials), runs)
    for table in board.tables(console.width):
        console.print(table)
    console.print(LEGEND, style="dim")
    _failures({study.describe(i): run for i, run in runs.items() if run.status is Status.FAILED})
    return 0


def _state(sweep: SweepInfo | None) -> str:
    """`running on node01, …`, `finished 3 min ago`, or that it died."""
    now = time.time()
    if sweep is None:
        return "not run yet"
    ago = f"{duration(now - sweep.touched / 1000)} ago"
    if sweep.status is not Status.RUNNING:
        words = {Status.FINISHED: "finished {}", Status.FAILED: "ended {}, some trials failed"}
        stopped = "stopped {} before all trials were done; run the same command again to continue"
        return words.get(sweep.status, stopped).format(ago)
    if not sweep.alive(now):
        return f"no sign of life since {ago}: its process may have been killed; run the same command again to continue"
    told = sweep.progress
    if not told:
        return f"running, began {ago}"
    last = f"; last: {told['last']}" if told.get("last") else ""
    return f"running on {told['host']}: {told['headline']}{last} (told {ago})"


def _counts(total: int, runs: dict[str, TrialRun]) -> None:
    done = sum(run.finished for run in runs.values())
    failed = sum(run.status is Status.FAILED for run in runs.values())
    if console.is_terminal:
        console.print(bar_of(done, total, console.width))
    console.print(f"{done} of {count(total, 'trial')} done, {failed} failed, {total - done - failed} left")


def _failures(failed: dict[str, TrialRun]) -> None:
    lines = grouped({name: trial.reason or "unknown" for name, trial in failed.items()})
    for line in lines[:FAILURES]:
        console.print(f"failed: {line}", markup=False, soft_wrap=True)
    if len(lines) > FAILURES:
        console.print(f"… and {len(lines) - FAILURES} more reasons")
    if failed:
        console.print("to try failed trials again, add --rerun failed to the sweep's command")


def sweeps(argv: Sequence[str]) -> int:
    options = _options(argv, "list", "List the sweeps of a store.", False)
    from pcr_ray import api

    store = api.existing_store(options.tracking_uri)
    with store.guarded():
        found = store.sweeps()
    console.print(f"record: {store}", markup=False, soft_wrap=True)
    if not found:
        console.print("no sweep was run with it yet")
        return 0
    table = Table()
    for name in ("sweep", "state", "done", "failed", "best"):
        table.add_column(name, justify="right" if name in ("done", "failed") else "left")
    for sweep in found:
        told = sweep.progress if sweep.alive(time.time()) else {}  # its metrics are those of its last end
        numbers = [told.get(key, sweep.metrics.get(key)) for key in ("trials_done", "trials", "trials_failed")]
        done, total, failed = ("?" if n is None else f"{n:.0f}" for n in numbers)
        table.add_row(sweep.name, _short(sweep), f"{done}/{total}", failed, sweep.leader)
    console.print(table)
    console.print("`pcr-ray status NAME` shows one of them, `pcr-ray ui NAME` opens it in the browser")
    return 0


def _short(sweep: SweepInfo) -> str:
    now = time.time()
    if sweep.status is Status.RUNNING:
        return "running" if sweep.alive(now) else "died?"
    words = {Status.FINISHED: "finished", Status.FAILED: "some failed"}
    return f"{words.get(sweep.status, 'stopped')}, {duration(now - sweep.touched / 1000)} ago"


if __name__ == "__main__":
    sys.exit(run(main))
