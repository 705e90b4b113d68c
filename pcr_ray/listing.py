"""What there is: pcr-ray methods, pcr-ray datasets"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from pcr_ray.console import console

if TYPE_CHECKING:
    from pcr_ray.methods import Method


def methods(argv: Sequence[str]) -> int:
    p = argparse.ArgumentParser(prog="pcr-ray methods", description="List the methods and their parameters.")
    p.add_argument("names", nargs="*", metavar="METHOD", help="describe these: formula, differences, parameters")
    p.add_argument("--markdown", action="store_true", help="everything about them, as in docs/methods.md")
    options = p.parse_args(argv)
    if options.markdown:
        sys.stdout.write(methods_markdown())
        return 0
    from pcr_ray.methods import METHODS

    for method in [METHODS.get(name) for name in options.names]:
        console.print("\n".join([_text(method), *_notes(method)]), markup=False, soft_wrap=True)
    if options.names:
        return 0
    table = Table()
    for column in ("name", "in the paper", "idea", "classifier", "parameters"):
        table.add_column(column, overflow="fold")
    for method in METHODS:
        table.add_row(method.name, method.title, method.idea, _classifier(method), _parameters(method))
    console.print(table)
    return 0


def _classifier(method: type[Method]) -> str:
    return "nearest mean" if method.nearest_mean else method.head


def _as_yaml(value: object) -> str:
    """As it is written in a sweep file."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parameters(method: type[Method]) -> str:
    return ", ".join(f"{name}={_as_yaml(field.default)}" for name, field in method.Params.model_fields.items())


def _default(method: type[Method], name: str) -> str:
    """`0.05, on cifar100 0.01`."""
    others = [f", on {d} {_as_yaml(v[name])}" for d, v in method.Params.by_dataset.items() if name in v]
    return f"{_as_yaml(method.Params.model_fields[name].default)}{''.join(others)}"


def methods_markdown() -> str:
    """docs/methods.md: written from the methods' own files, so that it cannot say anything else."""
    from pcr_ray.methods import METHODS

    lines = [
        "# Methods",
        "",
        "Written by `pcr-ray methods --markdown` from the methods' files; a test holds it to them.",
        "Parameters go under `params` in a sweep file, such as `params.alpha: [0.1, 0.5]`. Cost is a step's time over",
        "that of ER with as many images (FINE-TUNE and IID see half as many), measured on CIFAR10 at batch 10 + 10",
        "with one CPU thread; forecasts use it where no trial of the kind was recorded yet, and `pcr-ray bench`",
        "measures it anywhere. A method that has to wait for the device when it stores a batch says why below.",
        "",
        "Common to all, unless a trial says otherwise: images and augmented copies in one batch, pixels in [0, 1],",
        "Reduced ResNet18 with a global average pool (160 features at every image size; the PCR authors' public code",
        "pools MiniImageNet's 84 x 84 to 640), SGD at lr 0.1, and at inference the classes seen so far. A task's last",
        "batch is trained on also where it is smaller; several published systems drop it (the batches of the paper's",
        "datasets come out even). The",
        "classifier is cosine where the PCR paper writes the method's equation with it, else linear as in the",
        "published system; `head` switches it.",
        "",
        "| name | in the paper | idea | classifier | parameters | cost |",
        "| --- | --- | --- | --- | --- | ---: |",
    ]
    for method in METHODS:
        cells = [f"[{method.name}](#{method.name})", method.title, method.idea, _classifier(method)]
        lines.append(f"| {' | '.join(cells)} | {_parameters(method)} | {method.cost:g} |")
    for method in METHODS:
        lines += ["", f"## {method.name}", "", "```", _text(method), "```", *_notes(method)]
    return "\n".join(lines) + "\n"


def _text(method: type[Method]) -> str:
    """What stands at the top of the method's file."""
    return (inspect.getdoc(inspect.getmodule(method)) or "").strip()


def _notes(method: type[Method]) -> list[str]:
    fields = method.Params.model_fields.items()
    lines = [f"- `params.{name}` (default {_default(method, name)}): {field.description}" for name, field in fields]
    if method.inert:
        lines.append(f"- Without effect: {', '.join(f'`{name}`' for name in method.inert)}.")
    if method.syncs:
        lines.append(f"- Waits for the device when it stores a batch: {method.syncs}.")
    return lines


def datasets(argv: Sequence[str]) -> int:
    if argv[:1] == ["fetch"]:
        from pcr_ray.fetch import main

        return main(argv[1:])
    argparse.ArgumentParser(prog="pcr-ray datasets", description="List the datasets.").parse_args(argv)
    from pcr_ray.datasets import DATASETS

    table = Table()
    for column in ("name", "title", "classes", "tasks", "image size"):
        table.add_column(column)
    for dataset in DATASETS:
        numbers = [str(n or "yours") for n in (dataset.classes, dataset.tasks, dataset.image_size)]
        table.add_row(dataset.name, dataset.title, *numbers)
    console.print(table)
    for dataset in DATASETS:
        console.print(f"{dataset.name}: {dataset.how_to_get}", markup=False, soft_wrap=True)
    return 0
