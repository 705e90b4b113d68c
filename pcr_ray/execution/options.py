"""How an invocation runs its trials: options from the command line to the workers, and back to a command line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pcr_ray.datasets import data_root
from pcr_ray.errors import InputError

RERUN = ("failed", "changed", "all")


def _option(default: Any, text: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": text, **more})


def _is_place(address: str) -> bool:
    """Whether it is HOST:PORT, with a host that can be looked up."""
    host, _, port = address.rpartition(":")
    try:
        host.encode("idna")  # raises where no name can be so
        return bool(host) and port.isdigit() and 0 < int(port) < 65536
    except ValueError:
        return False


@dataclass(frozen=True)
class RunOptions:
    """Every option of `pcr-ray sweep` that is about running. A field is the option of its name, with dashes."""

    address: str | None = _option(None, "an existing Ray cluster: auto or HOST:PORT", metavar="ADDR")
    tracking_uri: str | None = _option(
        None, "MLflow (default: MLFLOW_TRACKING_URI, else mlflow.db here)", metavar="URI"
    )
    storage: str | None = _option(None, "where checkpoints go; on several nodes a path that all share", metavar="PATH")
    data_root: str | None = _option(None, "where datasets are (default: PCR_RAY_DATA, else a cache)", metavar="DIR")
    out: str = _option("runs", "where reports go (default: runs)", metavar="DIR")
    max_concurrent: int | None = _option(None, "at most N trials at once", metavar="N")
    rerun: str | None = _option(
        None, "run again what has ended: trials that failed, those whose code has changed since (failed ones too), or "
        "all; a new attempt replaces a finished one only when it is finished itself", choices=RERUN,
    )  # fmt: skip
    compile: bool = _option(False, "compile the trials' steps with torch.compile")
    ship: bool = _option(False, "send this package to the cluster's workers instead of using the installed one")
    wait: float | None = _option(None, "stop if no trial could start within so many minutes", metavar="MIN")
    stall_minutes: float | None = _option(
        None, "end the worker of a trial that finishes no task within so many minutes, and try again (default: 20 "
        "times the forecast, at least 30)", metavar="MIN",
    )  # fmt: skip
    verbose: bool = _option(False, "show Ray's own output too")
    flush_seconds: float = _option(60.0, "how long the end waits for an MLflow that is away (default: 60)", metavar="S")

    def __post_init__(self) -> None:
        if self.max_concurrent is not None and not 1 <= self.max_concurrent <= 1_000_000:
            raise InputError(f"--max-concurrent {self.max_concurrent}: needs a number from 1 to 1,000,000")
        if not 0 <= self.flush_seconds < 1e9:
            raise InputError(f"--flush-seconds {self.flush_seconds}: needs 0 or more")
        if self.wait is not None and not 0 < self.wait < 1e6:
            raise InputError(f"--wait {self.wait:g}: needs a number of minutes above 0")
        if self.stall_minutes is not None and not 0 < self.stall_minutes < 1e6:
            raise InputError(f"--stall-minutes {self.stall_minutes:g}: needs a number of minutes above 0")
        if self.ship and not self.address:
            raise InputError("--ship: there is no cluster to send code to; it goes with --address")
        if self.address and self.address.startswith("ray://"):
            raise InputError(
                f"--address {self.address}: Tune does not run through Ray Client; run the command on the cluster with "
                "--address auto (pcr-ray submit ray does that)"
            )
        if self.address and self.address != "auto" and not _is_place(self.address):
            raise InputError(f"--address {self.address}: expected auto or HOST:PORT, such as 10.0.0.1:6379")

    @classmethod
    def add_arguments(cls, parser: argparse._ActionsContainer, leave_out: Collection[str] = ()) -> None:
        for f in (f for f in fields(cls) if f.name not in leave_out):
            name, more = f"--{f.name.replace('_', '-')}", {k: v for k, v in f.metadata.items() if k != "help"}
            if f.type == "bool":
                parser.add_argument(name, action="store_true", help=f.metadata["help"])
            else:
                kind = {"int | None": int, "float": float, "float | None": float}.get(str(f.type), str)
                parser.add_argument(name, default=f.default, type=kind, help=f.metadata["help"], **more)

    @classmethod
    def parse(cls, namespace: argparse.Namespace) -> RunOptions:
        given = vars(namespace)
        return cls(**{f.name: given[f.name] for f in fields(cls) if f.name in given})

    def arguments(self) -> list[str]:
        """As words of a command line, without what is left at its default."""
        words: list[str] = []
        for f in fields(self):
            value = getattr(self, f.name)
            if value != f.default:
                words += [f"--{f.name.replace('_', '-')}", *([] if value is True else [str(value)])]
        return words

    @property
    def root(self) -> Path:
        return data_root(self.data_root)

    def folder(self, name: str) -> Path:
        """Of a sweep's report, spool and, unless --storage says otherwise, checkpoints; absolute."""
        return Path(self.out).absolute() / name

    def checkpoints(self, name: str) -> str:
        """Absolute, or a URI; a local folder is made."""
        place = self.storage or str(self.folder(name) / "checkpoints")
        if "://" in place:
            return place
        path = Path(place).absolute()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--storage {path}: cannot be used: {error}") from None
        if not os.access(path, os.W_OK):
            raise InputError(f"--storage {path}: cannot be written to")
        return str(path)
