"""`pcr-ray submit ray` against a real Ray head with its dashboard."""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sweeping import REPOSITORY, environment, histories, sweep_file, wait_for

MISSING = [m for m in ("aiohttp_cors", "opencensus", "grpc") if importlib.util.find_spec(m) is None]
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(MISSING), reason="Ray's dashboard needs pip install 'ray[default]'"),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Head:
    """A Ray head with a token of its own, ports of its own and a folder of its own."""

    def __init__(self, folder: Path, control: Path) -> None:
        self.url, self.token = f"http://127.0.0.1:{free_port()}", secrets.token_hex(32)
        self.secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token}
        ports = "port node-manager-port object-manager-port min-worker-port max-worker-port runtime-env-agent-port "
        ports += "dashboard-agent-listen-port dashboard-agent-grpc-port metrics-export-port"
        python = str(Path(sys.executable).parent)
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=2"),
                *(f"--{port}=0" for port in ports.split()),
                *(f"--temp-dir={folder}", f"--ray-client-server-port={free_port()}", "--disable-usage-stats"),
                *("--include-dashboard=true", f"--dashboard-port={self.url.rpartition(':')[2]}"),
            ],
            env=environment(control, **self.secret, RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S="0")
            | {"PATH": f"{python}:{os.environ['PATH']}", "PYTHONPATH": _path(REPOSITORY)},
            stdout=(folder / "head.log").open("w"), stderr=subprocess.STDOUT,
        )  # fmt: skip
        wait_for(self.answers, "Ray's dashboard", 90)

    def answers(self) -> bool:
        asked = urllib.request.Request(f"{self.url}/api/version", headers={"Authorization": f"Bearer {self.token}"})
        try:
            return urllib.request.urlopen(asked, timeout=5).status == 200
        except OSError:
            return False

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def _path(first: Path) -> str:
    """The code under test first; then whatever this Python was given."""
    return os.pathsep.join([str(first), *filter(None, [os.environ.get("PYTHONPATH", "")])])


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `tests.faulty` looks on the cluster."""
    return tmp_path_factory.mktemp("control")


@pytest.fixture(scope="module")
def head(control: Path) -> Iterator[Head]:
    folder = Path(f"/tmp/pcr-head-{os.getpid()}")  # short: Ray puts sockets there
    folder.mkdir()
    started = Head(folder, control)
    yield started
    started.stop()
    shutil.rmtree(folder)


@pytest.fixture
def slow(control: Path) -> Iterator[Path]:
    (control / "attempts.txt").unlink(missing_ok=True)
    (control / "slow").touch()
    yield control / "slow"
    (control / "slow").unlink(missing_ok=True)


def start(folder: Path, *words: object, code: Path = REPOSITORY, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pcr_ray", *map(str, words)], cwd=folder, text=True,
        env=environment(folder, **more) | {"PYTHONPATH": _path(code)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def typed(folder: Path, *words: object, code: Path = REPOSITORY, **more: str) -> tuple[int, str]:
    process = start(folder, *words, code=code, **more)
    text, _ = process.communicate(timeout=240)
    return process.returncode, text


def test_a_job_is_followed_to_its_end_with_this_machines_numbers(
    head: Head, tmp_path: Path, root: Path, one_nodes_numbers: dict[str, Any]
) -> None:
    there, cluster = tmp_path / "there", tmp_path / "on the cluster"
    there.mkdir()
    sweep_file(there)
    (there / "big.bin").write_bytes(os.urandom(1000))  # not to be sent
    words = ["submit", "ray", head.url, "tiny.yaml", "--folder", cluster, "--data-root", root]
    code, text = typed(there, *words, **head.secret)
    assert code == 0, text
    assert "4 to run" in text and "report.html" in text
    assert "Uploading" not in text and "WebSocket" not in text  # Ray's own talk
    numbers = histories(f"sqlite:///{cluster}/mlflow.db")
    assert len(numbers) == 4 and numbers == {name: one_nodes_numbers[name] for name in numbers}
    assert not list(Path(f"/tmp/pcr-head-{os.getpid()}").rglob("big.bin"))
    handle = re.findall(r"ray/http\S+", text)[-1]
    assert typed(there, "job", "status", handle, **head.secret)[1].startswith("SUCCEEDED, exit code 0")
    code, text = typed(there, *words, **head.secret)
    assert code == 0 and "4 done, 0 to run" in text, "run again, it runs nothing"


def test_ctrl_c_detaches_and_the_same_command_attaches_again(
    head: Head, tmp_path: Path, root: Path, slow: Path
) -> None:  # fmt: skip
    sweep_file(tmp_path, trainable="tests.faulty:Faulty")
    words = ["submit", "ray", head.url, "tiny.yaml", "--folder", tmp_path / "far", "--data-root", root]
    process = start(tmp_path, *words, **head.secret)
    wait_for(lambda: (slow.parent / "attempts.txt").exists(), "a first task", 120)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=30)
    assert process.returncode == 75 and "detached: the sweep goes on" in text
    handle = re.findall(r"ray/http\S+", text)[-1]
    assert typed(tmp_path, "job", "status", handle, **head.secret)[1].startswith("RUNNING")
    slow.unlink()
    code, text = typed(tmp_path, *words, "--max-concurrent", 1, **head.secret)
    assert code == 0, text
    assert "is running already, as it was first submitted" in text and handle in text
    assert "4 to run" in text and "report.html" in text
    assert len(histories(f"sqlite:///{tmp_path}/far/mlflow.db")) == 4


def test_a_cancelled_job_continues_when_it_is_submitted_again(
    head: Head, tmp_path: Path, root: Path, slow: Path
) -> None:  # fmt: skip
    sweep_file(tmp_path, trainable="tests.faulty:Faulty", grid={"method": ["er"], "seed": [0, 3]})
    words = ["submit", "ray", head.url, "tiny.yaml", "--folder", tmp_path / "far", "--data-root", root]
    process = start(tmp_path, *words, **head.secret)
    wait_for(lambda: list((tmp_path / "far").rglob("checkpoint*.pt")) != [], "a first finished task", 120)
    assert process.stdout
    handle = process.stdout.readline().partition(": ")[0]
    assert typed(tmp_path, "job", "cancel", handle, **head.secret)[0] == 0
    process.communicate(timeout=60)
    assert process.returncode == 75
    slow.unlink()
    code, text = typed(tmp_path, *words, **head.secret)
    assert code == 0, text
    attempts = (slow.parent / "attempts.txt").read_text().splitlines()
    assert len(attempts) <= 6 + 2, attempts  # only the tasks that were cut short are done again
    assert typed(tmp_path, "job", "cancel", handle, **head.secret)[0] == 2


def test_the_sweeps_exit_code_is_submits(head: Head, tmp_path: Path, root: Path, control: Path) -> None:
    sweep_file(tmp_path, trainable="tests.faulty:Faulty", retries=0, grid={"method": ["er"], "seed": [1]})
    (control / "raise").touch()
    words = ["submit", "ray", head.url, "tiny.yaml", "--folder", tmp_path / "far", "--data-root", root]
    code, text = typed(tmp_path, *words, **head.secret)
    (control / "raise").unlink()
    assert code == 1 and "made to fail" in text
    assert typed(tmp_path, *words, "--storage", "/proc/nothing", "--rerun", "failed", **head.secret)[0] == 2


def test_ship_sends_this_code(head: Head, tmp_path: Path, root: Path) -> None:
    """A trainable that only this copy of the code has."""
    for package in ("pcr_ray", "trainables"):
        shutil.copytree(REPOSITORY / package, tmp_path / "code" / package)
    (tmp_path / "code/trainables/mine.py").write_text("from trainables.online import OnlineTrainable as Mine\n")
    sweep_file(tmp_path, trainable="trainables.mine:Mine", grid={"method": ["er"], "seed": [0]})
    words = ["submit", "ray", head.url, "tiny.yaml", "--folder", tmp_path / "far", "--data-root", root]
    code, text = typed(tmp_path, *words, code=tmp_path / "code", **head.secret)
    assert code == 2 and "'trainables.mine:Mine' cannot be imported" in text
    code, text = typed(tmp_path, *words, "--ship", code=tmp_path / "code", **head.secret)
    assert code == 0, text


@pytest.mark.parametrize("token", ["wrong", None])
def test_a_wrong_or_missing_token_is_one_message(head: Head, tmp_path: Path, token: str | None) -> None:
    sweep_file(tmp_path)
    secret = {"RAY_AUTH_TOKEN": token, "RAY_AUTH_MODE": "token"} if token else {"HOME": str(tmp_path)}
    code, text = typed(tmp_path, "submit", "ray", head.url, "tiny.yaml", **secret)
    assert code == 2 and "RAY_AUTH_TOKEN" in text and len(text.splitlines()) == 1, text


def test_nobody_there_or_somebody_else_is_told_within_10_s(tmp_path: Path) -> None:
    sweep_file(tmp_path)
    code, text = typed(tmp_path, "submit", "ray", f"http://127.0.0.1:{free_port()}", "tiny.yaml")
    assert code == 2 and "nobody answers" in text and len(text.splitlines()) == 1
    with socket.socket() as silent:  # takes connections and says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        from pcr_ray.clusters.ray import _knock
        from pcr_ray.errors import InputError

        before = time.monotonic()
        with pytest.raises(InputError, match="nobody answers"):
            _knock(f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert time.monotonic() - before < 10
