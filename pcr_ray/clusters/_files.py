"""Files that backends on this machine's file system share: options made absolute, and a log to look at."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from pcr_ray.clusters._base import Job

PATHS = ("--out", "--storage", "--data-root")  # options of a sweep that name files


def absolute_arguments(job: Job) -> list[str]:
    """The sweep's options with every path below the folder where submit was typed."""
    words = list(job.arguments)
    for i, word in enumerate(words[:-1]):
        if word in PATHS and "://" not in words[i + 1]:
            words[i + 1] = str(job.folder / words[i + 1])
    return words + [word for plugin in job.named for word in ("--plugins", plugin)]


def show(log: Path, running: Callable[[], bool], follow: bool) -> None:
    """Print a log, and with `follow` what is added to it until nothing runs any more."""
    place = 0
    while True:
        more = follow and running()  # asked before reading: what was written up to the end is shown
        if log.exists():
            with log.open(encoding="utf-8", errors="replace") as file:
                file.seek(place)
                sys.stdout.write(file.read())
                sys.stdout.flush()
                place = file.tell()
        if not more:
            return
        time.sleep(1)
