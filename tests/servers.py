"""A real `mlflow server` that tests may kill, pause and start again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.sweeping import wait_for


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """`mlflow server` on 127.0.0.1 that can be stopped and started again on the same store."""

    def __init__(self, folder: Path, backend: str) -> None:
        self.port = free_port()
        self.folder, self.backend = folder, backend
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.launch()
        wait_for(self.healthy, "the MLflow server", 180)

    def launch(self) -> None:
        """Without waiting until it answers."""
        with (self.folder / "server.txt").open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", self.backend,
                 "--artifacts-destination", str(self.folder / "artifacts"), "--host", "127.0.0.1",
                 "--port", str(self.port), "--workers", "1"],
                env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def healthy(self) -> bool:
        try:
            return urllib.request.urlopen(f"{self.uri}/health", timeout=2).status == 200
        except OSError:
            return False

    def signal(self, number: int) -> None:
        """To all of its processes."""
        assert self.process
        os.killpg(self.process.pid, number)

    def stop(self) -> None:
        if self.process:
            self.signal(signal.SIGKILL)
            self.process.wait(30)
            self.process = None
