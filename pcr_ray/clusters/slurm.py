"""Slurm: one readable batch script per sweep, a Ray cluster per job. templates/slurm.sh is what runs."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

from pcr_ray.clusters._base import BACKENDS, Backend, Job
from pcr_ray.clusters._files import absolute_arguments, show
from pcr_ray.console import console
from pcr_ray.errors import InputError, NotNowError
from pcr_ray.study.search import tuning_name
from pcr_ray.text import did_you_mean
from pcr_ray.tracking.spool import PROGRESS

ACTIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "RESIZING", "SUSPENDED")
OURS = {  # options of submit, and those of sbatch that say the same
    "--nodes": "-N --nodes",
    "--cpus-per-node": "-c --cpus-per-task",
    "--gpus-per-node": "-G --gpus --gpus-per-node --gpus-per-socket --gpus-per-task",
    "--time": "-t --time",
    "--partition": "-p --partition",
    "--account": "-A --account",
    "--qos": "-q --qos",
    "--constraint": "-C --constraint",
    "--signal-seconds": "--signal",
}
SHAPE = "-a --array -n --ntasks --ntasks-per-node --tasks-per-node"  # of the job, which is the script's to say


@BACKENDS.register("slurm")
class Slurm(Backend):
    title = "Slurm"
    summary = "a batch job on a Slurm cluster, which queues itself again until the sweep is done"

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--nodes", type=_count, default=1, metavar="N", help="nodes (default: 1)")
        parser.add_argument("--cpus-per-node", type=_count, required=True, metavar="N", help="CPUs of each node")
        parser.add_argument(
            "--gpus-per-node", type=_gpus, default="0", metavar="[TYPE:]N",
            help="GPUs of each node, such as 2 or a100:2 (default: 0)",
        )  # fmt: skip
        parser.add_argument("--time", metavar="LIMIT", help="time limit of one run, such as 24:00:00")
        for name in ("partition", "account", "qos", "constraint"):
            parser.add_argument(f"--{name}", metavar="NAME", help=f"Slurm's option --{name}")
        parser.add_argument(
            "--sbatch", action="append", default=[], metavar="OPTION",
            help="any other option of sbatch, such as --sbatch=--mem=64G; may be repeated",
        )  # fmt: skip
        parser.add_argument(
            "--setup", action="append", default=[], metavar="LINE",
            help="a line of shell for every node, such as 'module load cuda'; may be repeated",
        )  # fmt: skip
        parser.add_argument("--python", metavar="FILE", help="the Python of the nodes (default: this one)")
        parser.add_argument(
            "--signal-seconds", type=_count, default=120, metavar="S",
            help="how long before the time limit the sweep is told to stop (default: 120)",
        )  # fmt: skip
        parser.add_argument("--template", type=Path, metavar="FILE", help="your copy of the script (see --print)")

    def submit(self, job: Job) -> str:
        script = self.render(job)
        if not shutil.which("sbatch"):
            raise InputError(
                "there is no sbatch on the PATH: submit where Slurm's commands are, or see the script with --print"
            )
        known = job.home / "slurm.job"
        if known.exists() and _state(number := known.read_text().strip()) in ACTIVE:
            console.print(f"sweep '{job.name}' is in Slurm's queue already", markup=False)
            return f"slurm/{number}"
        try:
            job.home.mkdir(parents=True, exist_ok=True)
            (job.home / "slurm.sh").write_text(script, encoding="utf-8")
            number = _slurm("sbatch", "--parsable", str(job.home / "slurm.sh")).strip().split(";")[0]
            known.write_text(number)
        except OSError as error:
            raise InputError(f"{job.home}: cannot be used: {error}") from None
        return f"slurm/{number}"

    def render(self, job: Job) -> str:
        o, arguments = self.options, absolute_arguments(job)
        log = str(job.home).replace("%", "%%") + "/slurm-%j.log"
        if set(log) & set('\\\n"'):  # Slurm's own quoting has no way to write them
            raise InputError(f"{job.home}: Slurm cannot write a log into a folder with such a name")
        words = {
            "name": _word(f"pcr-ray-{job.name}"),
            "log": f'"{log}"',
            "nodes": str(o.nodes),
            "cpus": str(o.cpus_per_node),
            "gpus": _without_type(o.gpus_per_node),
            "signal_seconds": str(o.signal_seconds),
            "options": "\n".join(f"#SBATCH {line}" for line in self._directives()),
            "setup": "\n".join(o.setup),
            "folder": _word(job.folder),
            "home": _word(job.home),
            "progress": shlex.join(str(h / PROGRESS) for h in (job.home, job.home.with_name(tuning_name(job.name)))),
            "python": _word(o.python or sys.executable),
            "arguments": shlex.join([str(job.file), *arguments]),
        }
        return _fill(self._template(), words)

    def _directives(self) -> list[str]:
        o = self.options
        lines = [f"--gpus-per-node={o.gpus_per_node}"] if int(_without_type(o.gpus_per_node)) else []
        for name in ("time", "partition", "account", "qos", "constraint"):
            if value := getattr(o, name):
                if re.search(r'["\\\n]', value):
                    raise InputError(f"--{name} {value}: holds a character that Slurm does not take")
                lines.append(f"--{name}={value}" if re.fullmatch(r"[\w.,:+-]+", value) else f'--{name}="{value}"')
        for line in o.sbatch:
            if not line.startswith("-") or "\n" in line:
                raise InputError(f"--sbatch {line}: not an option of sbatch, such as --sbatch=--mem=64G")
            _check_further(line)
        return lines + o.sbatch

    def _template(self) -> str:
        if not self.options.template:
            return (resources.files("pcr_ray.clusters") / "templates" / "slurm.sh").read_text(encoding="utf-8")
        try:
            return self.options.template.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--template {self.options.template}: cannot be read: {error}") from None

    def status(self, handle: str) -> str:
        facts = _facts(_number(handle))
        if not facts:
            return f"ended: {_last_words(_old_log(_number(handle)))}"
        text = facts["JobState"]
        if facts["JobState"] == "PENDING":
            text += f" ({facts.get('Reason')})"
        elif facts["JobState"] == "RUNNING":
            text += f" on {facts.get('NodeList')} for {facts.get('RunTime')} of {facts.get('TimeLimit')}"
        else:
            text += f", exit code {facts.get('ExitCode', '').partition(':')[0]}"
        return f"{text}, run {int(facts.get('Restarts', 0)) + 1}, log {facts.get('StdOut')}"

    def logs(self, handle: str, follow: bool) -> None:
        number = _number(handle)
        facts = _facts(number)
        show(Path(facts["StdOut"]) if facts else _old_log(number), lambda: _state(number) in ACTIVE, follow)

    def cancel(self, handle: str) -> None:
        number = _number(handle)
        facts = _facts(number)
        if facts.get("JobState") not in ACTIVE:
            raise InputError(f"{handle}: not in Slurm's queue (any more)")
        # To the script alone: it stops the sweep while Ray is still there. TERM is what Slurm sends to requeue a job.
        gently = ["--batch", "--signal=USR2"] if facts["JobState"] == "RUNNING" else []
        _slurm("scancel", *gently, number)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of 1 or more")
    return int(text)


def _gpus(text: str) -> str:
    if not re.fullmatch(r"([\w.-]+:)?[0-9]+", text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of 0 or more, nor one with a type, such as a100:2")
    return text


def _without_type(gpus: str) -> str:
    return gpus.rpartition(":")[2]


def _check_further(line: str) -> None:
    """Refuses what the script has to know too: Ray would be told other numbers than Slurm."""
    names = re.findall(r"(?:^|\s)(--[\w-]+|-\w)", line)
    if re.search(r"--(gres|tres-per-\w+)[=\s]\S*\bgpu\b", line):
        names.append("--gpus")
    for ours, theirs in OURS.items():
        if set(names) & set(theirs.split()):
            raise InputError(f"--sbatch {line}: say it with {ours} of pcr-ray submit, so that the script knows it too")
    if set(names) & set(SHAPE.split()):
        raise InputError(f"--sbatch {line}: a sweep is one job, with one task per node")


def _word(value: object) -> str:
    return shlex.quote(str(value))


def _fill(template: str, words: dict[str, str]) -> str:
    def word(found: re.Match[str]) -> str:
        if found[1] not in words:
            raise InputError(f"the template has an unknown word @{found[1]}@{did_you_mean(found[1], list(words))}")
        return words[found[1]]

    return re.sub(r"@([a-z_]+)@", word, template)


def _slurm(*command: str) -> str:
    """One of Slurm's commands; what it complains about becomes one message."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        raise InputError(f"there is no {command[0]} on the PATH: run this where Slurm's commands are") from None
    except subprocess.TimeoutExpired:
        raise NotNowError(f"{command[0]} did not answer within 60 s: try again") from None
    if done.returncode == 0:
        return done.stdout
    why = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
    kind = NotNowError if "Unable to contact" in why or "Socket timed out" in why else InputError
    raise kind(f"{command[0]}: {why}")


def _number(handle: str) -> str:
    number = handle.partition("/")[2]
    if not number.isdigit():
        raise InputError(f"'{handle}' is not a Slurm job, such as slurm/123")
    return number


def _facts(number: str) -> dict[str, str]:
    """What Slurm knows of a job; nothing if it has forgotten it, which it does some minutes after its end."""
    try:
        text = _slurm("scontrol", "show", "job", "--oneliner", number)
    except InputError as error:
        if "Invalid job id" in str(error):
            return {}
        raise
    return dict(re.findall(r"(?:^| )(\w+)=(.*?)(?= [\w:/]+=|$)", text.strip()))


def _state(number: str) -> str:
    return _facts(number).get("JobState", "")


def _old_log(number: str) -> Path:
    """Below the folder where submit was typed it is in OUT/NAME; somebody may also look for it in one of these."""
    name = f"slurm-{number}.log"
    found = [log for below in ("", "*/", "*/*/") for log in sorted(Path().glob(below + name))]
    if not found:
        raise InputError(
            f"Slurm has no job {number} (any more), and there is no {name} here or up to two folders down: "
            "look for it from the folder where it was submitted or, if that had --out, from the one it named"
        )
    return found[-1]


def _last_words(log: Path) -> str:
    said = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("pcr-ray: job ")]
    return f"{said[-1].partition(': ')[2] if said else 'without a word'}, log {log}"
