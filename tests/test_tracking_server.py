"""A real MLflow server over HTTP, on PostgreSQL and on SQLite, that goes away in mid-sweep."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pcr_ray
from pcr_ray.analysis import document
from pcr_ray.errors import NotNowError
from pcr_ray.execution.options import RunOptions
from pcr_ray.study import load as study_files
from pcr_ray.tracking.runs import Status
from pcr_ray.tracking.store import Store
from tests.recorded import deliver
from tests.servers import Server
from tests.sweeping import children, histories, run_sweep, start_sweep, sweep_file, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    if request.param == "sqlite":
        server = Server(tmp_path, f"sqlite:///{tmp_path / 'server.db'}")
    else:
        server = Server(tmp_path, request.getfixturevalue("postgresql"))
    server.start()
    yield server
    server.stop()


def test_a_server_that_goes_away_in_mid_sweep_loses_and_doubles_nothing(
    server: Server, tmp_path: Path, root: Path
) -> None:
    sweep_file(tmp_path, trainable="tests.faulty:Faulty")
    (tmp_path / "slow").touch()
    process = start_sweep(tmp_path, root, "--tracking-uri", server.uri)
    spool = tmp_path / "runs/tiny/spool"
    wait_for(lambda: any(f.read_text().count('"event": "task"') >= 1 for f in spool.glob("*.jsonl")), "a finished task")
    server.stop()
    finished_before = (tmp_path / "attempts.txt").read_text().count("\n")
    wait_for(lambda: (tmp_path / "attempts.txt").read_text().count("\n") >= finished_before + 3, "work without MLflow")
    (tmp_path / "slow").unlink()
    server.start()
    assert process.wait(300) == 0, (tmp_path / "out.txt").read_text()
    runs = children(server.uri)
    assert len(runs) == 4 and {r.info.status for r in runs.values()} == {"FINISHED"}
    for name, metrics in histories(server.uri).items():
        for key, history in metrics.items():
            steps = [step for step, _ in history]
            assert len(steps) == len(set(steps)), f"{name}: {key} was delivered twice"
        assert [step for step, _ in metrics["average_accuracy"]] == [1, 2, 3]
        assert [step for step, _ in metrics["ncm/average_accuracy"]] == [1, 2, 3]


def test_numbers_of_a_server_that_stays_away_are_delivered_by_the_next_run(tmp_path: Path, root: Path) -> None:
    server = Server(tmp_path, f"sqlite:///{tmp_path / 'server.db'}")
    server.start()
    try:
        sweep_file(tmp_path, trainable="tests.faulty:Faulty", grid={"method": ["pcr"], "seed": [0]})
        (tmp_path / "slow").touch()
        process = start_sweep(tmp_path, root, "--tracking-uri", server.uri, "--flush-seconds", 1)
        wait_for(lambda: (tmp_path / "attempts.txt").exists(), "the first task")
        server.stop()
        assert process.wait(300) == 75, (tmp_path / "out.txt").read_text()
        assert "there is no report yet; when MLflow is back, run the same command again" in (
            tmp_path / "out.txt").read_text()  # fmt: skip
        attempts = (tmp_path / "attempts.txt").read_text()
        server.start()
        again = run_sweep(tmp_path, root, "--tracking-uri", server.uri)
        assert again.returncode == 0, again.stdout + again.stderr
        assert (tmp_path / "attempts.txt").read_text() == attempts, "nothing ran twice"
        assert (tmp_path / "runs/tiny/report.html").exists()
        (run,) = children(server.uri).values()
        assert run.info.status == "FINISHED" and "final_accuracy" in run.data.metrics
    finally:
        server.stop()


def test_credentials_in_a_tracking_uri_are_never_shown(tmp_path: Path, root: Path) -> None:
    sweep_file(tmp_path, grid={"method": ["pcr"], "seed": [0]})
    result = run_sweep(tmp_path, root, "--tracking-uri", "http://someone:hunter2@127.0.0.1:9/")
    assert result.returncode == 75
    assert "hunter2" not in result.stdout + result.stderr and "someone" not in result.stdout + result.stderr
    assert "***" in result.stderr


def test_a_server_that_goes_away_during_the_report_is_exit_code_75_and_the_same_command_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path, f"sqlite:///{tmp_path / 'server.db'}")
    server.start()
    try:
        content = {
            "name": "made",
            "fixed": {"dataset": "digits", "buffer": 20},
            "grid": {"seed": [0], "method": ["pcr"]},
        }
        study = study_files.parse(content, "a file")
        store = Store(server.uri)
        deliver(store, study, tmp_path / "elsewhere")
        options = RunOptions(out=str(tmp_path / "runs"), tracking_uri=server.uri)
        write = document.write

        def write_and_lose(*args: Any) -> None:
            write(*args)
            server.stop()

        monkeypatch.setattr(document, "write", write_and_lose)
        with pytest.raises(NotNowError, match="run the same command again"):
            pcr_ray.run(study, options)
        monkeypatch.setattr(document, "write", write)
        server.start()
        assert pcr_ray.run(study, options) is Status.FINISHED
        found = store.sweep("made")
        assert found is not None and found.status is Status.FINISHED
    finally:
        server.stop()
