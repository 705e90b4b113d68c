"""CPU and memory of the driver's machine on a sweep's run: MLflow's own option, off by default."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pcr_ray.study.load import load
from pcr_ray.tracking.store import Store
from pcr_ray.tracking.sweep_run import SweepRun
from tests.sweeping import sweep_file


@pytest.mark.parametrize("wanted", [False, True])
def test_system_metrics_are_there_where_mlflows_option_asks_for_them(
    wanted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", raising=False)
    if wanted:
        monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "true")
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.2")
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLES_BEFORE_LOGGING", "1")
    store = Store(f"sqlite:///{tmp_path}/mlflow.db")
    store.open()
    run = SweepRun(store, load(sweep_file(tmp_path)))
    run.begin()

    def seen() -> set[str]:
        return {name for name in store.client.get_run(run.run_id).data.metrics if name.startswith("system/")}

    with run.watched():
        deadline = time.monotonic() + (60 if wanted else 2)
        while time.monotonic() < deadline and not seen():
            time.sleep(0.2)
    assert (
        {"system/cpu_utilization_percentage", "system/system_memory_usage_megabytes"} <= seen()
        if wanted
        else not seen()
    )
