"""Is a storage usable, and the same one everywhere? A mark in it, which every node must see."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from pcr_ray.checkpoints import below
from pcr_ray.errors import InputError
from pcr_ray.text import first_line, redact

SECONDS = 30.0  # pyarrow's own patience with a server that does not answer is minutes


@contextlib.contextmanager
def marked(storage: str) -> Iterator[str]:
    """The name of a mark in the storage for as long as the block lasts; refused where that cannot be written."""
    name = f".mark-{uuid.uuid4().hex[:12]}"
    try:
        _within(SECONDS, lambda: write_and_read(storage, name))
    except Exception as error:  # pyarrow and its clients raise many kinds
        raise InputError(
            f"--storage {redact(storage)}: cannot be written to and read from here: {first_line(error)}"
        ) from None
    try:
        yield name
    finally:
        with contextlib.suppress(Exception):
            delete(storage, name)


def problem(storage: str, mark: str) -> str | None:
    """On a node: what is wrong with the storage there."""
    own = f"{mark}-{uuid.uuid4().hex[:6]}"
    try:
        if not _within(SECONDS, lambda: seen(storage, mark)):
            return (
                f"the storage {redact(storage)} is not shared with it: trials could not continue there; name a path "
                "that all nodes share, or a URI such as s3://bucket/path, with --storage"
            )
        _within(SECONDS, lambda: write_and_read(storage, own))
        delete(storage, own)
    except Exception as error:
        return f"the storage {redact(storage)} cannot be written to there: {first_line(error)}"
    return None


def seen(storage: str, name: str) -> bool:
    files, path = _place(storage, name)
    return bool(files.get_file_info(path).is_file)


def write_and_read(storage: str, name: str) -> None:
    files, path = _place(storage, name)
    files.create_dir(path.rpartition("/")[0])
    with files.open_output_stream(path) as stream:
        stream.write(name.encode())
    with files.open_input_stream(path) as stream:
        if stream.read() != name.encode():
            raise OSError("what is written there reads differently")


def delete(storage: str, name: str) -> None:
    files, path = _place(storage, name)
    files.delete_file(path)


def _place(storage: str, name: str) -> tuple[Any, str]:  # pyarrow has no types
    from pyarrow import fs

    if "://" in storage:
        return fs.FileSystem.from_uri(below(storage, name))
    return fs.LocalFileSystem(), f"{storage}/{name}"


def _within(seconds: float, work: Callable[[], Any]) -> Any:
    """Its result; a TimeoutError, and a thread left behind, where it takes longer."""
    outcome: list[Any] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failure:
        raise failure[0]
    if not outcome:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return outcome[0]
