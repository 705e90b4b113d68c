"""A real PostgreSQL that tests may kill: Debian's package, as a user that is not root."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.servers import free_port
from tests.sweeping import wait_for

HOMES = Path("/usr/lib/postgresql")


def missing() -> str | None:
    """Why there can be none here."""
    if not list(HOMES.glob("*/bin/postgres")):
        return "PostgreSQL is not installed (Debian: apt-get install postgresql)"
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        return "there is no user postgres"
    return None if os.getuid() == 0 or pwd.getpwuid(os.getuid()).pw_name == "postgres" else "needs root"


class Postgres:
    """Killed, it leaves its files as a machine does that loses its power."""

    def __init__(self, folder: Path) -> None:
        self.bin = sorted(HOMES.glob("*/bin"))[-1]
        self.folder, self.port = folder / "data", free_port()
        self.uri = f"postgresql+psycopg2://postgres@127.0.0.1:{self.port}/postgres"
        shutil.chown(folder, "postgres")
        self._as_postgres("initdb", "-D", self.folder, "-A", "trust", "-U", "postgres", "--no-sync")

    def _as_postgres(self, command: str, *arguments: object) -> None:
        words = [str(self.bin / command), *map(str, arguments)]
        user = "postgres" if os.getuid() == 0 else None
        done = subprocess.run(words, user=user, cwd="/", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        options = f"-p {self.port} -h 127.0.0.1 -k {self.folder.parent}"
        log = self.folder.parent / "log.txt"
        self._as_postgres("pg_ctl", "-D", self.folder, "-l", log, "-o", options, "-w", "-t", 120, "start")

    def kill(self) -> None:
        """SIGKILL to all of its processes at once."""
        parent = psutil.Process(int((self.folder / "postmaster.pid").read_text().split()[0]))
        family = [parent, *parent.children(recursive=True)]
        for process in family:
            process.send_signal(signal.SIGKILL)
        psutil.wait_procs(family, 30)
        wait_for(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in family), "its end", 30)
        (self.folder / "postmaster.pid").unlink()


@contextmanager
def postgres() -> Iterator[Postgres]:
    folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))  # which the user postgres can reach
    database = Postgres(folder)
    database.start()
    try:
        yield database
    finally:
        if (database.folder / "postmaster.pid").exists():
            database.kill()
        shutil.rmtree(folder, ignore_errors=True)
