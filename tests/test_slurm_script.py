"""The script that `pcr-ray submit slurm` writes, run with stand-ins for Slurm's commands, Ray and the sweep."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sweeping import sweep_file, wait_for
from tests.test_submit import SLURM, printed

# `scontrol requeue` ends the script, as Slurm does; a step is the process that srun becomes.
COMMANDS = {
    "srun": """
        for word; do [[ $word == --output=* ]] && output=${word#*=}; done
        echo $$ >>"$STAND_INS/steps"
        exec bash -c node >>"$output" 2>&1""",
    "scancel": """
        echo "scancel $*" >>"$STAND_INS/said"
        if [[ $1 == --signal=TERM ]]; then kill -TERM $(cat "$STAND_INS/steps"); else kill -KILL $PPID; fi""",
    "scontrol": """
        echo "scontrol $*" >>"$STAND_INS/said"
        [[ $1 == requeue ]] && kill -KILL $PPID""",
    "python": """
        for word; do [[ $word == --temp-dir=* ]] && folder=${word#*=}; done
        case "$*" in
            *ray.scripts.scripts*)
                echo "$folder" >>"$STAND_INS/folders"
                echo 10.0.0.1:6379 >"$folder/ray_current_cluster"
                exec sleep 60 ;;
            *pcr_ray.sweep*) . "$STAND_INS/sweep" ;;
        esac""",
}
UNTIL_TOLD = """
    trap 'exit 75' TERM USR1
    touch started
    for ((i = 0; i < 600; i++)); do sleep 0.1; done
"""


class Script:
    """A job's script, and what it said to Slurm."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.number = folder, str(os.getpid())
        sweep_file(folder)
        for name, text in COMMANDS.items():
            (folder / name).write_text(f"#!/bin/bash\n{text}\n")
            (folder / name).chmod(0o755)
        script = printed(folder, *SLURM, "tiny.yaml", "--python", str(folder / "python"), *options)
        (folder / "slurm.sh").write_text(script)

    def start(self, sweep: str, node: str = "n1") -> subprocess.Popen[str]:
        """One run of the job; `sweep` is what its sweep does, in words of the shell."""
        (self.folder / "sweep").write_text(sweep)
        for left in ("steps", "said", "started"):
            (self.folder / left).unlink(missing_ok=True)
        more = {
            "PATH": f"{self.folder}:{os.environ['PATH']}", "STAND_INS": str(self.folder), "SLURM_JOB_ID": self.number,
            "SLURM_JOB_NODELIST": node, "SLURMD_NODENAME": node,
        }  # fmt: skip
        return subprocess.Popen(
            ["bash", "slurm.sh"], cwd=self.folder, env=os.environ | more, stdout=subprocess.PIPE, text=True
        )

    def run(self, sweep: str, number: int | None = None, node: str = "n1") -> str:
        """One run to its end, told to stop by a signal where there is one: what it printed, its exit code, what it
        said to Slurm."""
        process = self.start(sweep, node)
        if number is not None:
            wait_for((self.folder / "started").exists, "the sweep", 60)
            process.send_signal(number)
        if number == signal.SIGTERM:  # Slurm sends it to all at the same time
            os.kill(int((self.folder / "steps").read_text()), number)
        output, _ = process.communicate(timeout=100)
        said = self.folder / "said"
        return f"{output}exit code {process.returncode}\n{said.read_text() if said.exists() else ''}"


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    yield Script(tmp_path)
    wait_for(lambda: not list(Path("/tmp").glob(f"pcr-ray-{os.getpid()}-*")), "an end without leftovers", 60)


@pytest.mark.parametrize("options", [[], ["--storage", "s3://bucket/x"]])
def test_a_sweep_that_cannot_begin_is_not_started_for_ever(tmp_path: Path, options: list[str]) -> None:
    script = Script(tmp_path, *options)
    for _ in range(2):
        assert "scontrol requeue" in script.run("echo MLflow is away; exit 75")
    end = script.run("echo MLflow is away; exit 75")
    assert "no task was finished in 3 runs: not queued again. The reason is in the log above" in end
    assert "exit code 75" in end and "requeue" not in end and "--time" not in end


@pytest.mark.parametrize("folder", ["tiny", "tiny.search"])
def test_a_sweep_that_gets_on_is_started_until_it_is_done(script: Script, folder: str) -> None:
    """Whether it is its search for settings or its own trials, and wherever the checkpoints are."""
    for _ in range(4):
        assert "scontrol requeue" in script.run(f"mkdir -p runs/{folder}; touch runs/{folder}/.progress; exit 75")
    end = script.run("exit 0")
    assert "the sweep ended with exit code 0" in end and "requeue" not in end


def test_runs_that_are_too_short_are_told(script: Script) -> None:
    for _ in range(2):
        assert "scontrol requeue" in script.run(UNTIL_TOLD, signal.SIGUSR1)
    assert "no task was finished in 3 runs: not queued again. A task needs more time" in script.run(
        UNTIL_TOLD, signal.SIGUSR1
    )


def test_ray_has_room_for_its_sockets_on_a_node_with_a_long_name(script: Script) -> None:
    script.run("exit 0", node="gpu-queue-dy-g5xlarge-1234.cluster.internal")
    (folder,) = (script.folder / "folders").read_text().splitlines()
    socket = "session_2026-11-18_13-39-36_732399_1234567/sockets/plasma_store"
    job = len("1234567890") - len(script.number)
    assert len(f"{folder}/{socket}") + job <= 107


def test_a_job_is_cancelled_where_it_was_asked_for_and_left_to_slurm_otherwise(script: Script) -> None:
    cancelled = script.run(UNTIL_TOLD, signal.SIGUSR2)
    assert "cancelled: submit again" in cancelled and f"scancel {script.number}\n" in cancelled
    ended = script.run(UNTIL_TOLD, signal.SIGTERM)  # as in a preemption, which may queue the job again
    assert "ended by Slurm" in ended and "exit code 75" in ended
    assert "scancel" not in ended and "requeue" not in ended
