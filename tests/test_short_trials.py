"""Trials shorter than a worker's start: every worker gets to work, none is ended before it is ready."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.short import START, TRIAL
from tests.sweeping import run_sweep, sweep_file

TRIALS = 60


@pytest.mark.slow
def test_short_trials_keep_all_workers_busy(tmp_path: Path, root: Path) -> None:
    sweep_file(tmp_path, trainable="tests.short:Short", grid={"method": ["er"], "seed": {"range": [0, TRIALS]}})
    run = run_sweep(tmp_path, root, "--max-concurrent", 2)
    assert run.returncode == 0, run.stdout + run.stderr
    started = (tmp_path / "workers.txt").read_text().split()
    assert len(started) == 2, f"{len(started)} workers were started, all but two of them in vain"
    ran = Counter((tmp_path / "trials.txt").read_text().split())
    assert sum(ran.values()) == TRIALS and ran.keys() == set(started)
    # While the second starts, the first runs some 13 trials; then they share.
    assert min(ran.values()) > (TRIALS - START / TRIAL) / 4
