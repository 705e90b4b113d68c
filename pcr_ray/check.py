"""Does this installation work? Does my method? One line per part: pcr-ray check [FILE ...]

Without a name it is the image's health check, in seconds; with one, the contract of what is named, in a minute.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pcr_ray import plugins
from pcr_ray.console import Parser, console, run
from pcr_ray.errors import InputError
from pcr_ray.text import count, first_line
from pcr_ray.tracking.store import Store
from pcr_ray.tracking.uri import tracking_uri

OURS = str(Path(__file__).parent)
PACKAGES = ("torch", "torchvision", "ray", "mlflow")


def main(argv: Sequence[str]) -> int:
    p = Parser(
        prog="pcr-ray check",
        description="Check that this installation works, or that methods and datasets keep their promises.",
    )
    p.add_argument(
        "what", nargs="*", metavar="FILE|DIR|MODULE|NAME",
        help="plugins, or names of methods and datasets: run their contract on digits, about a minute per method",
    )  # fmt: skip
    p.add_argument("--data-root", metavar="DIR", help="where datasets are (default: PCR_RAY_DATA, else a cache)")
    options = p.parse_args(argv)
    if options.what:
        return promises(options.what, options.data_root)
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
        text, good = first_line(error), False
    _tell("ok" if good else "failed", f"{name}: {text}")
    return good


def _tell(verdict: str, text: str) -> None:
    style = {"ok": "green", "failed": "bold red"}.get(verdict, "yellow")
    console.print(f"[{style}]{verdict:6}[/]", end=" ")
    console.print(text, soft_wrap=True, markup=False)


def promises(named: Sequence[str], given_root: str | None) -> int:
    """The contract of what was named; the exit code."""
    from pcr_ray.contract import DATASET_CHECKS, METHOD_CHECKS
    from pcr_ray.datasets import data_root
    from pcr_ray.lazy import torch

    found = [item for name in named for item in _things(name)]
    torch.set_num_threads(1)
    broken = 0
    with tempfile.TemporaryDirectory() as scratch:  # digits are prepared there; a dataset is read where it is
        for kind, name in found:
            checks, root = (METHOD_CHECKS, Path(scratch)) if kind == "method" else (DATASET_CHECKS, None)
            for title, check in checks.items():
                broken += not _kept(f"{kind} {name}", title, partial(check, name, root or data_root(given_root)))
    total = sum(len(METHOD_CHECKS if kind == "method" else DATASET_CHECKS) for kind, _ in found)
    console.print(f"{broken} of {count(total, 'check')} failed")
    return 1 if broken else 0


def _things(name: str) -> list[tuple[str, str]]:
    """The methods and datasets of a plugin, or the one of that name."""
    known = [(registry.kind, name) for registry in plugins.KINDS if name in registry]
    if known:
        return known
    modules = plugins.load([name])
    if found := plugins.registered([m for names in modules.values() for m in names]):
        return found
    raise InputError(f"{name}: registers no method and no dataset; pcr-ray new writes a file that does")


def _kept(name: str, title: str, check: Callable[[], None]) -> bool:
    from pcr_ray.contract import Broken, NotHere

    started = time.perf_counter()
    try:
        check()
    except NotHere as error:
        _tell("left", f"{name}: {title}: {first_line(error)}")
        return True
    except Broken as error:
        _tell("failed", f"{name}: {title}: {error}")
        return False
    except Exception as error:  # somebody's code raises anything
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(OURS)]
        theirs = [f"{Path(f.filename).name}, line {f.lineno}" for f in frames if "site-packages" not in f.filename]
        where = f" ({theirs[-1]})" if theirs else ""
        _tell("failed", f"{name}: {title}: {type(error).__name__}: {first_line(error)}{where}")
        return False
    _tell("ok", f"{name}: {title}, {time.perf_counter() - started:.1f} s")
    return True


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
        return f"{found} will be made by the first sweep"
    started = time.perf_counter()
    with found.guarded():
        found.ping()
    return f"{found} answers in {time.perf_counter() - started:.1f} s"


if __name__ == "__main__":
    sys.exit(run(main))
