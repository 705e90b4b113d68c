"""What is behind the record fails, or is shared: PostgreSQL killed, disk and MLflow gone, two drivers in one store."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from pcr_ray.study.load import load
from pcr_ray.tracking.store import Store
from tests import databases
from tests.servers import Server
from tests.sweeping import children, histories, kill_everything, run_sweep, start_sweep, sweep_file, wait_for
from tests.test_faults import fill, small_disk, undisturbed

pytestmark = pytest.mark.cluster


def test_a_database_that_is_killed_in_mid_sweep_loses_and_doubles_nothing(tmp_path: Path, root: Path) -> None:
    if why := databases.missing():
        pytest.skip(why)
    file = sweep_file(tmp_path, trainable="tests.faulty:Faulty")
    (tmp_path / "slow").touch()
    with databases.postgres() as database:
        server = Server(tmp_path, database.uri)
        server.start()
        try:
            process = start_sweep(tmp_path, root, "--tracking-uri", server.uri)
            attempts = tmp_path / "attempts.txt"
            wait_for(lambda: attempts.exists() and attempts.read_text().count("\n") >= 3, "a task", doer=process)
            for _ in range(2):
                database.kill()
                before = attempts.read_text().count("\n")
                wait_for(lambda: attempts.read_text().count("\n") >= before + 2, "work without it", doer=process)  # noqa: B023
                database.start()
            (tmp_path / "slow").unlink()
            assert process.wait(500) == 0, (tmp_path / "out.txt").read_text()
            runs, found = children(server.uri), histories(server.uri)
        finally:
            server.stop()
    assert len(runs) == 4 and {r.info.status for r in runs.values()} == {"FINISHED"}
    assert {n: dict(h["average_accuracy"]) for n, h in found.items()} == undisturbed(load(file), root)
    steps = [[step for step, _ in history] for metrics in found.values() for history in metrics.values()]
    assert all(len(s) == len(set(s)) for s in steps), "a metric was delivered twice"


def test_a_full_spool_and_an_mlflow_that_stays_away_keep_the_checkpoints(tmp_path: Path, root: Path) -> None:
    server = Server(tmp_path, f"sqlite:///{tmp_path / 'server.db'}")
    server.start()
    file = sweep_file(tmp_path, trainable="tests.faulty:Faulty", grid={"method": ["pcr"], "seed": [0, 1]})
    (tmp_path / "slow").touch()
    arguments = ("--tracking-uri", server.uri, "--storage", tmp_path / "checkpoints")
    try:
        with small_disk(tmp_path / "runs", "1m") as disk:
            process = start_sweep(tmp_path, root, *arguments, "--flush-seconds", 1)
            wait_for(lambda: (tmp_path / "attempts.txt").exists(), "the first task", doer=process)
            server.stop()
            filler = fill(disk)
            code, said = process.wait(300), (tmp_path / "out.txt").read_text()
            assert code == 75 and "Traceback" not in said, said
            assert "could be neither written to" in said and "make room and run the same command again" in said
            assert len(list(tmp_path.glob("checkpoints/*/*/checkpoint.pt"))) == 2, "all that is left of the numbers"
            filler.unlink()
            server.start()
            trained = (tmp_path / "attempts.txt").read_text().count("\n")
            again = run_sweep(tmp_path, root, *arguments)
            assert again.returncode == 0, again.stdout + again.stderr
            assert (disk / "tiny/report.html").exists() and not list(disk.glob("tiny/spool/*"))
            # One step per trial, which trains nothing: it reports the numbers of the last checkpoint.
            assert (tmp_path / "attempts.txt").read_text().count("\n") == trained + 2
        assert {n: dict(h["average_accuracy"]) for n, h in histories(server.uri).items()} == undisturbed(
            load(file), root
        )
        assert {r.info.status for r in children(server.uri).values()} == {"FINISHED"}
    finally:
        server.stop()


def test_two_drivers_that_share_trials_run_each_of_them_once(tmp_path: Path, root: Path) -> None:
    control, uri = tmp_path / "control", f"sqlite:///{tmp_path}/mlflow.db"
    control.mkdir()
    (control / "slow").touch()
    Store(uri).open()
    grids = {"one": {"method": ["pcr"], "seed": [0, 1, 2]}, "two": {"method": ["pcr"], "seed": [1, 2, 3]}}
    drivers = {}
    for name, grid in grids.items():
        (tmp_path / name).mkdir()
        sweep_file(tmp_path / name, name=name, grid=grid, trainable="tests.faulty:Faulty")
        drivers[name] = start_sweep(
            tmp_path / name, root, "--tracking-uri", uri, "--max-concurrent", 1, FAULTY_CONTROL=str(control)
        )
    for name, driver in drivers.items():
        said = (tmp_path / name / "out.txt").read_text
        assert driver.wait(500) == 0 and "Traceback" not in said(), said()
        assert len((tmp_path / name / "runs" / name / "results.csv").read_text().splitlines()) >= 4, "a row per trial"
        assert not list((tmp_path / name).glob("runs/*/*/*.jsonl")) and not list(
            (tmp_path / name).glob("runs/*/checkpoints/*")
        )
    store = Store(uri)
    identities = {i: t for name in grids for i, t in load(tmp_path / name / "tiny.yaml").trials.items()}
    runs = {i: store.attempts(i) for i in identities}
    assert len(runs) == 4 and all(len(found) == 1 and found[0].finished for found in runs.values())
    for identity, (run,) in runs.items():
        assert sorted(m.step for m in store.client.get_metric_history(run.run_id, "loss")) == [1, 2, 3], identity
        wanted = {name for name, grid in grids.items() if identities[identity].seed in grid["seed"]}
        assert run.sweeps == wanted
    tasks = Counter((control / "attempts.txt").read_text().split("\n"))
    assert sum(tasks.values()) - 1 <= 4 * 3 + 2, "a driver finds out within a task that the trial is run elsewhere"


def test_one_sweep_from_two_folders_is_run_by_the_first_alone(tmp_path: Path, root: Path) -> None:
    control, uri = tmp_path / "control", f"sqlite:///{tmp_path}/mlflow.db"
    control.mkdir()
    (control / "slow").touch()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        sweep_file(
            tmp_path / name, trainable="tests.faulty:Faulty", grid={"method": ["pcr"], "seed": {"range": [0, 9]}}
        )
    options = ["--tracking-uri", uri, "--max-concurrent", 1]
    first = start_sweep(tmp_path / "one", root, *options, FAULTY_CONTROL=str(control))
    wait_for((control / "attempts.txt").exists, "a first task", doer=first)
    second = run_sweep(tmp_path / "two", root, *options, FAULTY_CONTROL=str(control))
    assert second.returncode == 75, second.stdout + second.stderr
    assert "sweep 'tiny' of this store is being run on" in second.stderr and "Traceback" not in second.stderr
    assert not (tmp_path / "two" / "runs").exists()
    kill_everything(first)  # no last words: the sweep stays marked as running
    (control / "slow").unlink()
    third = run_sweep(tmp_path / "two", root, *options, FAULTY_CONTROL=str(control))
    assert third.returncode == 0, third.stdout + third.stderr
    store = Store(uri)
    runs = {i: store.attempts(i) for i in load(tmp_path / "two" / "tiny.yaml").trials}
    assert len(runs) == 9 and all(len(found) == 1 and found[0].finished for found in runs.values())
    for identity, (run,) in runs.items():
        assert sorted(m.step for m in store.client.get_metric_history(run.run_id, "loss")) == [1, 2, 3], identity
