"""This machine: the sweep in the background, with the same verbs as everywhere else. For trying things out."""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from pcr_ray.clusters._base import BACKENDS, Backend, Job
from pcr_ray.clusters._files import absolute_arguments, show
from pcr_ray.console import console
from pcr_ray.errors import InputError, NotNowError

LOCK = "local.lock"

# Writes down what a parent would be told, for there is none any more when the sweep ends. It and the sweep hold the
# lock that the submission took. The job runs until both have let go: an exit code that is still to come is waited for.
KEEPER = """
import pathlib, subprocess, sys
home, lock, command = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
process = subprocess.Popen(command, pass_fds=[lock])
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
        handle, command = f"local/{job.home}", self._command(job)
        try:
            job.home.mkdir(parents=True, exist_ok=True)
            with (job.home / LOCK).open("w") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    console.print(f"sweep '{job.name}' is running already", markup=False)
                    return handle
                self._start(job, command, lock.fileno())
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ENOMEM):
                raise NotNowError(f"no process can be started at the moment: {error}; try again later") from None
            raise InputError(f"{job.home}: cannot be used: {error}") from None
        process, deadline = job.home / "local.pid", time.monotonic() + 10
        while not process.exists() and _running(job.home) and time.monotonic() < deadline:
            time.sleep(0.05)
        if not _running(job.home) and not process.exists():
            said = (job.home / "local.log").read_text(errors="replace").splitlines() or ["it said nothing"]
            raise InputError(f"{command[0]} could not be started: {said[-1]}; name another with --python")
        return handle

    def _start(self, job: Job, command: list[str], lock: int) -> None:
        for old in ("local.pid", "local.exit"):
            (job.home / old).unlink(missing_ok=True)
        with (job.home / "local.log").open("ab") as log:
            subprocess.Popen(
                [sys.executable, "-c", KEEPER, str(job.home), str(lock), *command], pass_fds=[lock],
                cwd=job.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def render(self, job: Job) -> str:
        return f"cd {shlex.quote(str(job.folder))} && {shlex.join(self._command(job))}\n"

    def _command(self, job: Job) -> list[str]:
        python = self.options.python or sys.executable
        if not shutil.which(python):
            raise InputError(f"--python {python}: no such program; name a Python, such as .venv/bin/python")
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
        process = _read(home / "local.pid")
        if not process:
            raise NotNowError(f"{handle}: is only starting; try again in a moment")
        with contextlib.suppress(ProcessLookupError):  # it ends by itself at this moment
            os.kill(int(process), signal.SIGTERM)


def _home(handle: str) -> Path:
    home = Path(handle.partition("/")[2])
    if not (home / "local.log").exists():
        raise InputError(f"'{handle}' is not a job on this machine, such as local//home/me/runs/quickstart")
    return home


def _read(file: Path) -> str:
    return file.read_text().strip() if file.exists() else ""


def _running(home: Path) -> bool:
    try:
        with (home / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
