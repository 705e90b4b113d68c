"""The `pcr-ray` command: the same entry points as `python -m pcr_ray.X`, under one name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from pcr_ray.console import console, leave, run
from pcr_ray.errors import InputError
from pcr_ray.text import did_you_mean

COMMANDS = {
    "sweep": ("pcr_ray.sweep:main", "run a sweep file on Ray, recorded in MLflow"),
    "submit": ("pcr_ray.submit:main", "run a sweep elsewhere: Slurm, a Ray cluster, Kubernetes"),
    "job": ("pcr_ray.submit:job", "status or logs of what was submitted, or cancel it"),
    "report": ("pcr_ray.report:main", "write a sweep's tables and figures from MLflow"),
    "status": ("pcr_ray.status:main", "show how far a running or ended sweep is, and what failed"),
    "list": ("pcr_ray.status:sweeps", "list the sweeps of a store"),
    "ui": ("pcr_ray.ui:main", "open the MLflow UI of the same store on 127.0.0.1"),
    "train": ("pcr_ray.train:main", "run one trial, without Ray or MLflow"),
    "methods": ("pcr_ray.listing:methods", "list the methods and their parameters"),
    "presets": ("pcr_ray.listing:presets", "list the named protocols and their fields"),
    "datasets": ("pcr_ray.listing:datasets", "list the datasets"),
    "new": ("pcr_ray.new:main", "write a file with a method or dataset of your own, to start from"),
    "check": ("pcr_ray.check:main", "check that this installation works, or that your method does"),
    "bench": ("pcr_ray.bench:main", "time a step of each method"),
    "completion": ("pcr_ray.completion:main", "print a script that completes commands in bash and zsh"),
}


def main(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        console.print("usage: pcr-ray COMMAND ...\n")
        for name, (_, text) in COMMANDS.items():
            console.print(f"  {name:12}{text}")
        console.print("\n`pcr-ray COMMAND --help` lists a command's options.")
        return 0
    if argv[0] == "--version":
        from pcr_ray import __version__

        console.print(__version__)
        return 0
    if argv[0] not in COMMANDS:
        raise InputError(f"unknown command '{argv[0]}'{did_you_mean(argv[0], list(COMMANDS))}")
    module, _, function = COMMANDS[argv[0]][0].partition(":")
    return getattr(importlib.import_module(module), function)(argv[1:])


def entry() -> None:
    # A trainable beside the sweep file is found as with python -m; at the end, so that it hides nothing installed.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    leave(run(main))


if __name__ == "__main__":
    entry()
