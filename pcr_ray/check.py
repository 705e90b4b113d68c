"""Does this installation work? Seconds, one line per part: pcr-ray check. The image's health check."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pcr_ray.console import console, run
from pcr_ray.text import redact
from pcr_ray.tracking.store import Store, tracking_uri

PACKAGES = ("torch", "torchvision", "ray", "mlflow")


def main(argv: Sequence[str]) -> int:
    p = argparse.ArgumentParser(prog="pcr-ray check", description="Check that this installation works.")
    p.add_argument("--data-root", metavar="DIR", help="where datasets are (default: PCR_RAY_DATA, else a cache)")
    options = p.parse_args(argv)
    checks: list[tuple[str, Callable[[], str]]] = [(name, partial(package, name)) for name in PACKAGES]
    checks += [("training", training), ("data root", lambda: writable(options.data_root))]
    if os.environ.get("MLFLOW_TRACKING_URI"):
        checks.append(("tracking store", store))
    passed = [_passes(name, check) for name, check in checks]
    return 0 if all(passed) else 1


def _passes(name: str, check: Callable[[], str]) -> bool:
    try:
        text, good = check(), True
    except Exception as error:  # a broken installation raises anything
        text, good = (redact(error).splitlines() or [""])[0] or type(error).__name__, False
    mark = "[green]ok    [/]" if good else "[bold red]failed[/]"
    console.print(mark, end=" ")
    console.print(f"{name}: {text}", soft_wrap=True, markup=False)
    return good


def package(name: str) -> str:
    """Imported for real: a wheel that does not fit the machine fails here."""
    module = importlib.import_module(name)
    if name != "torch":
        return str(module.__version__)
    gpus = module.cuda.device_count()
    cuda = f"CUDA {module.version.cuda}" if module.version.cuda else "CPU build"
    return f"{module.__version__}, {cuda}, {gpus or 'no'} GPU{'s' if gpus > 1 else ''}"


def training() -> str:
    """The first task of PCR on a few of the embedded digits, in a folder that is gone afterwards."""
    import torch

    from pcr_ray.learner import Learner
    from pcr_ray.study.resolve import resolve

    torch.set_num_threads(1)  # on a busy machine threads wait for each other: 26 s with two, 6 s with one
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        learner = Learner(resolve({"dataset": "digits", "method": "pcr", "buffer": 20, "fraction": 0.1}), root=folder)
        loss = learner.run_task()["loss"]
    return f"a task of PCR on digits, loss {loss:.2f}, {time.perf_counter() - started:.1f} s on {learner.device}"


def writable(given: str | None) -> str:
    from pcr_ray.datasets import data_root

    root = data_root(given)
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=root):
        return f"{root} can be written"


def store() -> str:
    found = Store(tracking_uri())
    if file := found.missing_file:  # no database is made for a look
        if not os.access(Path(file).parent, os.W_OK):
            raise OSError(f"{file} does not exist, and cannot be made there")
        return f"{redact(found.uri)} will be made by the first sweep"
    started = time.perf_counter()
    with found.guarded():
        found.ping()
    return f"{redact(found.uri)} answers in {time.perf_counter() - started:.1f} s"


if __name__ == "__main__":
    sys.exit(run(main))
