"""What every backend of `pcr-ray submit` has in common: a job, and the same verbs. A new backend is one file."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from pcr_ray.registry import Registry

LOOPBACK = ("localhost", "127.0.0.1", "::1")  # on every machine, the machine itself


@dataclass(frozen=True)
class Job:
    """A checked sweep file and how to run it."""

    name: str  # of the sweep
    file: Path  # the sweep file, absolute
    text: str  # its YAML; the paper's CSV is written into it, so that the text stands alone
    folder: Path  # where submit was typed, absolute
    arguments: list[str]  # options of `python -m pcr_ray.sweep` besides FILE, as words of a command line
    plugins: list[Path] = field(default_factory=list)  # files and packages; `text` names their modules
    named: list[str] = field(default_factory=list)  # the same as paths and modules, for where `file` itself is read

    def option(self, name: str) -> str | None:
        """The value given to an option of the sweep, such as `--out`: the last one counts."""
        found = [self.arguments[i + 1] for i, word in enumerate(self.arguments[:-1]) if word == name]
        return found[-1] if found else None

    @property
    def home(self) -> Path:
        """The sweep's folder: reports, and what a backend keeps of its jobs."""
        return self.folder / (self.option("--out") or "runs") / self.name


class Backend(ABC):
    """Somewhere a sweep can run. Made from the parsed options of the command line."""

    name: ClassVar[str]  # set by `BACKENDS.register`
    title: ClassVar[str]  # as a person would write it, such as Slurm
    summary: ClassVar[str]  # one line for the list of backends

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    @classmethod
    @abstractmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """The backend's own options of `pcr-ray submit`. For `pcr-ray job` all of them have their defaults."""

    @abstractmethod
    def submit(self, job: Job) -> str:
        """Start the job and return its handle, such as `slurm/123`."""

    @abstractmethod
    def render(self, job: Job) -> str:
        """What `--print` prints: what would be submitted, the same bytes every time."""

    @abstractmethod
    def status(self, handle: str) -> str:
        """One line: how the job is."""

    @abstractmethod
    def logs(self, handle: str, follow: bool) -> None:
        """Print the job's output; with `follow` until the job ends."""

    @abstractmethod
    def cancel(self, handle: str) -> None:
        """Stop the job; the same submit command continues later."""

    def attend(self, handle: str) -> int:
        """What `submit` does once the job is handed over, and its exit code; a backend may follow the job here."""
        return 0


BACKENDS: Registry[Backend] = Registry("backend", "pcr_ray.clusters")
