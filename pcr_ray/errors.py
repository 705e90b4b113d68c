"""Every error that a user can cause or meet, in one place, each with the exit code it ends in."""

from __future__ import annotations

MOST, LONGEST = 50, 600  # problems in one message, and characters of one: a value may be a whole book


class PcrRayError(Exception):
    """Shown as one clear message, never as a traceback."""

    exit_code = 1


class InputError(PcrRayError):
    """Something the user wrote cannot be used; nothing was started."""

    exit_code = 2


class DataError(InputError):
    """A dataset is absent, damaged or not what its name promises."""


class NotNowError(PcrRayError):
    """Not possible at this moment through no mistake of the user's: the same command continues later."""

    exit_code = 75


class DivergedError(PcrRayError):
    """The loss became NaN or infinite."""


def problems_error(what: str, problems: list[str]) -> InputError:
    """One message for all problems found, so that a file or command is corrected in one go."""
    shown = [p if len(p) <= LONGEST else f"{p[:LONGEST]}…" for p in problems[:MOST]]
    shown += [f"and {len(problems) - MOST} more"] if len(problems) > MOST else []
    lines = "\n".join(f"  - {p}" for p in shown)
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return InputError(f"{what}: {count}\n{lines}")
