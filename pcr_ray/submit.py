"""Send a sweep somewhere else: pcr-ray submit BACKEND FILE, and pcr-ray job status|logs|cancel HANDLE."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from pcr_ray.clusters import BACKENDS, Backend, Job
from pcr_ray.console import console, run
from pcr_ray.errors import InputError
from pcr_ray.registry import did_you_mean
from pcr_ray.study import load as sweepfile
from pcr_ray.study.load import Sweep
from pcr_ray.study.reader import read_yaml

NOT_PASSED_ON = ("help", "file", "address", "dry_run")  # options of a sweep that are the backend's to say


def main(argv: Sequence[str]) -> int:
    if not argv or argv[0].startswith("-"):
        p = argparse.ArgumentParser(
            prog="pcr-ray submit",
            usage="pcr-ray submit BACKEND ... FILE [options of the backend] [options of the sweep]",
            description="\n".join(["Run a sweep elsewhere:", *(f"  {b.name:10}{b.summary}" for b in BACKENDS)]),
            epilog="`pcr-ray submit BACKEND --help` lists a backend's options.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        p.parse_args(argv or ["--help"])
        p.error("a BACKEND comes first")
    kind = BACKENDS.get(argv[0])
    p = argparse.ArgumentParser(prog=f"pcr-ray submit {kind.name}", description=f"{kind.title}: {kind.summary}.")
    kind.add_arguments(p)
    p.add_argument("file", type=Path, metavar="FILE", help="a sweep file, such as sweeps/quickstart.yaml")
    p.add_argument("--print", action="store_true", help="print what would be submitted, and submit nothing")
    actions = sweep_options(p)
    options = p.parse_args(argv[1:])
    backend, task = kind(options), make_job(options, actions)
    if options.print:
        sys.stdout.write(backend.render(task))
        return 0
    handle = backend.submit(task)
    console.print(f"{handle}: {task.name}", soft_wrap=True, markup=False)
    console.print(f"  pcr-ray job status|logs|cancel {handle}", soft_wrap=True, markup=False)
    return backend.attend(handle)


def job(argv: Sequence[str]) -> int:
    """The verbs of a job that was submitted."""
    p = argparse.ArgumentParser(prog="pcr-ray job", description="Look after a job that was submitted.")
    p.add_argument("verb", choices=["status", "logs", "cancel"])
    p.add_argument("handle", metavar="HANDLE", help="as submit printed it, such as slurm/123")
    p.add_argument("-f", "--follow", action="store_true", help="with logs: go on until the job ends")
    options = p.parse_args(argv)
    backend = _backend(options.handle)
    if options.verb == "status":
        console.print(backend.status(options.handle), soft_wrap=True, markup=False)
    elif options.verb == "logs":
        backend.logs(options.handle, options.follow)
    else:
        backend.cancel(options.handle)
        console.print(f"{options.handle}: cancelled; the same submit command continues", soft_wrap=True, markup=False)
    return 0


def _backend(handle: str) -> Backend:
    name, slash, _ = handle.partition("/")
    if not slash or name not in BACKENDS:
        raise InputError(f"'{handle}' is not a job's handle, such as slurm/123{did_you_mean(name, BACKENDS.names())}")
    kind, p = BACKENDS.get(name), argparse.ArgumentParser(add_help=False)
    kind.add_arguments(p)
    return kind(argparse.Namespace(**{action.dest: action.default for action in p._actions}))


def sweep_options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Give `submit` the options of a sweep."""
    from pcr_ray import sweep

    group = parser.add_argument_group("options of the sweep")
    actions = [a for a in sweep.parser()._actions if a.dest not in NOT_PASSED_ON]
    return [group._add_action(action) for action in actions]


def make_job(options: argparse.Namespace, actions: list[argparse.Action]) -> Job:
    """The sweep file, checked, with the sweep's options that were given as words again."""
    words: list[str] = []
    for action in actions:
        value, option = getattr(options, action.dest), action.option_strings[0]
        if value == action.default:
            continue
        if isinstance(value, list):
            words += [word for v in value for word in (option, str(v))]
        else:
            words += [option] if value is True else [option, str(value)]
    sweep = sweepfile.load(options.file, options.set)
    file = options.file.absolute()
    return Job(sweep.name, file, _alone(file.read_text(encoding="utf-8"), sweep), Path.cwd(), words)


def _alone(text: str, sweep: Sweep) -> str:
    """The file's text with the paper's numbers written into it, where it names a CSV file beside it."""
    content = read_yaml(text)
    if not isinstance((content.get("report") or {}).get("paper"), str):
        return text
    content["report"]["paper"] = sweep.spec.report.paper
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


if __name__ == "__main__":
    sys.exit(run(main))
