"""This machine: the sweep in the background, with the same verbs as everywhere else. For trying things out."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from pcr_ray.clusters._base import BACKENDS, Backend, Job
from pcr_ray.clusters._files import absolute_arguments, show
from pcr_ray.console import console
from pcr_ray.errors import InputError

# Writes down what a parent would be told, for there is none any more when the sweep ends.
KEEPER = """
import pathlib, subprocess, sys
home, command = pathlib.Path(sys.argv[1]), sys.argv[2:]
process = subprocess.Popen(command)
(home / "local.pid").write_text(str(process.pid))
(home / "local.exit").write_text(str(process.wait()))
"""


@BACKENDS.register("local")
class Local(Backend):
    title = "This machine"
    summary = "a process in the background of this machine"

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--python", metavar="FILE", help="the Python of the sweep (default: this one)")

    def submit(self, job: Job) -> str:
        handle = f"local/{job.home}"
        if _running(job.home):
            console.print(f"sweep '{job.name}' is running already", markup=False)
            return handle
        try:
            job.home.mkdir(parents=True, exist_ok=True)
            for old in ("local.pid", "local.exit"):
                (job.home / old).unlink(missing_ok=True)
            with (job.home / "local.log").open("ab") as log:
                subprocess.Popen(
                    [sys.executable, "-c", KEEPER, str(job.home), *self._command(job)],
                    cwd=job.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            raise InputError(f"{job.home}: cannot be used: {error}") from None
        deadline = time.monotonic() + 10
        while not (job.home / "local.pid").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return handle

    def render(self, job: Job) -> str:
        return f"cd {shlex.quote(str(job.folder))} && {shlex.join(self._command(job))}\n"

    def _command(self, job: Job) -> list[str]:
        python = self.options.python or sys.executable
        return [python, "-m", "pcr_ray.sweep", str(job.file), *absolute_arguments(job)]

    def status(self, handle: str) -> str:
        home = _home(handle)
        if _running(home):
            return f"running, process {_read(home / 'local.pid')}, log {home / 'local.log'}"
        code = _read(home / "local.exit")
        return f"{f'ended with exit code {code}' if code else 'died'}, log {home / 'local.log'}"

    def logs(self, handle: str, follow: bool) -> None:
        home = _home(handle)
        show(home / "local.log", lambda: _running(home), follow)

    def cancel(self, handle: str) -> None:
        home = _home(handle)
        if not _running(home):
            raise InputError(f"{handle}: not running (any more)")
        os.kill(int(_read(home / "local.pid")), signal.SIGTERM)


def _home(handle: str) -> Path:
    home = Path(handle.partition("/")[2])
    if not (home / "local.log").exists():
        raise InputError(f"'{handle}' is not a job on this machine, such as local//home/me/runs/quickstart")
    return home


def _read(file: Path) -> str:
    return file.read_text().strip() if file.exists() else ""


def _running(home: Path) -> bool:
    """Whether the process is there and is the sweep: numbers of processes are used again."""
    number = _read(home / "local.pid")
    if not number or (home / "local.exit").exists():
        return False
    shown = subprocess.run(["ps", "-o", "args=", "-p", number], capture_output=True, text=True, check=False).stdout
    return "pcr_ray.sweep" in shown
