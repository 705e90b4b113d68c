"""The time that a sweep will take and that a running one says is left, against numbers worked out by hand."""

from types import SimpleNamespace

import pytest
from rich.console import Console

from pcr_ray.execution import progress
from pcr_ray.execution.forecast import key, seconds
from pcr_ray.execution.plan import Plan
from pcr_ray.execution.progress import Progress
from pcr_ray.methods import METHODS
from pcr_ray.study.load import Study
from pcr_ray.study.resolve import resolve
from pcr_ray.study.schema import SweepFile
from pcr_ray.text import duration
from pcr_ray.tracking.runs import Status


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def sweep_of(**trials):
    trials = {name: resolve({"dataset": "cifar10", "seed": 0, **settings}) for name, settings in trials.items()}
    spec = SweepFile(name="made", grid={"seed": [0]})
    plan = Plan(Study(spec, trials), runs={}, done=set(), failed={}, outdated={}, todo=trials, again=set())
    return Progress(Console(quiet=True), plan, SimpleNamespace(trouble=None))


def learn(view, identity, *tasks):
    for task in tasks:
        view.task_done(identity, {"task": task, "average_accuracy": 50.0})


def test_the_view_counts_and_shows_what_earlier_runs_of_the_sweep_did(clock):
    trials = {m: resolve({"dataset": "cifar10", "seed": 0, "method": m}) for m in ("er", "mir", "gss")}
    spec = SweepFile(name="made", grid={"seed": [0]})
    runs = {"er": SimpleNamespace(metrics={"final_accuracy": 41.5})}
    todo = {name: trial for name, trial in trials.items() if name != "er"}
    plan = Plan(Study(spec, trials), runs=runs, done={"er"}, failed={}, outdated={}, todo=todo, again=set())
    console = Console(width=100, force_terminal=True, color_system=None)
    view = Progress(console, plan, SimpleNamespace(trouble=None))
    view.started("mir")
    learn(view, "mir", 1)
    view.task_done("mir", {"task": 5, "average_accuracy": 50.0, "final_accuracy": 50.0})
    view.ended("mir", Status.FINISHED, None)
    view.started("gss")
    with console.capture() as shown:
        view.ended("gss", Status.FAILED, "it broke")
        view.stopping()
        console.print(view)
    text = shown.get()
    assert "2/3 trials done, 0 running, 1 failed" in text
    assert "41.5 1/1" in text and "50.0 1/1" in text
    assert "failed: gss: it broke" in text and "--rerun failed" in text
    assert "stopping, saving" in text and "last: gss failed" in text
    view.ended("gss", Status.KILLED, None)
    assert view.last == "gss stopped", "at Ctrl-C nothing was killed"


def test_news_leave_the_count_of_what_is_done_to_the_record(clock):
    view = sweep_of(er={"method": "er"}, other={"method": "er"})
    view.started("er")
    clock.seconds += 10
    learn(view, "er", 1)
    assert view.headline() == "0/2 trials done, 1 running, 0 failed; 10 s so far, about 2 min left"
    assert view.news()["headline"] == "1 trial at once, 10 s so far, about 2 min left"


def test_a_costly_method_counts_by_its_cost(clock):
    cost = METHODS.get("mir").cost
    assert cost > 1
    view = sweep_of(er={"method": "er"}, mir={"method": "mir"})
    assert view.eta() is None
    clock.seconds += 100
    learn(view, "er", 1, 2, 3, 4, 5)
    view.ended("er", Status.FINISHED, None)
    assert view.eta() == pytest.approx(cost * 100)
    clock.seconds += cost * 20
    learn(view, "mir", 1)
    assert view.eta() == pytest.approx(cost * 80)


def test_the_start_of_the_workers_does_not_count_as_pace(clock):
    view = sweep_of(er={"method": "er"}, other={"method": "er"})
    clock.seconds += 600
    view.started("er")
    clock.seconds += 20
    learn(view, "er", 1, 2)
    assert view.eta() == pytest.approx(10 * (3 + 5))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_view_fits_its_terminal_and_shows_what_happens_first(clock, width):
    trials = {m: resolve({"dataset": "cifar10", "seed": 0, "method": m}) for m in METHODS.names()}
    plan = Plan(
        Study(SweepFile(name="made", grid={"seed": [0]}), trials),
        runs={}, done=set(), failed={}, outdated={}, todo=trials, again=set(),
    )  # fmt: skip
    console = Console(width=width, height=24, force_terminal=True, color_system=None)
    view = Progress(console, plan, SimpleNamespace(trouble=None))
    view.started("pcr")
    learn(view, "pcr", 1)
    with console.capture() as shown:
        console.print(view)
    lines = [line.rstrip() for line in shown.get().splitlines()]
    assert max(map(len, lines)) <= width
    assert set(lines[0]) <= set("━╸╺ ") and lines[1].startswith(f"0/{len(trials)} trials done, 1 running")
    assert "last: pcr: task 1 of 5, accuracy 50.0 (0 s ago)" in lines
    assert lines[-1] == "", "the last line has room for the terminal's ^C"


def test_a_fraction_of_the_images_counts_as_that_fraction(clock):
    view = sweep_of(part={"method": "er", "fraction": 0.1}, all={"method": "er"})
    clock.seconds += 10
    learn(view, "part", 1, 2, 3, 4, 5)
    assert view.eta() == pytest.approx(100)


def test_larger_images_and_wider_networks_count_as_more(clock):
    size = {"method": "er", "dataset": "folder", "folder": "f", "tasks": 1}
    view = sweep_of(small=size | {"image_size": 32}, large=size | {"image_size": 64})
    clock.seconds += 10
    learn(view, "small", 1)
    assert view.eta() == pytest.approx(40)
    view = sweep_of(narrow={"method": "er"}, wide={"method": "er", "model": "resnet18"})
    clock.seconds += 10
    learn(view, "narrow", 1, 2, 3, 4, 5)
    assert view.eta() == pytest.approx(10 * (64 / 20) ** 2)


def test_tasks_spared_by_a_checkpoint_are_neither_done_nor_left(clock):
    view = sweep_of(continued={"method": "er"}, other={"method": "er"})
    clock.seconds += 20
    learn(view, "continued", 4)  # three of its five tasks were learned before
    assert view.eta() == pytest.approx(120)
    clock.seconds += 20
    learn(view, "continued", 5)
    assert view.eta() == pytest.approx(100)


def test_a_trial_that_starts_over_has_everything_left_but_takes_nothing_from_others(clock):
    view = sweep_of(er={"method": "er"}, other={"method": "er"})
    clock.seconds += 60
    learn(view, "er", 1, 2, 1)
    assert view.eta() == pytest.approx(20 * (4 + 5))


def test_a_result_after_the_end_changes_nothing(clock):
    view = sweep_of(er={"method": "er"}, other={"method": "er"})
    clock.seconds += 100
    learn(view, "er", 1, 2, 3, 4, 5)
    view.ended("er", Status.FINISHED, None)
    learn(view, "er", 1)
    assert view.eta() == pytest.approx(100)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min"), (3723, "1 h 02 min"), (7199, "2 h 00 min"), (172_800, "2.0 days")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_a_forecast_counts_evaluation_however_few_images_are_learned():
    for fraction in (1.0, 0.01):
        trial = resolve({"dataset": "cifar10", "method": "pcr", "buffer": 1000, "fraction": fraction})
        # 100 stream images a second, 4 passes each; 2, 4, ... thousand test images, and the memory five times.
        expected = (50_000 * fraction * 4 + (2 + 4 + 6 + 8 + 10 + 5) * 1000 / 3) / 400
        assert seconds(trial, {key(trial): 100.0}) == pytest.approx(expected)
    assert seconds(resolve({"dataset": "folder", "folder": "a", "image_size": 32, "tasks": 2}), {}) is None
