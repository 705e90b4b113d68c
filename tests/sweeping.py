"""Running whole sweeps as a user does: in a process of their own, in a folder of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parent.parent
TINY = {"dataset": "digits", "fraction": 0.1, "tasks": 3, "buffer": 20}


def sweep_file(folder: Path, **content: Any) -> Path:
    content = {"name": "tiny", "fixed": TINY, "grid": {"method": ["pcr", "er"], "seed": [0, 1]}, **content}
    file = folder / "tiny.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def command(folder: Path, root: Path, *arguments: object) -> list[str]:
    return [
        sys.executable,
        "-m",
        "pcr_ray.sweep",
        str(folder / "tiny.yaml"),
        "--data-root",
        str(root),
        *map(str, arguments),
    ]


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Workers import `tests.faulty` and find its control folder; no colours, wide lines."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW")}
    path = {"PYTHONPATH": str(REPOSITORY), "FAULTY_CONTROL": str(folder), "COLUMNS": "200", "NO_COLOR": "1"}
    # Workers are polite by default (nice 15), which lets them starve on a busy test machine, and Ray kills them where
    # memory is short, which may be somebody else's doing.
    return clean | path | {"RAY_worker_niceness": "0", "RAY_memory_monitor_refresh_ms": "0"} | more


def run_sweep(folder: Path, root: Path, *arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, root, *arguments),
        cwd=folder,
        env=environment(folder, **more),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def start_sweep(folder: Path, root: Path, *arguments: object, **more: str) -> subprocess.Popen[str]:
    """In a session of its own, so that everything it started can be killed with it."""
    return subprocess.Popen(
        command(folder, root, *arguments),
        cwd=folder,
        env=environment(folder, **more),
        stdout=(folder / "out.txt").open("w"),
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def kill_everything(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the driver and to all it started: Ray's processes are its descendants or in its session."""
    import psutil

    victims = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for victim in victims:
        try:
            victim.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    process.wait(30)


def wait_for(
    condition: Callable[[], bool], what: str, seconds: float = 300, doer: subprocess.Popen[str] | None = None
) -> None:
    """`doer` is the process that brings it about: not waited for once that has ended."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert doer is None or doer.poll() is None or condition(), f"it ended with {doer.poll()} without {what}"
        assert time.monotonic() < deadline, f"waited {seconds} s in vain for {what}"
        time.sleep(0.2)


def children(uri: str) -> dict[str, Any]:
    """The trials' runs in MLflow by name, asserting that no name is there twice."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("pcr_ray")
    runs = client.search_runs([experiment.experiment_id], "tags.`pcr_ray.kind` = 'trial'", max_results=1000)
    by_name = {r.info.run_name: r for r in runs}
    assert len(by_name) == len(runs), "a trial has more than one run"
    return by_name


def histories(uri: str) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Every metric's full history of every trial, without the metrics that measure time."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    return {
        name: {
            key: sorted((m.step, m.value) for m in client.get_metric_history(run.info.run_id, key))
            for key in run.data.metrics
            if key not in ("samples_per_second", "train_seconds", "peak_memory")
        }
        for name, run in children(uri).items()
    }
