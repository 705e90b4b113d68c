"""Stop signals: SIGINT, SIGTERM and SIGUSR1 stop a sweep alike, wherever it is."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pcr_ray.console import console

STOPPED = "stopped: run the same command again to continue"
AGAIN = 0.1  # seconds


@contextlib.contextmanager
def caught() -> Iterator[None]:
    """SIGTERM and SIGUSR1 act as Ctrl-C does, also where that itself is ignored, as it is behind a script's `&`.

    Tune has handlers of its own for SIGINT and SIGUSR1, and leaves them behind, where they stop nothing: all are put
    back at the end. Python drops what is raised in a `__del__`: a signal that came there is sent again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python handles signals in the main thread only
        return

    def interrupt(*_: object) -> None:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            raise KeyboardInterrupt
        os.kill(os.getpid(), signal.SIGINT)

    def dropped(news: Any) -> None:
        if issubclass(news.exc_type, KeyboardInterrupt):
            threading.Timer(AGAIN, _stop_again).start()
        else:
            tell(news)

    tell, sys.unraisablehook = sys.unraisablehook, dropped
    before = {signal.SIGINT: signal.getsignal(signal.SIGINT)}
    before |= {s: signal.signal(s, interrupt) for s in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    finally:
        sys.unraisablehook = tell
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop_again() -> None:
    if callable(signal.getsignal(signal.SIGTERM)):  # else nobody catches it any more
        os.kill(os.getpid(), signal.SIGTERM)


@dataclass
class Heard:
    """Whether a stop signal came."""

    asked: bool


@contextlib.contextmanager
def patience(asked: bool, finishing: str) -> Iterator[Heard]:
    """Around what follows the trials and takes seconds: the first stop signal says so, the next one quits.

    Where one has come before, as `asked` says, the next one quits.
    """
    heard = Heard(asked)
    if asked or threading.current_thread() is not threading.main_thread():
        yield heard
        return
    before = signal.getsignal(signal.SIGINT)

    def ask(*_: object) -> None:
        heard.asked = True
        signal.signal(signal.SIGINT, before)
        with contextlib.suppress(Exception):  # the signal may have come in the middle of another print
            console.print(f"these trials have ended, finishing {finishing} … (Ctrl-C again quits at once)")

    signal.signal(signal.SIGINT, ask)
    try:
        yield heard
    finally:
        signal.signal(signal.SIGINT, before)
