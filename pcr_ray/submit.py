"""Send a sweep somewhere else: pcr-ray submit BACKEND FILE, and pcr-ray job status|logs|cancel HANDLE."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from pcr_ray import plugins
from pcr_ray.clusters import BACKENDS, Backend, Job
from pcr_ray.console import Parser, console, run
from pcr_ray.errors import InputError, problems_error
from pcr_ray.execution.options import RunOptions
from pcr_ray.study.load import Study, load
from pcr_ray.study.reader import read_yaml
from pcr_ray.text import did_you_mean, holds_credentials, redact, redact_uri
from pcr_ray.tracking.uri import uri_problem

THE_BACKENDS = ("address", "ship")  # options of a sweep that are the backend's to say
READABLE = "the options of a job can be read by others, and this one holds credentials"
LOGIN = (
    "leave them out and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or set MLFLOW_TRACKING_URI instead "
    "of the option: in the environment (ray: where the cluster's head is started; kuberay: in a Secret, with --secret)"
)
KEYS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment (ray: where the cluster's nodes are started)"


def main(argv: Sequence[str]) -> int:
    if not argv or argv[0].startswith("-"):
        p = Parser(
            prog="pcr-ray submit",
            usage="pcr-ray submit BACKEND ... FILE [options of the backend] [options of the sweep]",
            description="\n".join(["Run a sweep elsewhere:", *(f"  {b.name:10}{b.summary}" for b in BACKENDS)]),
            epilog="`pcr-ray submit BACKEND --help` lists a backend's options.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        p.parse_args(argv or ["--help"])
        p.error("a BACKEND comes first")
    kind = BACKENDS.get(argv[0])
    p = Parser(prog=f"pcr-ray submit {kind.name}", description=f"{kind.title}: {kind.summary}.")
    kind.add_arguments(p)
    p.add_argument("file", type=Path, metavar="FILE", help="a sweep file, such as sweeps/quickstart.yaml")
    p.add_argument("--print", action="store_true", help="print what would be submitted, and submit nothing")
    sweep = p.add_argument_group("options of the sweep")
    sweep.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the file")
    plugins.add_argument(sweep)
    RunOptions.add_arguments(sweep, leave_out=THE_BACKENDS)
    options = p.parse_args(argv[1:])
    backend, task = kind(options), make_job(options)
    if options.print:
        sys.stdout.write(backend.render(task))
        return 0
    handle = backend.submit(task)
    console.print(f"{handle}: {task.name}", soft_wrap=True, markup=False)
    console.print(f"  pcr-ray job status|logs|cancel {handle}", soft_wrap=True, markup=False)
    return backend.attend(handle)


def job(argv: Sequence[str]) -> int:
    """The verbs of a job that was submitted."""
    p = Parser(prog="pcr-ray job", description="Look after a job that was submitted.")
    p.add_argument("verb", choices=(verbs := ["status", "logs", "cancel"]), metavar="|".join(verbs))
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
        raise InputError(
            f"'{redact(handle)}' is not a job's handle, such as slurm/123{did_you_mean(name, BACKENDS.names())}"
        )
    kind, p = BACKENDS.get(name), Parser(add_help=False)
    kind.add_arguments(p)
    return kind(argparse.Namespace(**{action.dest: action.default for action in p._actions}))


def make_job(given: argparse.Namespace) -> Job:
    """The sweep file, checked, with the sweep's options that were given as words again."""
    options = RunOptions.parse(argparse.Namespace(**{k: v for k, v in vars(given).items() if k not in THE_BACKENDS}))
    if problems := _problems_of_places(options):
        raise problems_error("this sweep cannot be submitted", problems)
    study, file = load(given.file, given.set, given.plugins), given.file.absolute()
    words = [word for override in given.set for word in ("--set", override)] + options.arguments()
    text = _alone(file.read_text(encoding="utf-8"), study)
    return Job(study.name, file, text, Path.cwd(), words, plugins.files(study.plugins), list(study.spec.plugins))


def _problems_of_places(options: RunOptions) -> list[str]:
    """Of the tracking store and the storage: what would fail only where the job runs, or show a password there."""
    problems, uri, storage = [], options.tracking_uri, options.storage
    if uri and holds_credentials(uri):
        problems.append(f"--tracking-uri {redact_uri(uri)}: {READABLE}; {LOGIN}")
    elif uri and (problem := uri_problem(uri)):
        problems.append(
            f"--tracking-uri {redact_uri(uri)}: {problem}; write a URI such as http://HOST:5000 or sqlite:///FILE"
        )
    if storage and holds_credentials(storage):
        problems.append(f"--storage {redact_uri(storage)}: {READABLE}; {KEYS}")
    return problems


def _alone(text: str, study: Study) -> str:
    """The file's text with the paper's numbers in it, where it names a CSV file, and plugins as modules to import."""
    content = read_yaml(text)
    beside = isinstance((content.get("report") or {}).get("paper"), str)
    if not beside and not study.plugins:
        return text
    if beside:
        content["report"]["paper"] = study.spec.report.paper
    if study.plugins:
        names = [name for names in study.plugins.values() for name in names]
        content["plugins"] = [n for n in names if n.rpartition(".")[0] not in names]  # a package brings its modules
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


if __name__ == "__main__":
    sys.exit(run(main))
