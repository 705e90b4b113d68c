"""The answer of a sweep, from MLflow alone: python -m pcr_ray.report NAME|FILE"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from pcr_ray import plugins
from pcr_ray.console import Parser, console, run


def main(argv: Sequence[str]) -> int:
    p = Parser(prog="pcr-ray report", description="Write a sweep's report from MLflow alone.")
    p.add_argument("sweep", metavar="NAME|FILE", help="the name of a sweep that was run, or a sweep file")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as for the sweep (with FILE)")
    p.add_argument("--tracking-uri", metavar="URI", help="where MLflow is (default: as for the sweep)")
    p.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="parent folder of the report")
    plugins.add_argument(p)
    options = p.parse_args(argv)
    plugins.load(options.plugins)
    from pcr_ray import api
    from pcr_ray.analysis import document

    answer = api.answer(options.sweep, api.existing_store(options.tracking_uri), options.set)
    folder = document.write(answer, options.out / answer.study.name)
    document.show(answer, console)
    if answer.failed:
        console.print(document.RETRY)
    console.print(f"report: {folder / 'report.html'}", soft_wrap=True, markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
