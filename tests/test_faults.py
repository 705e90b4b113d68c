"""Faults that need no cluster, injected for real: every trial is accounted for, with undisturbed numbers."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pcr_ray.checkpoints import CheckpointStore
from pcr_ray.execution import callback, driver, folders, leftovers, storage, verdict
from pcr_ray.execution.callback import TuneTracker
from pcr_ray.execution.options import RunOptions
from pcr_ray.execution.plan import make_plan
from pcr_ray.execution.storage import Tidier
from pcr_ray.learner import Learner
from pcr_ray.provenance import code_of
from pcr_ray.study.load import Study, load
from pcr_ray.tracking import spool as spools
from pcr_ray.tracking.courier import Courier
from pcr_ray.tracking.runs import Status
from pcr_ray.tracking.spool import END, Spool
from pcr_ray.tracking.store import Store
from pcr_ray.tracking.sweep_run import SweepRun
from tests.sweeping import children, histories, run_sweep, start_sweep, sweep_file, wait_for

METRICS = {"average_accuracy": 50.0, "loss": 1.0}
EMPTY: list[Path] = []
RESULTS = {"config": {"dataset": "digits"}, "data_fingerprint": "0", **{key: [[1.0]] for key in verdict.MATRICES}}


def complete(**more: Any) -> dict[str, Any]:
    """A result that could be used, but for `more`."""
    return {"tasks": [{"task": 1, **METRICS}], "complete": True, **more}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return load(sweep_file(tmp_path, grid={"method": ["pcr"], "seed": [0]}))


@pytest.fixture(scope="module", autouse=True)
def empty(tmp_path_factory: pytest.TempPathFactory) -> None:
    """MLflow takes seconds to make a database: it is made once and copied."""
    EMPTY[:] = [tmp_path_factory.mktemp("store") / "mlflow.db"]
    Store(f"sqlite:///{EMPTY[0]}").open()


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of its own, so that it can be full."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("may not mount a tmpfs here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(disk: Path) -> Path:
    file = disk / "filler"
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as writer:
        while writer.write(bytes(4096)):
            pass
    return file


def undisturbed(study: Study, root: Path) -> dict[str, dict[int, float]]:
    """The accuracies of each trial after each task, by the trial's name, without Ray and MLflow."""
    found = {}
    for identity, config in study.trials.items():
        learner = Learner(config, root=root)
        found[study.run_name(identity)] = {
            n: learner.run_task()["average_accuracy"] for n in range(1, len(learner.stream.tasks) + 1)
        }
    return found


class Sweep:
    """A tracker with all that is behind it, but Tune."""

    def __init__(self, study: Study, folder: Path, spool: Path) -> None:
        shutil.copy(EMPTY[0], folder / "mlflow.db")
        self.store = Store(f"sqlite:///{folder}/mlflow.db")
        self.spool, run = Spool(spool), SweepRun(self.store, study)
        self.courier = Courier(self.spool, self.store, study.name, lambda: run.run_id)
        (self.identity,) = study.trials
        self.storage = folder / "checkpoints"
        self.checkpoint = self.storage / self.identity / "checkpoint.pt"
        self.checkpoint.parent.mkdir(parents=True)
        self.checkpoint.touch()
        plan = make_plan(study, self.store, folder)
        quiet = SimpleNamespace(started=print, task_done=print, ended=print)
        self.tidier = Tidier(str(self.storage), self.spool)
        self.tracker = TuneTracker(plan, self.spool, self.courier, self.tidier, quiet, folder)
        self.trial = SimpleNamespace(config={"case": {"identity": self.identity}}, error_file=None)

    def start(self) -> None:
        self.tracker.on_trial_start(0, [], self.trial)

    def report(self, tasks: int, complete: bool = False) -> None:
        done = [{"task": n, **METRICS} for n in range(1, tasks + 1)]
        self.tracker.on_trial_result(0, [], self.trial, {"tasks": done, "complete": complete})

    def steps(self) -> list[int]:
        (run,) = self.store.attempts(self.identity)
        return [m.step for m in self.store.client.get_metric_history(run.run_id, "loss")]


def test_every_finished_task_leaves_a_mark(study: Study, tmp_path: Path) -> None:
    sweep, mark = Sweep(study, tmp_path, tmp_path / "spool"), tmp_path / ".progress"
    sweep.start()
    assert not mark.exists(), "a trial that began has got nowhere yet"
    for tasks in (1, 2):
        sweep.report(tasks)
        assert mark.stat().st_mtime > 0
        os.utime(mark, (0, 0))


def test_a_full_disk_under_the_spool_ends_nothing_and_loses_nothing(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "disk", "256k") as disk:
        sweep = Sweep(study, tmp_path, disk / "spool")
        filler = fill(disk)
        sweep.start()
        sweep.report(1)
        assert sweep.spool.trouble and "No space left" in sweep.spool.trouble
        sweep.report(3, complete=True)
        assert sweep.tracker.outcome.finished == {sweep.identity}
        sweep.tidier.__exit__()
        assert sweep.checkpoint.exists(), "the numbers are safe nowhere yet"
        told = capsys.readouterr().out
        assert told.count("cannot be written") == 1 and "kept in memory" in told
        filler.unlink()
        assert sweep.spool.flush() and [e["event"] for e in sweep.spool.events(sweep.identity)][-1] == END
        assert Spool(disk / "spool").finished() == {sweep.identity}, "as another process would find it"
        assert sweep.courier.deliver_all() and sweep.steps() == [1, 2, 3]


def test_the_checkpoint_of_a_finished_trial_goes_once_its_numbers_are_safe(study: Study, tmp_path: Path) -> None:
    sweep = Sweep(study, tmp_path, tmp_path / "spool")
    sweep.start()
    sweep.report(1)
    sweep.report(3, complete=True)
    sweep.tidier.__exit__()
    assert not sweep.checkpoint.exists() and sweep.spool.finished() == {sweep.identity}


def test_a_checkpoint_that_a_killed_sweep_left_goes_at_the_next_start(study: Study, tmp_path: Path) -> None:
    options = RunOptions(out=str(tmp_path / "runs"), storage=str(tmp_path / "checkpoints"))
    sweep = Sweep(study, tmp_path, options.folder(study.name) / "spool")
    sweep.start()
    sweep.report(3)
    sweep.spool.append(sweep.identity, END, status=Status.FINISHED)  # and here it was killed
    result = driver.execute(study, sweep.store, options)
    assert result.delivered and not result.ran and sweep.steps() == [1, 2, 3]
    assert not sweep.checkpoint.exists()
    sweep.checkpoint.parent.mkdir(exist_ok=True)
    sweep.checkpoint.touch()  # as if it had been killed between the delivery and the deletion
    driver.execute(study, sweep.store, options)
    assert not sweep.checkpoint.exists()


def test_a_folder_that_somebody_deletes_takes_no_error_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "tiny"
    with pytest.raises(KeyboardInterrupt), folders.held(folder, "tiny"):
        spool = Spool(folder / "spool")
        shutil.rmtree(tmp_path / "runs")
        spool.append("a", END, status=Status.KILLED)
        spool.mark_progress()
        assert spool.unwritten() == ["a"] and spool.events("a")[0]["status"] == Status.KILLED
        raise KeyboardInterrupt
    with folders.held(folder, "tiny"):
        pass


def test_a_storage_that_does_not_answer_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(CheckpointStore, "delete", lambda self: hangs.wait(60))
    monkeypatch.setattr(storage, "CLEARING", 0.2)
    began = time.monotonic()
    with Tidier(str(tmp_path), Spool(tmp_path / "spool")) as tidier:
        tidier.delete("one")
        tidier.delete("two")
    assert time.monotonic() - began < 30
    hangs.set()


def test_what_we_finished_is_not_given_up_for_another_sweeps_failure(study: Study, tmp_path: Path) -> None:
    sweep = Sweep(study, tmp_path, tmp_path / "spool")
    sweep.start()
    sweep.courier.elsewhere[sweep.identity] = math.inf  # another sweep runs it, so nothing is delivered
    sweep.report(3, complete=True)
    theirs: Any = SimpleNamespace(identity=sweep.identity, finished=False, reason="out of memory", metrics={})
    sweep.tracker.ended_elsewhere(theirs)
    assert sweep.tracker.outcome.finished == {sweep.identity} and not sweep.tracker.outcome.failed
    assert sweep.courier.deliver_all() and sweep.steps() == [1, 2, 3]


def test_what_another_sweep_finishes_has_not_failed_here(study: Study, tmp_path: Path) -> None:
    sweep = Sweep(study, tmp_path, tmp_path / "spool")
    sweep.start()
    sweep.tracker.on_trial_result(0, [], sweep.trial, {"failure": "out of memory"})
    theirs: Any = SimpleNamespace(identity=sweep.identity, finished=True, reason="", metrics={})
    sweep.tracker.ended_elsewhere(theirs)
    assert sweep.tracker.outcome.finished == {sweep.identity} and not sweep.tracker.outcome.failed


def test_numbers_reach_mlflow_while_the_spool_is_full(study: Study, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "256k") as disk:
        sweep = Sweep(study, tmp_path, disk / "spool")
        fill(disk)
        sweep.start()
        sweep.report(1)
        assert sweep.courier.deliver_all() and sweep.steps() == [1]
        sweep.report(3, complete=True)
        assert sweep.courier.deliver_all() and sweep.steps() == [1, 2, 3]
        (run,) = sweep.store.attempts(sweep.identity)
        assert run.status is Status.FINISHED and not sweep.spool.pending() and not sweep.spool.unwritten()


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ({}, "no list `tasks`"),
        ({"tasks": [{}]}, "no number `task`"),
        ({"tasks": "all of them"}, "no list `tasks`"),
        ({"tasks": [{"task": 1}]}, "no `average_accuracy`"),
        ({"tasks": [{"task": 1, **METRICS, "loss": None}]}, "`loss` of task 1 is not a number"),
        ({"tasks": [{"task": 9, **METRICS}]}, "reports task 9, and the trial has 3"),
        (complete(results={"config": 1}), "no data_fingerprint"),
        (complete(results=RESULTS | {"more": {1}}), "TypeError"),
        (complete(results=RESULTS | {"config": {}}), "without `dataset`"),
        (complete(results=RESULTS | {"data_fingerprint": "0" * 37}), "`data_fingerprint` that is not text of 1 to 36"),
        (complete(results=RESULTS | {"accuracy_matrix": [["?"]]}), "not a list of lists of numbers"),
        (complete(device=1), "`device` is not text"),
        ({"tasks": [{"task": 1, **METRICS, "acc@1": 1.0}]}, "`acc@1` is not a name that MLflow takes"),
        ({"tasks": [{"task": 1, **METRICS, "a/../b": 1.0}]}, "`a/../b` is not a name"),
        ({"tasks": [{"task": 1, **METRICS, "x" * 251: 1.0}]}, "is not a name that MLflow takes"),
        ({"tasks": [{"task": 1, **METRICS, "loss": 10**400}]}, "`loss` of task 1 is not a number"),
        ({"failure": "no s3://AKIA:geheim@bucket/x"}, "no s3://***@bucket/x"),
        ({"failure": "made to fail"}, "made to fail"),
    ],
)  # fmt: skip
def test_a_result_that_cannot_be_used_fails_its_trial_alone(
    result: dict[str, Any], reason: str, study: Study, tmp_path: Path
) -> None:
    sweep = Sweep(study, tmp_path, tmp_path / "spool")
    sweep.start()
    told = result | {"config": {"case": {"identity": sweep.identity, "trial": {"tasks": 3}}}}
    assert sweep.tracker.over("0", told) or "TypeError" in reason  # which JSON finds, and a worker before it
    sweep.tracker.on_trial_result(0, [], sweep.trial, result)
    assert reason in sweep.tracker.outcome.failed[sweep.identity]
    assert sweep.courier.deliver_all()
    (run,) = sweep.store.attempts(sweep.identity)
    assert run.status is Status.FAILED and reason in run.reason
    sweep.report(3, complete=True)
    assert not sweep.tracker.outcome.finished, "what has failed stays so"


def test_a_clock_that_goes_backwards_changes_no_number(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(2_000_000_000, 1_000_000_000, -3600))
    monkeypatch.setattr(spools, "time", SimpleNamespace(time=lambda: next(now)))
    sweep = Sweep(study, tmp_path, tmp_path / "spool")
    sweep.start()
    for tasks in (1, 2):
        sweep.report(tasks)
        assert sweep.courier.deliver_all()
    sweep.report(3, complete=True)
    assert sweep.courier.deliver_all() and sweep.courier.deliver_all()
    (run,) = sweep.store.attempts(sweep.identity)
    assert (
        run.finished and sorted(sweep.steps()) == [1, 2, 3] and run.curves == {k: [v] * 3 for k, v in METRICS.items()}
    )


def half_done(study: Study, tmp_path: Path, root: Path) -> tuple[dict[str, Any], Path]:
    """A case as Tune gets it, one task done, and its checkpoint."""
    from trainables.online import OnlineTrainable

    ((identity, config),) = study.trials.items()
    settings = {
        "data_root": str(root),
        "storage": str(tmp_path / "checkpoints"),
        "cpus": 1,
        "compile": False,
        "plugins": {},
        "beside": None,
    }
    code = code_of(config).fingerprint
    case = {"case": {"identity": identity, "code": code, "trial": config.model_dump(), "run": settings}}
    OnlineTrainable(case).step()
    return case, tmp_path / "checkpoints" / identity / code / "checkpoint.pt"


@pytest.mark.parametrize("damage", ["half", "tenth", "empty", "text", "another version", "other data"])
def test_a_checkpoint_that_cannot_be_used_is_told_and_the_trial_starts_over(
    damage: str, study: Study, tmp_path: Path, root: Path
) -> None:
    import torch

    from trainables.online import OnlineTrainable

    case, file = half_done(study, tmp_path, root)
    whole = file.read_bytes()
    state = torch.load(file, weights_only=True)
    if damage == "another version":
        torch.save({"model": state["method"], "epoch": 3}, file)
    elif damage == "other data":
        torch.save(state | {"data": "00000000"}, file)
    else:
        cut = {"half": whole[: len(whole) // 2], "tenth": whole[: len(whole) // 10], "empty": b""}
        file.write_bytes(cut.get(damage, b"not found"))
    trainable = OnlineTrainable(case)
    results = [trainable.step() for _ in range(3)]
    assert "starts over, as its checkpoint cannot be used" in results[0]["note"] and not results[1]["note"]
    accuracies = {m["task"]: m["average_accuracy"] for m in results[-1]["tasks"]}
    assert results[-1]["complete"] and accuracies == undisturbed(study, root)["pcr"]


@pytest.mark.parametrize("trouble", ["disk", "memory", "memory of torch", "GPU's memory"])
def test_a_passing_trouble_costs_no_checkpoint(
    trouble: str, study: Study, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from trainables.online import OnlineTrainable

    case, file = half_done(study, tmp_path, root)
    whole = file.read_bytes()
    errors = {"memory": MemoryError(), "GPU's memory": torch.OutOfMemoryError("CUDA out of memory")}

    def short_of_memory(*given: object, **how: object) -> None:
        if trouble in errors:
            raise errors[trouble]
        torch.empty(10**15)  # really not to be had

    with monkeypatch.context() as patch:
        if trouble == "disk":
            file.unlink()
            file.symlink_to("/proc/self/mem")  # reading it is an input/output error
        else:
            patch.setattr(torch, "load", short_of_memory)
        with pytest.raises((OSError, MemoryError, RuntimeError)):  # Tune tries the trial again
            OnlineTrainable(case).step()
    assert file.is_symlink() or file.read_bytes() == whole
    file.unlink()
    file.write_bytes(whole)
    assert OnlineTrainable(case).step()["task"] == 2, "it goes on"


def test_rays_page_about_memory_becomes_one_line(tmp_path: Path) -> None:
    page = (  # as Ray 2.60 writes it, abridged
        "Traceback (most recent call last):\n  File 'event_manager.py', line 110, in resolve_future\n"
        "ray.exceptions.OutOfMemoryError: 1 worker(s) were killed due to the node running low on memory. Memory on the "
        "node (IP: 192.0.2.2, ID: 0e1f0eb8) was 22.23GB used / 23.54GB limit (0.944523)\n"
        "Object store memory usage: [- objects spillable: 0\n"
        "Refer to the documentation on how to address the out of memory issue: https://example.org."
    )
    (tmp_path / "error.txt").write_text(page)
    reason = callback._reason(SimpleNamespace(error_file=tmp_path / "error.txt", get_error=lambda: None))
    assert reason.startswith(
        "its worker was ended, as its node was short of memory (22.23GB used / 23.54GB): run fewer"
    )


def test_a_folder_in_use_is_left_alone_and_that_of_a_dead_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    ours, theirs, dead = (tmp_path / f"{leftovers.SCRATCH}{name}" for name in ("ours", "theirs", "dead"))
    for folder in (ours, theirs, dead):
        folder.mkdir()
    with leftovers.marked(dead):
        pass
    with leftovers.marked(ours):
        assert leftovers.clear() == 1
    assert ours.exists() and theirs.exists() and not dead.exists(), "theirs has no mark"


def test_a_session_of_a_process_that_died_while_it_started_ray_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))  # where other tests kill sweeps meanwhile
    dead = subprocess.Popen(["true"])
    dead.wait()
    sessions = {name: tmp_path / f"session_2026-11-18_01-02-03_{name}" for name in (dead.pid, os.getpid(), "12345678")}
    for folder in sessions.values():
        folder.mkdir()
    (tmp_path / f"{leftovers.STARTING}{dead.pid}").touch()
    with leftovers.announced(tmp_path):
        assert leftovers.clear(tmp_path) == 1
        left = {sessions[os.getpid()], sessions["12345678"]}
        found = {place for place in tmp_path.iterdir() if not place.name.startswith(leftovers.STARTING)}
        assert found == left, "one is being started, and one was never announced: it is somebody else's"
    assert leftovers.clear(tmp_path) == 1, "this process was stopped while it started Ray"
    assert set(tmp_path.iterdir()) == {sessions["12345678"]}


# --- whole sweeps -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_trials_that_hang_never_end_or_report_nonsense_do_not_hold_up_the_others(tmp_path: Path, root: Path) -> None:
    grid = {"method": ["pcr"], "seed": {"range": [0, 7]}}
    sweep_file(tmp_path, trainable="tests.faulty:Faulty", grid=grid, retries=1)
    (tmp_path / "odd").touch()
    result = run_sweep(tmp_path, root, "--stall-minutes", "0.5")
    assert result.returncode == 1 and "Traceback" not in result.stdout + result.stderr, result.stdout + result.stderr
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    runs = children(uri)
    reasons = {s: runs[f"{s} pcr (seed)"].data.tags.get("pcr_ray.reason", "") for s in range(7)}
    assert [s for s in range(7) if runs[f"{s} pcr (seed)"].info.status == "FINISHED"] == [0, 2]
    assert "cannot be used" in reasons[1] and "no task was finished within" in reasons[3]
    assert "UnreadableError: made to fail" in reasons[4] and "not that it is `complete`" in reasons[5]
    assert "its result cannot be used: TypeError" in reasons[6]
    assert "seed=2: no task finished within" in result.stdout
    expected = undisturbed(load(sweep_file(tmp_path, grid=grid)), root)
    for name in ("0 pcr (seed)", "2 pcr (seed)"):
        assert dict(histories(uri)[name]["average_accuracy"]) == expected[name]


@pytest.mark.slow
def test_a_sweep_goes_on_while_the_disk_of_its_folder_is_full(tmp_path: Path, root: Path) -> None:
    sweep_file(tmp_path, trainable="tests.faulty:Faulty", grid={"method": ["pcr"], "seed": [0, 1]})
    (tmp_path / "slow").touch()
    with small_disk(tmp_path / "runs", "1m") as disk:
        process = start_sweep(tmp_path, root, "--storage", tmp_path / "checkpoints")
        wait_for(lambda: any(disk.glob("tiny/spool/*.jsonl")), "an event")
        fill(disk)
        code = process.wait(300)
        said = (tmp_path / "out.txt").read_text()
        assert code == 0 and "kept in memory" in said and "no report" in said and "Traceback" not in said, said
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    assert {r.info.status for r in children(uri).values()} == {"FINISHED"}
    expected = undisturbed(load(tmp_path / "tiny.yaml"), root)
    assert {n: dict(h["average_accuracy"]) for n, h in histories(uri).items()} == expected


@pytest.mark.slow
def test_what_a_killed_sweep_leaves_behind_is_cleared_by_the_next_start(tmp_path: Path, root: Path) -> None:
    import psutil

    sweep_file(tmp_path, trainable="tests.faulty:Faulty", grid={"method": ["pcr"], "seed": [0]})
    (tmp_path / "slow").touch()
    place = Path(tempfile.mkdtemp(prefix="l", dir="/tmp"))  # short: Ray's sockets are below it
    try:
        process = start_sweep(tmp_path, root, TMPDIR=str(place), RAY_TMPDIR=str(place))
        wait_for(lambda: any((tmp_path / "runs/tiny/checkpoints").glob("*/*/checkpoint.pt")), "a checkpoint")
        rays = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait(30)
        before = {*place.glob("ray/session_2*"), *place.glob("pcr_ray-tune-*")}
        assert len(before) == 2
        result = run_sweep(tmp_path, root, TMPDIR=str(place), RAY_TMPDIR=str(place))
        assert result.returncode == 0, result.stdout + result.stderr
        assert not [folder for folder in before if folder.exists()]
        assert not [p for p in rays if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    finally:
        shutil.rmtree(place, ignore_errors=True)
