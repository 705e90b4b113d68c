"""Where checkpoints go is tried before anything starts."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pcr_ray.checkpoints import below
from pcr_ray.errors import InputError
from pcr_ray.execution import storage
from tests.sweeping import environment


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("/a/b", "/a/b/x"),
        ("/a?/b/", "/a?/b/x"),
        ("s3://bucket", "s3://bucket/x"),
        ("s3://bucket/a/?region=here&scheme=http", "s3://bucket/a/x?region=here&scheme=http"),
    ],
)
def test_what_is_below_a_storage_keeps_its_options(place: str, found: str) -> None:
    assert below(place, "x") == found


def test_a_mark_is_seen_where_it_was_made_and_is_gone_afterwards(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here, elsewhere):
        folder.mkdir()
    with storage.marked(str(here)) as mark:
        assert storage.problem(str(here), mark) is None
        assert "is not shared with it" in str(storage.problem(str(elsewhere), mark))
    assert not list(here.iterdir()) and not list(elsewhere.iterdir())


def test_a_storage_that_cannot_be_written_to_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (str(tmp_path / "file"), "nonsense://bucket/x", f"file://{tmp_path}/file"):
        with pytest.raises(InputError) as caught, storage.marked(place):
            pass
        assert str(caught.value).startswith(f"--storage {place}: cannot be written to and read from here: ")


def test_credentials_are_not_shown() -> None:
    with pytest.raises(InputError) as caught, storage.marked("nonsense://user:secret@bucket/x"):
        pass
    assert "secret" not in str(caught.value) and "***@bucket" in str(caught.value)


def test_a_server_that_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    """Nor at the end of the process, where pyarrow would wait for its threads."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        uri = f"s3://bucket/x?endpoint_override=127.0.0.1:{silent.getsockname()[1]}&scheme=http&region=here"
        code = f"""
import sys
from pcr_ray.console import run
from pcr_ray.execution import storage
storage.SECONDS = 2
def main(_):
    with storage.marked({uri!r}):
        return 0
sys.exit(run(main))
"""
        began = time.monotonic()
        secret = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment(tmp_path, **secret),
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 2 and "no answer within 2 s" in done.stderr, done.stderr
    assert time.monotonic() - began < 30
