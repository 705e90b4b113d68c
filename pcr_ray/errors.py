"""Every error that a user can cause or meet, in one place, each with the exit code it ends in."""

from __future__ import annotations


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
    lines = "\n".join(f"  - {p}" for p in problems)
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return InputError(f"{what}: {count}\n{lines}")
