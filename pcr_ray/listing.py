"""What there is: pcr-ray methods, pcr-ray datasets"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.table import Table

from pcr_ray.console import console


def methods(argv: Sequence[str]) -> int:
    argparse.ArgumentParser(prog="pcr-ray methods", description="List the methods.").parse_args(argv)
    from pcr_ray.methods import METHODS

    table = Table(show_lines=False)
    for column in ("name", "in the paper", "idea", "classifier", "parameters (default)"):
        table.add_column(column)
    for method in METHODS:
        fields = method.Params.model_fields
        parameters = ", ".join(f"{n} ({f.default})" for n, f in fields.items())
        table.add_row(method.name, method.title, method.idea, method.head, parameters)
    console.print(table)
    return 0


def datasets(argv: Sequence[str]) -> int:
    argparse.ArgumentParser(prog="pcr-ray datasets", description="List the datasets.").parse_args(argv)
    from pcr_ray.datasets import DATASETS

    table = Table()
    for column in ("name", "title", "classes", "tasks", "image size", "where it comes from"):
        table.add_column(column)
    for dataset in DATASETS:
        numbers = [str(n or "yours") for n in (dataset.classes, dataset.tasks, dataset.image_size)]
        table.add_row(dataset.name, dataset.title, *numbers, dataset.how_to_get)
    console.print(table)
    return 0
