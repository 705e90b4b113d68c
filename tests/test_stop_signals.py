"""Stop signals where Tune does not listen: between its rounds, during the delivery and during the report."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pcr_ray import api
from pcr_ray.execution import driver
from pcr_ray.execution.callback import TuneTracker
from pcr_ray.execution.options import RunOptions
from pcr_ray.tracking.runs import Status
from pcr_ray.tracking.sweep_run import SweepRun


def deaf(*_: object) -> None:
    """As Tune's own handlers are once it has ended."""


def tracker_of(told: list[str]) -> TuneTracker:
    nothing: Any = None
    watcher: Any = SimpleNamespace(stopping=lambda: told.append("stopping"))
    return TuneTracker(nothing, nothing, nothing, "", watcher, Path())


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
            assert len(told) == n and signal.getsignal(signal.SIGINT) is own
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(driver.tuner, "run", tune)
    monkeypatch.setattr(driver.sharing, "rounds", rounds)
    monkeypatch.setattr(driver.watch, "start", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(driver, "_stalled", lambda *_: contextlib.nullcontext())
    parts: Any = SimpleNamespace(study=None, watched=contextlib.nullcontext, wait=0)
    view: Any = contextlib.nullcontext()
    driver._run(parts, parts, parts, 1, tracker, view, parts, None)


class Recorded(SweepRun):
    def __init__(self, begun: bool) -> None:
        self._run_id = "1" if begun else None
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

    result = driver.Result({}, stopped, True, Recorded(begun=True), {}, ran=True)
    study: Any = SimpleNamespace(name="made", spec=SimpleNamespace(search=None))
    monkeypatch.setattr(driver, "execute", lambda *_: result)
    monkeypatch.setattr(api, "_conclude", conclude)
    options = RunOptions(out=str(tmp_path), tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    before = signal.getsignal(signal.SIGINT)
    assert api.run(study, options) is (Status.KILLED if stopped else Status.FINISHED)
    assert signal.getsignal(signal.SIGINT) is before
    assert written == ([] if stopped else ["report"])
    assert ("Ctrl-C again quits at once" in capsys.readouterr().out) is not stopped


def test_what_ends_early_is_not_left_running_and_before_it_has_begun_stays_as_it_was() -> None:
    for begun, closed in ((False, []), (True, [Status.KILLED])):
        run = Recorded(begun)
        with pytest.raises(KeyboardInterrupt), run.killed_on_error():
            raise KeyboardInterrupt
        assert run.closed == closed
