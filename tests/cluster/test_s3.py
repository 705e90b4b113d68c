"""Checkpoints on an S3 server (moto's), with nodes that share nothing else."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.hosts import Lan, tell
from tests.sweeping import TINY, histories, sweep_file, wait_for

pytestmark = pytest.mark.cluster
FOUR = {"method": ["pcr", "er"], "seed": [0, 1]}
ENDPOINT = "endpoint_override=10.77.0.11:5000&scheme=http"
MAKE = """
import time, boto3
for attempt in range(60):
    try:
        boto3.client("s3", endpoint_url="http://127.0.0.1:5000").create_bucket(Bucket="bucket")
        break
    except Exception:
        time.sleep(0.5)
else:
    raise SystemExit("no S3 server")
"""
LIST = """
import boto3
found = boto3.client("s3", endpoint_url="http://127.0.0.1:5000").list_objects_v2(Bucket="bucket")
print(*(item["Key"] for item in found.get("Contents", []) if not item["Key"].endswith("/")))  # those are folders
"""


@pytest.fixture(scope="module")
def server(lan: Lan) -> Iterator[subprocess.Popen[str]]:
    lan.three_nodes()
    log = lan.shared / "moto.txt"
    process = lan.head.start(sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", "5000", log=log)
    lan.python(MAKE)
    yield process
    tell(process, signal.SIGKILL)
    process.wait(30)


def test_a_sweep_continues_from_its_checkpoints_on_s3(
    lan: Lan, folder: Path, server: subprocess.Popen[str], one_nodes_numbers: dict[str, Any]
) -> None:
    sweep_file(folder, trainable="tests.cluster.recording:Recording", grid=FOUR)
    storage = f"s3://bucket/some/where?{ENDPOINT}"
    (lan.shared / "slow").touch()
    driver = lan.start(folder, "--storage", storage)
    wait_for(lambda: len(lan.tasks("ended")) >= 3, "some tasks", doer=driver)
    tell(driver, signal.SIGINT)
    assert driver.wait(120) == 75, (folder / "out.txt").read_text()
    (lan.shared / "slow").unlink()
    kept = lan.python(LIST).split()
    assert kept and all(k.startswith("some/where/") and k.endswith("/checkpoint.pt") for k in kept), kept
    code, text = lan.sweep(folder, "--storage", storage)
    assert code == 0, text
    ended = Counter(tuple(task) for _, *task in lan.tasks("ended"))
    assert set(ended.values()) == {1} and len(ended) == 4 * TINY["tasks"], "it continued"
    assert len({host for host, *_ in lan.tasks("ended")}) > 1
    assert not lan.python(LIST).split(), "finished trials need no checkpoint"
    numbers = histories(f"sqlite:///{folder}/mlflow.db")
    assert len(numbers) == 4 and numbers == {name: one_nodes_numbers[name] for name in numbers}


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        ("s3://bucket/x?endpoint_override=10.77.0.11:1&scheme=http", "Could not connect to server"),
        (f"s3://nowhere/x?{ENDPOINT}", "Bucket 'nowhere' not found"),
        ("nonsense://bucket/x", "Unrecognized filesystem type"),
    ],
)
def test_storage_that_cannot_be_reached_is_refused_before_anything_starts(
    lan: Lan, folder: Path, server: subprocess.Popen[str], storage: str, said: str
) -> None:
    from mlflow import MlflowClient

    sweep_file(folder, grid=FOUR)
    code, text = lan.sweep(folder, "--storage", storage)
    assert code == 2 and said in text and f"--storage {storage}: cannot be" in text, text
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    assert not client.search_runs([client.get_experiment_by_name("pcr_ray").experiment_id])
