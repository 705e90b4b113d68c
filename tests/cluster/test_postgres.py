"""PostgreSQL behind a real MLflow server, killed in mid-sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from pcr_ray.study.load import load
from tests import databases
from tests.servers import Server
from tests.sweeping import children, histories, start_sweep, sweep_file, wait_for
from tests.test_faults import undisturbed

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
