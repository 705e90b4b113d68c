"""The storage of checkpoints: usable, and the same one everywhere? And the checkpoints that leave it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Set
from typing import Any

from pcr_ray.checkpoints import CheckpointStore, below, kept
from pcr_ray.errors import InputError
from pcr_ray.text import first_line, redact
from pcr_ray.tracking.spool import Spool

SECONDS = 30.0  # pyarrow's own patience with a server that does not answer is minutes
CLEARING = 10.0  # seconds that the end of a sweep waits for deletions; the next start does what is left


@contextlib.contextmanager
def marked(storage: str) -> Iterator[str]:
    """The name of a mark in the storage for as long as the block lasts; refused where that cannot be written."""
    name = f".mark-{uuid.uuid4().hex[:12]}"
    try:
        _attempt("write", storage, name)
    except OSError as error:
        raise InputError(
            f"--storage {redact(storage)}: cannot be written to and read from here: {first_line(error)}"
        ) from None
    try:
        yield name
    finally:
        with contextlib.suppress(OSError):
            _attempt("delete", storage, name)


def problem(storage: str, mark: str) -> str | None:
    """On a node: what is wrong with the storage there."""
    own = f"{mark}-{uuid.uuid4().hex[:6]}"
    try:
        if not _attempt("see", storage, mark):
            return (
                f"the storage {redact(storage)} is not shared with it: trials could not continue there; name a path "
                "that all nodes share, or a URI such as s3://bucket/path, with --storage"
            )
        _attempt("write", storage, own)
        _attempt("delete", storage, own)
    except OSError as error:
        return f"the storage {redact(storage)} cannot be written to there: {first_line(error)}"
    return None


class Tidier:
    """Deletes checkpoints of finished trials in a thread of its own: nobody waits for disks and object stores."""

    def __init__(self, storage: str, spool: Spool) -> None:
        self.storage, self.spool = storage, spool
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="tidier", daemon=True)
        self._thread.start()

    def __enter__(self) -> Tidier:
        return self

    def __exit__(self, *_: object) -> None:
        self._tasks.put(None)
        self._thread.join(CLEARING)

    def delete(self, identity: str) -> None:
        """Of a finished trial, if its numbers are safe."""
        self._tasks.put(lambda: self._delete(identity))

    def clear(self, finished: Set[str]) -> None:
        """What an earlier invocation left of these: it was killed, or the storage refused."""
        self._tasks.put(lambda: self._clear(finished))

    def _clear(self, finished: Set[str]) -> None:
        for identity in kept(self.storage) & finished:
            self.delete(identity)

    def _delete(self, identity: str) -> None:
        if self.spool.durable(identity):
            CheckpointStore(self.storage, identity).delete()

    def _work(self) -> None:
        while task := self._tasks.get():
            with contextlib.suppress(Exception):  # a checkpoint too many is no reason to end a sweep
                task()


def _attempt(action: str, storage: str, name: str) -> bool:
    """A URI's in a process of its own: one that waits for a server in pyarrow cannot end for minutes."""
    if "://" not in storage:
        return _act(action, storage, name)
    try:
        child = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps([action, storage, name]),  # not among the arguments, which all can see: it may hold a key
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise OSError(f"no answer within {SECONDS:g} s") from None
    lines = child.stdout.splitlines()
    answer = json.loads(lines[-1]) if lines else child.stderr or "the attempt ended without a word"
    if not isinstance(answer, bool):
        raise OSError(answer)
    return answer


def _act(action: str, storage: str, name: str) -> bool:
    from pyarrow import fs

    files: Any = fs.LocalFileSystem()
    path = f"{storage}/{name}"
    if "://" in storage:
        files, path = fs.FileSystem.from_uri(below(storage, name))
    if action == "see":
        return bool(files.get_file_info(path).is_file)
    if action == "delete":
        files.delete_file(path)
        return True
    files.create_dir(path.rpartition("/")[0])
    with files.open_output_stream(path) as stream:
        stream.write(name.encode())
    with files.open_input_stream(path) as stream:
        if stream.read() != name.encode():
            raise OSError("what is written there reads differently")
    return True


if __name__ == "__main__":
    try:
        said: bool | str = _act(*json.loads(sys.stdin.read()))
    except Exception as error:  # pyarrow and its clients raise many kinds
        said = str(error) or type(error).__name__
    print(json.dumps(said))
