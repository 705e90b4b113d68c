"""What all commands share: one console, the parser of options, errors as one message, the exit code."""

from __future__ import annotations

import argparse
import atexit
import difflib
import errno
import io
import os
import signal
import sys
import sysconfig
import textwrap
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.markup import escape

from pcr_ray.errors import InputError, PcrRayError
from pcr_ray.text import first_line, is_plain, redact


class Screen(Console):
    """Long lines stay whole in a pipe. A terminal gets them broken between words, never inside a path or a link."""

    def print(self, *objects: Any, soft_wrap: bool | None = None, **how: Any) -> None:
        if soft_wrap is None:
            soft_wrap = all(isinstance(thing, str) for thing in objects)
        if soft_wrap and self.is_terminal:
            objects = tuple(_broken(thing, self.width) if isinstance(thing, str) else thing for thing in objects)
        super().print(*objects, soft_wrap=soft_wrap, **how)

    def on_broken_pipe(self) -> None:
        """The reader of a pipe, such as head, has gone: what follows is for nobody, and no reason to end a sweep."""
        self.quiet = True
        with Path(os.devnull).open("wb") as nowhere:  # else Python complains about the pipe at its end
            os.dup2(nowhere.fileno(), self.file.fileno())


def _broken(text: str, width: int) -> str:
    lines = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        lines += textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False,
            expand_tabs=False, replace_whitespace=False,
        ) or [""]  # fmt: skip
    return "\n".join(lines)


console = Screen(highlight=False)
stderr = Screen(stderr=True, highlight=False)

INTERRUPTED = 130
IMPOSSIBLE = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP, errno.EINVAL)  # names, not circumstances


def run(main: Callable[[Sequence[str]], int], argv: Sequence[str] | None = None) -> int:
    """Run a command; a user's mistake ends in one message and its exit code, never in a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that the terminal cannot show is no reason to end
            stream.reconfigure(errors="backslashreplace")
    try:
        words = sys.argv[1:] if argv is None else argv
        if odd := [word for word in words if not is_plain(word)]:
            raise InputError(f"{odd[0]!r}: a NUL, or bytes that are not UTF-8; rename what is called so")
        code = main(words)
        sys.stdout.flush()  # here, where what goes wrong is told
        return code
    except PcrRayError as error:
        stderr.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        return error.exit_code
    except KeyboardInterrupt:
        stderr.print("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe, such as head, has gone
        sys.stderr.close()
        return 0
    except OSError as error:  # a full disk, a folder that may not be written, a name that no file can have
        stderr.print(f"[bold red]error:[/] {escape(first_line(error))}", soft_wrap=True)
        return InputError.exit_code if error.errno in IMPOSSIBLE else PcrRayError.exit_code
    except Exception as error:
        # What a traceback shows may be a URI with its password.
        stderr.print(f"{redact(traceback.format_exc())}{_whose(error)}", markup=False, soft_wrap=True)
        return PcrRayError.exit_code


def _whose(error: Exception) -> str:
    """Ours, unless a plugin was on the way there: its author looks for the mistake there first."""
    ours = (str(Path(__file__).parent), sysconfig.get_path("stdlib"), "<")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    theirs = [f for f in frames if not {"site-packages", "dist-packages"} & set(Path(f.filename).parts)]
    if not theirs:
        return "this is a bug of pcr_ray"
    return f"this came from {theirs[-1].filename}, line {theirs[-1].lineno}, which is no part of pcr_ray"


def leave(code: int) -> NoReturn:
    """End the process. All is said by now: a stop signal that comes while Python shuts down changes no exit code.

    Python's own end restores the deadly handlers halfway. Under `python -m` it is also by SIGINT, whatever the exit
    code, if Ctrl-C was caught in code from a string, such as the methods that an import makes for a dataclass.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: os._exit(code))
    atexit._run_exitfuncs()
    os._exit(code)


class Help(argparse.HelpFormatter):
    """`pcr-ray methods` is not broken at its hyphen."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return textwrap.indent("\n".join(self._split_lines(text, width - len(indent))), indent)


class Parser(argparse.ArgumentParser):
    """Mistakes are one line, with the option that was meant: argparse prints all options first, `train` has forty."""

    def __init__(self, *words: Any, **how: Any) -> None:
        super().__init__(*words, **{"formatter_class": Help} | how)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{self.prog}: {message}; {self.prog} --help lists the options")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            option = next((word for word in unknown if word.startswith("-")), None)
            if option is None:
                self.error(f"unexpected argument {unknown[0]!r}")
            self.error(f"unknown option {option.partition('=')[0]}{self._meant(option)}")
        return found

    def _meant(self, option: str) -> str:
        """By its help, as `--lr` for `--learning-rate`, or by its letters."""
        words = option.partition("=")[0].strip("-").replace("-", " ").replace("_", " ").lower()
        helps = {a.option_strings[-1]: a.help or "" for a in self._actions if a.option_strings}
        meant = [name for name, text in helps.items() if words and text.lower().startswith(words)]
        meant = meant or difflib.get_close_matches(option.partition("=")[0], list(helps), n=1)
        return f" (did you mean {meant[0]}?)" if meant else ""
