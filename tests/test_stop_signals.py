"""Stop signals where Tune does not listen: between its rounds, during the delivery and during the report."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pcr_ray import api, sweep
from pcr_ray.console import run
from pcr_ray.execution import driver, sharing, signals
from pcr_ray.execution.callback import TuneTracker
from pcr_ray.execution.options import RunOptions
from pcr_ray.study import load as study_files
from pcr_ray.tracking.runs import Status
from pcr_ray.tracking.sweep_run import SweepRun
from tests.sweeping import environment


def deaf(*_: object) -> None:
    """As Tune's own handlers are once it has ended."""


def tracker_of(told: list[str]) -> TuneTracker:
    nothing: Any = None
    watcher: Any = SimpleNamespace(stopping=lambda: told.append("stopping"))
    return TuneTracker(nothing, nothing, nothing, nothing, watcher, Path())


def test_ctrl_c_between_two_rounds_of_tune_is_heard_and_in_the_second_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    tracker = tracker_of(told)
    own = signal.getsignal(signal.SIGINT)

    def tune(*_: object) -> None:
        for number in (signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, deaf)
        tracker.on_step_begin(0, [])
        signal.raise_signal(signal.SIGINT)

    def rounds(plan: Any, sweep_run: Any, tracker: Any, run: Any) -> None:
        for n in (1, 2):
            run({})
            assert len(told) == n and tracker.outcome.asked and signal.getsignal(signal.SIGINT) is own
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(driver.tuner, "run", tune)
    monkeypatch.setattr(driver.sharing, "rounds", rounds)
    monkeypatch.setattr(driver.watch, "start", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(driver, "_stalled", lambda *_: contextlib.nullcontext())
    parts: Any = SimpleNamespace(study=None, watched=contextlib.nullcontext, wait=0)
    view: Any = contextlib.nullcontext()
    driver._run(parts, parts, parts, 1, tracker, view, parts, None)


def test_asked_to_stop_in_tunes_last_step_a_sweep_does_not_wait_for_another_ones_trials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tracker = tracker_of([])
    trials: Any = {"mine": None, "theirs": None}

    def run(arranged: Any) -> None:
        assert arranged.keys() == {"mine"}
        tracker.outcome.finished.add("mine")
        tracker.outcome.asked = True

    plan: Any = SimpleNamespace(todo=trials, again=set(), runs={"theirs": "running"})
    monkeypatch.setattr(sharing, "_elsewhere", lambda run, sweep_run: run == "running")
    monkeypatch.setattr(sharing, "_wait", lambda *_: pytest.fail("it waits"))
    sharing.rounds(plan, None, tracker, run)  # type: ignore[arg-type]


def test_sigterm_stops_also_where_ctrl_c_is_ignored_as_behind_a_scripts_ampersand() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            with pytest.raises(KeyboardInterrupt), signals.caught():
                signal.raise_signal(number)
            with signals.caught(), signals.patience(False, "it") as heard:
                signal.raise_signal(number)
                assert heard.asked
                with pytest.raises(KeyboardInterrupt):
                    signal.raise_signal(number)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("ctrl_c", [signal.default_int_handler, signal.SIG_IGN])
def test_a_signal_that_comes_where_python_drops_exceptions_stops_all_the_same(ctrl_c: Any) -> None:
    class Freed:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGINT, ctrl_c)
    try:
        with pytest.raises(KeyboardInterrupt), signals.caught():
            Freed()
            time.sleep(20)
            pytest.fail("the signal is lost")
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_before_anything_has_begun_says_that_the_same_command_continues(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweep, "load", lambda *_: signal.raise_signal(number))
    assert run(sweep.main, ["sweeps/quickstart.yaml"]) == 75
    assert capsys.readouterr().out.strip() == signals.STOPPED


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT"])
@pytest.mark.parametrize("when", ["caught in code from a string", "while Python shuts down"])
def test_what_a_signal_does_at_the_end_leaves_the_exit_code(name: str, when: str, tmp_path: Path) -> None:
    code = f"""
import atexit, os, signal
from pcr_ray import console
from pcr_ray.execution import signals

def main(argv):
    with signals.caught():
        try:
            exec("import signal; signal.raise_signal(signal.{name})")
        except KeyboardInterrupt:
            return 75

def clean_up():
    print("cleaned up", flush=True)
    os.kill(os.getpid(), signal.{name})

if "{when}" == "while Python shuts down":
    main = lambda argv: 75
    atexit.register(clean_up)
console.leave(console.run(main, []))
"""
    (tmp_path / "command.py").write_text(code)  # as `python -m`: only there Python notes a Ctrl-C that was caught
    done = subprocess.run(
        [sys.executable, "-m", "command"], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    said = "cleaned up\n" if when == "while Python shuts down" else ""
    assert (done.returncode, done.stdout, done.stderr) == (75, said, "")


def test_a_print_that_the_signal_interrupts_does_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def reentrant(*_: object, **__: object) -> None:
        raise RuntimeError("reentrant call inside <_io.BufferedWriter>")

    monkeypatch.setattr(signals.console, "print", reentrant)
    with signals.patience(False, "it") as heard:
        signal.raise_signal(signal.SIGINT)
    assert heard.asked


class Recorded(SweepRun):
    def __init__(self, begun: bool) -> None:
        self.begun, self._run_id = begun, "1"  # a run that is known and not begun here may be another driver's
        self.closed: list[Status] = []

    def close(self, status: Status) -> None:
        self.closed.append(status)


@pytest.mark.parametrize("stopped", [False, True])
def test_the_first_signal_in_the_report_lets_it_be_finished_unless_the_sweep_was_stopped(
    stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = []

    def conclude(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        written.append("report")
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    run = Recorded(begun=True)
    result = driver.Result({}, stopped, stopped, True, run, {}, ran=True)
    study: Any = SimpleNamespace(name="made", spec=SimpleNamespace(search=None))
    monkeypatch.setattr(driver, "execute", lambda *_: result)
    monkeypatch.setattr(api, "_conclude", conclude)
    options = RunOptions(out=str(tmp_path), tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    before = signal.getsignal(signal.SIGINT)
    assert api.run(study, options) is (Status.KILLED if stopped else Status.FINISHED)
    assert signal.getsignal(signal.SIGINT) is before
    assert written == ([] if stopped else ["report"])
    assert run.closed == ([Status.KILLED] if stopped else []), "what is not concluded is not left RUNNING"
    assert ("Ctrl-C again quits at once" in capsys.readouterr().out) is not stopped


def test_what_ends_early_is_not_left_running_and_before_it_has_begun_stays_as_it_was() -> None:
    for begun, closed in ((False, []), (True, [Status.KILLED])):
        run = Recorded(begun)
        with pytest.raises(KeyboardInterrupt), run.killed_on_error():
            raise KeyboardInterrupt
        assert run.closed == closed


def test_asked_to_stop_while_a_round_of_a_search_is_delivered_no_further_round_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds: list[str] = []

    def execute(study: Any, *_: object) -> driver.Result:
        rounds.append(study.name)
        with signals.patience(False, "their record") as heard:
            signal.raise_signal(signal.SIGTERM)
        return driver.Result({}, False, heard.asked, True, Recorded(begun=True), {}, ran=True)

    content = {
        "name": "made", "fixed": {"dataset": "digits", "method": "pcr"}, "grid": {"seed": [0]},
        "search": {"space": {"lr": {"log": [0.01, 1.0]}}, "samples": 2, "tune_on": {"tasks": 2}},
    }  # fmt: skip
    monkeypatch.setattr(driver, "execute", execute)
    options = RunOptions(out=str(tmp_path), tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    assert api.run(study_files.parse(content, "a file"), options) is Status.KILLED
    assert len(rounds) == 1 and "run the same command again" in capsys.readouterr().out
