"""What all commands share: one console, errors as one message, the exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.markup import escape

from pcr_ray.errors import PcrRayError

console = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)

INTERRUPTED = 130


def run(main: Callable[[Sequence[str]], int], argv: Sequence[str] | None = None) -> int:
    """Run a command; a user's mistake ends in one message and its exit code, never in a traceback."""
    try:
        return main(sys.argv[1:] if argv is None else argv)
    except PcrRayError as error:
        stderr.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        return error.exit_code
    except KeyboardInterrupt:
        stderr.print("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe, such as head, has gone
        sys.stderr.close()
        return 0
