"""Two sweeps of one store that have trials in common, at the same moment: one run per trial, each number once."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pcr_ray.errors import NotNowError
from pcr_ray.execution import driver, sharing
from pcr_ray.execution.options import RunOptions
from pcr_ray.provenance import code_of
from pcr_ray.study.load import Study, load
from pcr_ray.tracking import courier as couriers
from pcr_ray.tracking.courier import Courier
from pcr_ray.tracking.runs import Status, Tag, code_entry
from pcr_ray.tracking.spool import END, START, TASK, Spool
from pcr_ray.tracking.store import Store
from pcr_ray.tracking.sweep_run import SweepRun
from tests.sweeping import sweep_file

METRICS = {"average_accuracy": 50.0, "loss": 1.0}
SEEDS = [0, 1, 2, 3, 4]


class Side:
    """One of two sweeps: its spool, its courier, its run, as a driver has them."""

    def __init__(self, name: str, folder: Path, uri: str) -> None:
        home = folder / name
        home.mkdir()
        self.study: Study = load(sweep_file(home, name=name, grid={"method": ["pcr"], "seed": SEEDS}))
        self.store, self.spool = Store(uri), Spool(home / "spool")
        self.run = SweepRun(self.store, self.study)
        self.run.begin()
        self.courier = Courier(self.spool, self.store, name, lambda: self.run.run_id)

    def say(self, identity: str, event: str, **content: Any) -> None:
        if event == START:
            trial = self.study.trials[identity]
            content = {"name": identity, "params": trial.flat(), "code": code_entry(code_of(trial)), **content}
        self.spool.append(identity, event, **content)

    def task(self, identity: str, number: int) -> None:
        self.say(identity, TASK, task=number, metrics=METRICS)

    def deliver(self) -> None:
        assert self.courier.deliver_all(), self.courier.trouble


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("store") / "mlflow.db"
    Store(f"sqlite:///{file}").open()
    return file


@pytest.fixture
def sides(tmp_path: Path, empty: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Side, Side]]:
    monkeypatch.setattr(couriers, "LOOK_AGAIN", (0.0, 0.05))
    shutil.copy(empty, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    yield Side("one", tmp_path, uri), Side("two", tmp_path, uri)


def steps(side: Side, run_id: str) -> list[int]:
    return [m.step for m in side.store.client.get_metric_history(run_id, "loss")]


def test_a_trial_that_another_sweep_runs_is_left_to_it(sides: tuple[Side, Side]) -> None:
    one, two = sides
    trial = next(iter(one.study.trials))
    for side in sides:
        side.say(trial, START)
        side.task(trial, 1)
        side.deliver()
    assert not one.courier.elsewhere and list(two.courier.elsewhere) == [trial]
    two.task(trial, 2)
    two.say(trial, END, status=Status.FINISHED)  # it was faster, and has to wait all the same
    two.deliver()
    assert two.spool.pending() == [trial] and not two.courier.close(0)
    one.task(trial, 2)
    one.say(trial, END, status=Status.FINISHED)
    one.deliver()
    time.sleep(0.1)
    two.deliver()
    assert not two.spool.pending() and two.courier.close(0)
    (run,) = one.store.attempts(trial)
    assert run.finished and run.sweep == "one" and steps(one, run.run_id) == [1, 2]


@pytest.mark.parametrize("end", ["stopped", "silent"])
def test_a_trial_that_its_sweep_left_half_done_is_taken_over(end: str, sides: tuple[Side, Side]) -> None:
    one, two = sides
    trial = next(iter(one.study.trials))
    one.say(trial, START)
    one.task(trial, 1)
    one.deliver()
    if end == "stopped":
        one.run.close(Status.KILLED)
    else:  # as a driver that was killed, or paused, three minutes ago
        past = time.time() - 180
        one.store.client.set_tag(one.run.run_id, "pcr_ray.progress", f'{{"time": {past}}}')
        with sqlite3.connect(one.store.uri.removeprefix("sqlite:///")) as database:  # MLflow's client cannot
            database.execute("UPDATE runs SET start_time = ? WHERE run_uuid = ?", (int(1000 * past), one.run.run_id))
    two.say(trial, START)
    two.task(trial, 1)
    two.deliver()
    (run,) = one.store.attempts(trial)
    assert run.sweep == "two" and run.sweeps == {"one", "two"}
    one.run.begin()  # it is back, and has more to say
    one.task(trial, 2)
    assert not one.courier.deliver_all(), "its run is gone"
    one.deliver()
    assert list(one.courier.elsewhere) == [trial]
    two.task(trial, 2)
    two.say(trial, END, status=Status.FINISHED)
    two.deliver()
    time.sleep(0.1)
    one.deliver()
    (run,) = one.store.attempts(trial)
    assert run.finished and steps(two, run.run_id) == [1, 2] and not one.spool.pending()


def test_a_trial_that_two_sweeps_run_again_has_a_run_of_each(sides: tuple[Side, Side]) -> None:
    one = sides[0]
    trial = next(iter(one.study.trials))
    one.say(trial, START)
    one.task(trial, 1)
    one.say(trial, END, status=Status.FINISHED)
    one.deliver()
    for side in sides:
        side.say(trial, START, rerun=True)
        side.task(trial, 1)
        side.deliver()
    for side in sides:
        side.task(trial, 2)
        side.say(trial, END, status=Status.FINISHED)
        side.deliver()
    runs = one.store.attempts(trial)
    assert len(runs) == 3 and all(run.finished for run in runs)
    assert {run.sweep: steps(one, run.run_id) for run in runs if not run.superseded} == {"two": [1, 2]}
    assert one.store.trials([trial])[trial].sweep == "two"


def test_two_that_begin_at_the_same_moment_end_with_one_run_per_trial(sides: tuple[Side, Side]) -> None:
    ready = threading.Barrier(2)
    claimed: Counter[str] = Counter()

    def work(side: Side) -> None:
        for trial in side.study.trials:
            ready.wait()
            side.say(trial, START)
            side.task(trial, 1)
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                side.courier.deliver_all()  # SQLite may be locked by the other
                if (side.spool.state(trial) or {}).get("run"):
                    claimed[trial] += 1
                    break
                if claimed[trial]:
                    break
                time.sleep(0.01)

    threads = [threading.Thread(target=work, args=[side]) for side in sides]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    one = sides[0]
    assert claimed == dict.fromkeys(one.study.trials, 1)
    for trial in one.study.trials:
        (run,) = one.store.attempts(trial)
        assert steps(one, run.run_id) == [1]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "LOOK_EVERY", 0.05)
    monkeypatch.setattr(sharing, "PATIENCE", 1.0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("hours", [-1, 0, 1])
def test_a_sweep_is_driven_from_one_place_at_a_time_whatever_the_clocks_say(
    sides: tuple[Side, Side], hours: int
) -> None:
    one, _ = sides
    one.run.begin(place="there")

    def sign(number: int) -> None:
        text = json.dumps({"time": time.time() + 3600 * hours + number, "host": "far-away", "place": "there"})
        one.store.client.set_tag(one.run.run_id, Tag.PROGRESS, text)

    sign(0)
    sharing.alone("one", one.store, "there")  # its own folder, which this process holds: nobody else is there
    began = time.monotonic()
    sharing.alone("one", one.store, "here")
    assert time.monotonic() - began >= 1.0, "no sign of life: it was looked for, then the other is held for dead"
    later = threading.Timer(0.3, sign, [1])
    later.start()
    with pytest.raises(NotNowError, match=r"sweep 'one' of this store is being run on far-away"):
        sharing.alone("one", one.store, "here")
    later.join()


@pytest.mark.usefixtures("impatient")
def test_a_sweep_that_begins_elsewhere_while_ray_starts_here_is_left_to_the_other(
    sides: tuple[Side, Side], tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = sides
    one.run.close(Status.KILLED)
    ended = threading.Event()

    def starts_slowly(*given: Any) -> None:
        one.run.begin(place="there")
        threading.Thread(target=lives).start()
        given[6]()  # begin

    def lives() -> None:
        while not ended.wait(0.1):
            text = json.dumps({"time": time.time(), "host": "far-away", "place": "there"})
            one.store.client.set_tag(one.run.run_id, Tag.PROGRESS, text)

    monkeypatch.setattr(driver, "_launch", starts_slowly)
    options = RunOptions(out=str(tmp_path / "here"), data_root=str(root), tracking_uri=one.store.uri)
    try:
        with pytest.raises(NotNowError, match=r"sweep 'one' of this store is being run on"):
            driver.execute(one.study, one.store, options)
        now = one.store.sweep("one")
        assert now and now.status is Status.RUNNING and now.progress["place"] == "there", "it is theirs"
    finally:
        ended.set()


@pytest.mark.usefixtures("impatient")
def test_a_driver_held_for_dead_is_not_waited_for_twice(sides: tuple[Side, Side]) -> None:
    one, _ = sides
    one.run.begin(place="there")
    silent = sharing.alone("one", one.store, "here")
    began = time.monotonic()
    assert sharing.alone("one", one.store, "here", silent) == silent and silent
    assert time.monotonic() - began < 0.5


@pytest.mark.usefixtures("impatient")
def test_an_ended_sweep_and_one_that_never_was_hold_nobody_up(sides: tuple[Side, Side]) -> None:
    one, _ = sides
    one.run.begin(place="there")
    one.run.close(Status.KILLED)
    began = time.monotonic()
    sharing.alone("one", one.store, "here")
    sharing.alone("never", one.store, "here")
    assert time.monotonic() - began < 1.0


def test_a_sign_of_life_stays_readable_with_a_thousand_trials_at_once(sides: tuple[Side, Side]) -> None:
    one, _ = sides
    one.courier.news = lambda: {"host": "here", "place": "there", "running": ["0123456789abcdef"] * 1000}
    assert one.courier.deliver_all()
    one.courier._tell()
    sweep = one.store.sweep("one")
    assert sweep and (sweep.progress["host"], sweep.progress["place"], sweep.progress["running"]) == (
        "here",
        "there",
        [],
    )


def test_a_store_that_is_away_while_another_sweep_is_waited_for_is_asked_again(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = sides
    trial = next(iter(one.study.trials))
    one.say(trial, START)
    one.task(trial, 1)
    one.say(trial, END, status=Status.FINISHED)
    one.deliver()
    ended: list[str] = []
    claim, away = two.run.claim, iter([ConnectionError("away"), None])

    def claim_later(runs: Any) -> None:
        if error := next(away):
            raise error
        claim(runs)

    monkeypatch.setattr(sharing, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(two.run, "claim", claim_later)
    tracker: Any = SimpleNamespace(ended_elsewhere=lambda run: ended.append(run.identity))
    assert sharing._wait({trial}, None, two.run, tracker) == set()  # type: ignore[arg-type]
    assert ended == [trial]


def test_an_error_ends_the_courier_with_its_sweep(sides: tuple[Side, Side]) -> None:
    courier = sides[0].courier
    with pytest.raises(RuntimeError), courier:
        courier.start()
        raise RuntimeError
    assert courier._thread is not None and not courier._thread.is_alive()
