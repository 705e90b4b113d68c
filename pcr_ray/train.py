"""One trial without Ray or MLflow: python -m pcr_ray.train --dataset digits --method pcr --buffer 100 --seed 0"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import yaml
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from pcr_ray import plugins
from pcr_ray.config import TrialConfig
from pcr_ray.console import Parser, console, run
from pcr_ray.datasets import DATASETS
from pcr_ray.errors import InputError
from pcr_ray.methods import METHODS
from pcr_ray.study.presets import PRESETS
from pcr_ray.study.reader import read_yaml
from pcr_ray.study.resolve import resolve_or_exit
from pcr_ray.text import count

if TYPE_CHECKING:
    from pcr_ray.learner import Learner

LISTED: dict[str, Callable[[], list[str]]] = {
    "method": METHODS.names, "dataset": DATASETS.names, "preset": lambda: list(PRESETS),
}  # fmt: skip
MOST_THREADS = 1024  # torch's own limit is where an int of C ends


def parser() -> argparse.ArgumentParser:
    """Every field of a trial is an option; pydantic checks the values, all at once."""
    p = Parser(
        prog="pcr-ray train",
        description="Run one trial, without Ray or MLflow.",
        epilog="`pcr-ray methods NAME` describes a method and its parameters, `pcr-ray presets NAME` a protocol.",
    )
    plugins.add_argument(p)
    fields = p.add_argument_group("the trial")
    for name, field in TrialConfig.model_fields.items():
        option = "--" + name.replace("_", "-")
        default = "" if field.default is None or name == "params" else f" (default: {field.default})"
        text = (field.description or "") + _choices(name, field.annotation) + default
        if name == "params":
            fields.add_argument(option, nargs="+", action="extend", metavar="NAME=VALUE", default=[], help=text)
        elif field.annotation is bool:
            fields.add_argument(option, action=argparse.BooleanOptionalAction, help=text)
        else:
            fields.add_argument(option, metavar="X", help=text)
    how = p.add_argument_group("how it runs")
    how.add_argument("--data-root", metavar="DIR", help="where datasets are (default: PCR_RAY_DATA, else a cache)")
    how.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    how.add_argument("--compile", action="store_true", help="compile a step with torch.compile")
    how.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads (default: 1, as in sweeps)")
    how.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured there")
    how.add_argument(
        "--checkpoint", type=Path, metavar="DIR", help="save after every task there, and continue from there"
    )
    return p


def _choices(name: str, kind: Any) -> str:
    if name in LISTED:
        return f": {', '.join(LISTED[name]())}"
    return f" [{', '.join(get_args(kind))}]" if get_origin(kind) is Literal else ""


def trial_config(options: argparse.Namespace) -> TrialConfig:
    names = [n for n in TrialConfig.model_fields if n != "params"]
    given: dict[str, Any] = {n: v for n in names if (v := getattr(options, n)) is not None}
    if isinstance(given.get("betas"), str):
        given["betas"] = given["betas"].strip("[]").replace(",", " ").split()
    given["params"] = dict(_parameter(text) for text in options.params)
    return resolve_or_exit(given, "this trial cannot be run", strict=False)


def _parameter(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--params {text}: write NAME=VALUE")
    try:
        read = read_yaml(value)
    except yaml.YAMLError:
        raise InputError(f"--params {text}: {value!r} is not a value that YAML can read") from None
    if isinstance(read, str):
        with suppress(ValueError):
            return name, float(read)  # 1e-3 is text to YAML, and a number to whoever types it
    return name, read


def main(argv: Sequence[str]) -> int:
    options = parser().parse_args(argv)
    plugins.load(options.plugins)
    config = trial_config(options)
    _check_paths(options)
    import torch

    from pcr_ray.learner import Learner

    # More than one changes the last bits of sums, and makes small batches slower where cores are busy: 9 min for 39 s.
    torch.set_num_threads(options.threads)
    learner = Learner(config, root=options.data_root, beside=Path.cwd(), device=options.device, compile=options.compile)
    _describe(learner, options.threads)
    if options.checkpoint and learner.load(options.checkpoint):
        console.print(f"continuing after task {learner.tasks_done} from {escape(str(options.checkpoint))}")
    _run(learner, options.checkpoint)
    _show(learner.results())
    if options.json:
        write_json(options.json, learner.results() | {"device": str(learner.device), "threads": options.threads})
        console.print(f"written to {escape(str(options.json))}", soft_wrap=True)
    return 0


def _check_paths(options: argparse.Namespace) -> None:
    """Before an hour of training, not after it."""
    if not 1 <= options.threads <= MOST_THREADS:
        raise InputError(f"--threads {options.threads}: needs a number from 1 to {MOST_THREADS}")
    if options.json and (options.json.is_dir() or not options.json.absolute().parent.is_dir()):
        raise InputError(f"--json {options.json}: not a file in an existing folder")
    if options.checkpoint:
        try:
            options.checkpoint.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--checkpoint {options.checkpoint}: cannot be a folder ({error.strerror})") from None
    folders = {"--json": options.json and options.json.absolute().parent, "--checkpoint": options.checkpoint}
    for option, folder in folders.items():
        try:
            if folder:
                with tempfile.TemporaryFile(dir=folder):
                    pass
        except OSError as error:
            raise InputError(f"{option}: nothing can be written into {folder} ({error.strerror})") from None


def _describe(learner: Learner, threads: int) -> None:
    c = learner.config
    memory = f", memory of {c.buffer}, replay {c.replay_batch_size}" if c.buffer else ", no memory"
    console.print(
        f"{learner.method.title} on {c.dataset}: {len(learner.class_names)} classes in {c.tasks} tasks{memory}, "
        f"batch {c.batch_size}, {c.model}, {c.optimiser} lr {c.lr:g}, seed {c.seed}, on {learner.device}, "
        f"{count(threads, 'thread')}"
    )


def _run(learner: Learner, checkpoint: Path | None) -> None:
    """All remaining tasks, with a bar on a terminal and one line per task elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    tasks = len(learner.stream.tasks)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        line = bar.add_task("task 1", total=sum(learner.stream.steps(t) for t in range(tasks)))
        bar.advance(line, sum(learner.stream.steps(t) for t in range(learner.tasks_done)))
        while not learner.done:
            bar.update(line, description=f"task {learner.tasks_done + 1}/{tasks}")
            m = learner.run_task(on_step=lambda: bar.advance(line))
            if checkpoint:
                learner.save(checkpoint)
            ncm = f", NCM {m['ncm_average_accuracy']:5.1f}" if "ncm_average_accuracy" in m else ""
            console.print(
                f"task {m['task']}/{tasks}: accuracy {m['average_accuracy']:5.1f}{ncm}, loss {m['loss']:.3f}, "
                f"{m['samples_per_second']:.0f} images/s"
            )


def _show(results: dict[str, Any]) -> None:
    matrix = results["accuracy_matrix"]
    table = Table(title="Accuracy on each task after each task, in percent", title_justify="left")
    for name in ("after", *(f"task {j + 1}" for j in range(len(matrix))), "average", "forgetting"):
        table.add_column(name, justify="right")
    for i, row in enumerate(matrix):
        cells = [f"{a:.1f}" for a in row] + [""] * (len(matrix) - len(row))
        table.add_row(
            f"task {i + 1}", *cells, f"{results['average_accuracy'][i]:.1f}", f"{results['forgetting'][i]:.1f}"
        )
    console.print(table)
    ncm = results["ncm_final_accuracy"]
    console.print(
        f"final accuracy {results['final_accuracy']:.2f}"
        + (f", with the NCM classifier {ncm:.2f}" if ncm is not None else "")
        + f"; {results['samples_per_second']:.0f} images/s; peak memory {results['peak_memory_bytes'] / 2**30:.1f} GiB"
    )


def write_json(file: Path, content: dict[str, Any]) -> None:
    """Written elsewhere, then moved into place."""
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    scratch.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    scratch.replace(file)


if __name__ == "__main__":
    sys.exit(run(main))
