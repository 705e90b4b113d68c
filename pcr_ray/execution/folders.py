"""The folders that a sweep writes into: held by one process at a time, or only tried."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from pcr_ray.errors import InputError, NotNowError
from pcr_ray.execution.options import RunOptions
from pcr_ray.execution.storage import marked


@contextlib.contextmanager
def held(folder: Path, name: str) -> Iterator[None]:
    """The sweep's folder, for one process at a time. What is refused leaves none."""
    made = _missing(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        lock.acquire(timeout=0)
    except Timeout:
        raise NotNowError(
            f"sweep '{name}' is being run by another process (it holds {folder / '.lock'}): wait for it or stop it"
        ) from None
    except OSError as error:
        raise InputError(f"--out {folder.parent}: cannot be used: {error}") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # somebody has deleted the folder
            if [p.name for p in folder.iterdir()] == [".lock"]:
                (folder / ".lock").unlink()
                _remove(made)
        lock.release()


def place(folder: Path) -> str:
    """A sweep's folder and its machine, in few letters: who holds the folder knows that nobody else runs it there."""
    return hashlib.sha256(f"{socket.gethostname()}:{folder.resolve()}".encode()).hexdigest()[:16]


def check(options: RunOptions, name: str) -> None:
    """Refuses what a run would refuse, also while the sweep runs; leaves no folder that was not there."""
    folder = options.folder(name)
    made = _missing(folder)
    if options.storage and "://" not in options.storage:
        made += _missing(Path(options.storage).absolute())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        if options.storage:
            with marked(options.checkpoints(name)):
                pass
    except OSError as error:
        raise InputError(f"--out {folder.parent}: cannot be used: {error}") from None
    finally:
        _remove(made)


def _missing(folder: Path) -> list[Path]:
    """What making a folder would make, itself first."""
    return [place for place in (folder, *folder.parents) if not place.exists()]


def _remove(made: list[Path]) -> None:
    for place in sorted(made, key=lambda path: -len(path.parts)):
        with contextlib.suppress(OSError):  # gone, or somebody else has put something there
            place.rmdir()
