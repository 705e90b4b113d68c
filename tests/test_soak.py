"""The short form of the soak: one sweep, one fault after the other, every number compared. The long one: make soak."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import Soak


@pytest.mark.slow
def test_a_sweep_under_one_fault_after_the_other_keeps_every_number(tmp_path: Path, root: Path) -> None:
    soak = Soak(tmp_path, root, seed=0)
    soak.pause, soak.away = (1, 2), (1, 5)
    try:
        soak.server.start()
        faults = ["worker", "server killed", "raylet"]
        soak.sweep("short", {"method": ["pcr", "er"], "seed": [0, 1]}, 3, faults)
        tally = soak.check()
    finally:
        soak.close()
    assert tally.faults == {"worker": 1, "server killed": 1, "raylet": 1}, tally
    assert tally.trials == 4 and tally.compared > 4 * 3 * 10 and tally.starts >= 2
    assert tally.clean, tally
