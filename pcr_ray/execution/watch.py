"""Threads that look after a running sweep: is the cluster's head alive, does anything start, does all of it get on?"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil

from pcr_ray.console import console
from pcr_ray.study.schema import Resources
from pcr_ray.text import duration

BEAT = 5.0  # seconds between looks
MISSED = 3  # looks in vain before the head counts as lost; Ray ends the process after 60 s on its own
LAST_LOOK = 30.0  # seconds
REMIND = 60.0  # seconds between lines about a cluster that is full


@contextlib.contextmanager
def _thread(look: Callable[[], bool]) -> Iterator[None]:
    """Calls `look` every few seconds until it is True or the block ends."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(BEAT) and not look():
            pass

    thread = threading.Thread(target=work, name="pcr_ray-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(LAST_LOOK)  # while it looks, nothing may be taken apart: it would hold Ray for dead


@contextlib.contextmanager
def head(lost: Callable[[], None], *, local: bool) -> Iterator[None]:
    """Calls `lost` when the cluster's head has not answered for a while, or a process of our own Ray has died."""
    import ray

    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    missed = 0

    def look() -> bool:
        nonlocal missed
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=BEAT).close()
            missed = 0
        except OSError:
            missed += 1
        if over := missed >= MISSED or (local and _broken()):
            lost()
        return over

    with _thread(look):
        yield


@contextlib.contextmanager
def starting(broken: Callable[[], None]) -> Iterator[None]:
    """While Ray starts here. It waits a minute for a process of its own that has died, and then ends ours with 1."""
    before = _dead_children()  # of an earlier Ray in this process

    def look() -> bool:
        if over := bool(_dead_children() - before):
            broken()
        return over

    with _thread(look):
        yield


def _dead_children() -> set[int]:
    """Processes of Ray that have ended, and that nobody has asked about yet: it knows them only once it has started."""
    with contextlib.suppress(psutil.Error):
        return {
            child.pid
            for child in psutil.Process().children()
            if child.name() in ("gcs_server", "raylet") and child.status() == psutil.STATUS_ZOMBIE
        }
    return set()


def _broken() -> bool:
    """A Ray of our own is one node: without its raylet no trial goes on."""
    from ray._private import worker

    node: Any = worker._global_node
    return node is not None and any(kind in ("raylet", "gcs_server") for kind, _ in node.dead_processes())


@contextlib.contextmanager
def start(started: Callable[[], bool], resources: Resources, minutes: float | None) -> Iterator[None]:
    """While no trial has started: who waits for what. Past `minutes` the sweep is stopped as by Ctrl-C."""
    began = time.monotonic()
    # Asked before our own trials take what is free. Where there is room, starting may still take a while.
    told = began if _has_room(resources) else began - REMIND

    def look() -> bool:
        nonlocal told
        now = time.monotonic()
        if started():
            return True
        if minutes is not None and now - began > 60 * minutes:
            console.print(f"no trial could start within --wait {minutes:g} minutes: stopping", soft_wrap=True)
            os.kill(os.getpid(), signal.SIGINT)
            return True
        if now - told >= REMIND:
            told = now
            console.print(f"waiting for resources ({duration(now - began)}): {occupancy(resources)}", soft_wrap=True)
        return False

    with _thread(look):
        yield


@contextlib.contextmanager
def stalled(
    idle: Callable[[], dict[str, float]], soonest: float, limit: Callable[[str], float], end: Callable[[str], None]
) -> Iterator[None]:
    """Calls `end` for trials that have been idle for more seconds than their limit, which is `soonest` or more."""

    def look() -> bool:
        for identity, seconds in idle().items():
            if seconds > soonest and seconds > limit(identity):
                end(identity)
        return False

    with _thread(look):
        yield


def _has_room(resources: Resources) -> bool:
    import ray

    free = ray.available_resources()
    return free.get("CPU", 0) >= resources.cpu and free.get("GPU", 0) >= (resources.gpu or 0)


def occupancy(resources: Resources) -> str:
    """`a trial needs 1 CPU; of 8 CPU 0 are free, of 2 GPU 0.5`."""
    import ray

    total, free = ray.cluster_resources(), ray.available_resources()
    parts = [f"of {total[k]:g} {k} {free.get(k, 0):g} are free" for k in ("CPU", "GPU") if total.get(k)]
    return f"a trial needs {resources}; " + (", ".join(parts) or "the cluster has no CPU yet")
