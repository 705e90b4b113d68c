"""What killed processes leave behind: folders of ours, Ray's sessions and processes. The next start clears it.

A folder that is in use holds a mark with a lock, which ends with its process, however that ends. Folders without a mark
are somebody else's. A Ray that is only starting has no folder to mark yet: it is announced beside its sessions, whose
names end with the id of the process.
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
STARTING = ".pcr_ray-starting-"  # and a process's id


@contextlib.contextmanager
def marked(folder: Path) -> Iterator[None]:
    """The folder is in use while the block lasts. The mark stays: it says whose the folder was."""
    with (folder / MARK).open("w") as file:
        with contextlib.suppress(OSError):  # a file system without locks: then nobody clears it either
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


@contextlib.contextmanager
def announced(sessions: Path) -> Iterator[None]:
    """This process starts a Ray of its own, and has it while the block lasts."""
    note = sessions / f"{STARTING}{os.getpid()}"
    with contextlib.suppress(OSError):  # Ray will say what is wrong with its folder
        sessions.mkdir(parents=True, exist_ok=True)
        note.touch()
    try:
        yield
    finally:
        _mark_sessions(note)  # one that was stopped while it started has no mark yet


def clear(sessions: Path | None = None) -> int:
    """Remove what dead processes left, also below the folder of Ray's sessions; how many folders that were."""
    for note in sessions.glob(f"{STARTING}*") if sessions else []:
        _mark_unfinished(note)
    marks = list(Path(tempfile.gettempdir()).glob(f"{SCRATCH}*/{MARK}"))
    marks += sessions.glob(f"session_2*/{MARK}") if sessions else []
    return sum(map(_clear, marks))


def _mark_unfinished(note: Path) -> None:
    """The session of a process that died while it started Ray gets the mark that it would have had."""
    import psutil

    process = note.name.removeprefix(STARTING)
    with contextlib.suppress(OSError):
        if process.isdecimal() and not psutil.pid_exists(int(process)) and note.lstat().st_uid == os.getuid():
            _mark_sessions(note)


def _mark_sessions(note: Path) -> None:
    """Of the process that a note names; then the note is not needed any more."""
    with contextlib.suppress(OSError):
        for session in note.parent.glob(f"session_2*_{note.name.removeprefix(STARTING)}"):
            (session / MARK).touch()
        note.unlink()


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
