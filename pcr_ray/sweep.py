"""The main job: python -m pcr_ray.sweep FILE. From YAML to Ray Tune to MLflow to an answer."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pcr_ray import plugins
from pcr_ray.console import Parser, console, leave, run
from pcr_ray.errors import NotNowError
from pcr_ray.execution import signals
from pcr_ray.execution.options import RunOptions
from pcr_ray.study.load import load

ALL_DONE, SOME_FAILED, INCOMPLETE = 0, 1, NotNowError.exit_code


def parser() -> argparse.ArgumentParser:
    p = Parser(
        prog="pcr-ray sweep",
        description="Run a sweep file; what is already done in MLflow is not run again.",
        epilog="Fields of trials: `pcr-ray train --help`; methods and their parameters: `pcr-ray methods NAME`; "
        "protocols: `pcr-ray presets`. Exit codes: 0 all done, 1 some trials failed, 2 bad input, 75 stopped before "
        "all were done.",
    )
    p.add_argument("file", metavar="FILE", help="a sweep file, such as sweeps/quickstart.yaml")
    p.add_argument("--dry-run", action="store_true", help="show the plan and a forecast, run nothing")
    p.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="override a key of the file: --set fixed.dataset=digits --set grid.seed='[0,1]'",
    )  # fmt: skip
    plugins.add_argument(p)
    RunOptions.add_arguments(p)
    return p


def main(argv: Sequence[str]) -> int:
    with signals.caught():  # from here on: what is imported below takes seconds
        try:
            return _sweep(argv)
        except KeyboardInterrupt:
            console.print(signals.STOPPED)
            return INCOMPLETE


def _sweep(argv: Sequence[str]) -> int:
    given = parser().parse_args(argv)
    options = RunOptions.parse(given)
    study = load(given.file, given.set, given.plugins)
    if given.dry_run:
        from pcr_ray.execution.driver import preview

        preview(study, options)
        return ALL_DONE
    from pcr_ray import api
    from pcr_ray.tracking.runs import Status

    status = api.run(study, options)
    return {Status.FINISHED: ALL_DONE, Status.FAILED: SOME_FAILED}.get(status, INCOMPLETE)


if __name__ == "__main__":
    leave(run(main))
