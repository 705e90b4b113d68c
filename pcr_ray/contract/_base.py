"""What the checks share: a promise that is not kept, and one that cannot be looked at here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Check = Callable[[str, Path], None]  # of a name, in a data root; raises what is wrong


class Broken(AssertionError):
    """A promise that is not kept."""


class NotHere(Exception):
    """What a check needs is not on this machine: nothing is said about the promise."""


def expect(kept: bool, otherwise: str) -> None:
    """As `assert`, also under `python -O`."""
    if not kept:
        raise Broken(otherwise)
