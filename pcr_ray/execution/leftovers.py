"""What killed processes leave behind: folders of ours, Ray's sessions and processes. The next start clears it.

A folder that is in use holds a mark with a lock, which ends with its process, however that ends. Folders without a mark
are somebody else's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

MARK = ".pcr_ray-in-use"
SCRATCH = "pcr_ray-tune-"  # begins the names of our own folders in the temporary folder


@contextlib.contextmanager
def marked(folder: Path) -> Iterator[None]:
    """The folder is in use while the block lasts. The mark stays: it says whose the folder was."""
    with (folder / MARK).open("w") as file:
        with contextlib.suppress(OSError):  # a file system without locks: then nobody clears it either
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def clear(sessions: Path | None = None) -> int:
    """Remove what dead processes left, also below the folder of Ray's sessions; how many folders that were."""
    marks = list(Path(tempfile.gettempdir()).glob(f"{SCRATCH}*/{MARK}"))
    marks += sessions.glob(f"session_2*/{MARK}") if sessions else []
    return sum(map(_clear, marks))


def _clear(mark: Path) -> bool:
    folder = mark.parent
    try:
        if {mark.lstat().st_uid, folder.lstat().st_uid} != {os.getuid()} or folder.is_symlink():
            return False
        with mark.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _end_processes(folder)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # in use, or gone meanwhile
        return False
    return True


def _end_processes(session: Path) -> None:
    """Of Ray's, those that write into a dead session: some outlive a killed driver by minutes."""
    import psutil

    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or [])
        if "ray::" not in command and "/ray/" not in command:
            continue
        with contextlib.suppress(psutil.Error):
            files = [file.path for file in process.open_files()]
            if f"{session}/" in command or any(file.startswith(f"{session}/") for file in files):
                process.kill()
