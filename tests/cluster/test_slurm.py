"""`pcr-ray submit slurm` on a real Slurm of two nodes, both on this machine."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster import slurm
from tests.cluster.slurm import Slurm
from tests.sweeping import environment, histories, sweep_file, wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing()),
]
FAULTY = "tests.faulty:Faulty"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with Slurm(tmp_path_factory.mktemp("slurm")) as started:
        yield started


class Typed:
    """Commands typed in a folder of a machine with this Slurm; looks for leftovers in the end."""

    def __init__(self, cluster: Slurm, folder: Path, root: Path) -> None:
        self.cluster, self.folder, self.root, self.numbers = cluster, folder, root, list[str]()

    def __call__(self, *words: object, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "pcr_ray", *map(str, words)], cwd=self.folder, capture_output=True, text=True,
            env=environment(self.folder, **self.cluster.environment), timeout=400, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def submit(self, *words: object, file: str = "tiny.yaml") -> str:
        """The job's number."""
        text = self("submit", "slurm", file, "--data-root", self.root, *words)
        number = re.search(r"slurm/(\d+):", text)
        assert number, text
        self.numbers.append(number[1])
        return number[1]

    def log(self, number: str, name: str = "tiny") -> str:
        file = self.folder / "runs" / name / f"slurm-{number}.log"
        return file.read_text() if file.exists() else ""

    def ended(self, number: str, state: str = "COMPLETED", name: str = "tiny") -> str:
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        wait_for(lambda: self.cluster.state(number) in over, f"the end of job {number}", 400)
        log = self.log(number, name)
        assert self.cluster.state(number) == state, log
        return log

    def left_over(self) -> list[str]:
        """Processes of our jobs (whatever a job starts inherits its number) and their folders."""
        found = [str(p) for n in self.numbers for p in Path("/tmp").glob(f"pcr-ray-{n}-*")]
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                mine = process.environ()
                if (
                    mine.get("SLURM_CONF") == self.cluster.environment["SLURM_CONF"]
                    and mine.get("SLURM_JOB_ID") in self.numbers
                ):
                    found.append(" ".join(process.cmdline()))
        return found


@pytest.fixture
def typed(cluster: Slurm, tmp_path: Path, root: Path) -> Iterator[Typed]:
    commands = Typed(cluster, tmp_path, root)
    yield commands
    for number in commands.numbers:
        cluster.run("scancel", number)
    wait_for(lambda: not cluster.run("squeue", "-h"), "an empty queue", 90)


@pytest.fixture(scope="module")
def numbers_here(one_nodes_numbers: dict[str, Any]) -> dict[str, Any]:
    """Of the tiny sweep, which has the first two seeds."""
    return {
        name: one_nodes_numbers[name] for name in (f"{m} {s} (method, seed)" for m in ("pcr", "er") for s in (0, 1))
    }


def test_a_sweep_over_two_nodes_has_this_machines_numbers(
    cluster: Slurm, tmp_path: Path, root: Path, typed: Typed, numbers_here: dict[str, Any]
) -> None:
    folder = tmp_path / "a b'c"
    folder.mkdir()
    sweep_file(folder)
    typed.folder = folder
    setup = ["--setup", 'echo "set up on $SLURMD_NODENAME"']
    number = typed.submit("--nodes", 2, "--cpus-per-node", 1, "--time", 10, *setup)
    assert "in Slurm's queue already" in typed("submit", "slurm", "tiny.yaml", "--cpus-per-node", 1)
    followed = typed("job", "logs", "--follow", f"slurm/{number}")
    log = typed.ended(number)
    assert followed == log
    assert f"job {number}: on n[1-2], run 1" in log and "set up on n1" in log
    assert "running 2 trials at once" in log and "the sweep ended with exit code 0" in log
    assert histories(f"sqlite:///{folder}/mlflow.db") == numbers_here
    assert "COMPLETED, exit code 0, run 1" in typed("job", "status", f"slurm/{number}")
    assert not typed.left_over()
    assert not re.findall(r"\b[0-9a-f]{64}\b", log), "the token is told to nobody"


def test_at_the_time_limit_a_sweep_stops_and_is_queued_again_until_it_is_done(
    typed: Typed, tmp_path: Path, numbers_here: dict[str, Any]
) -> None:
    sweep_file(tmp_path, trainable=FAULTY, grid={"method": ["pcr", "er"], "seed": {"range": [0, 8]}})
    (tmp_path / "slow").touch()  # 48 tasks of 2 s and more: too many for Slurm's 30 to 90 s before the signal
    number = typed.submit("--nodes", 1, "--cpus-per-node", 1, "--time", 2, "--signal-seconds", 30)
    wait_for(lambda: ", run 2" in typed.log(number), "the second run", 300)
    (tmp_path / "slow").unlink()
    typed.cluster.run("scontrol", "update", f"jobid={number}", "timelimit=30")  # time to finish, on a busy machine too
    log = typed.ended(number)
    assert "the time limit is near" in log and "the sweep ended with exit code 0" in log
    numbers = histories(f"sqlite:///{tmp_path}/mlflow.db")
    assert len(numbers) == 16 and {name: numbers[name] for name in numbers_here} == numbers_here
    attempts = (tmp_path / "attempts.txt").read_text().splitlines()
    assert 48 <= len(attempts) <= 48 + log.count("queued again"), attempts  # at most the task it was in, twice
    assert not typed.left_over()
    assert not list(tmp_path.glob("runs/tiny/.slurm-*"))


def test_a_job_that_gets_nowhere_is_not_queued_for_ever(typed: Typed, tmp_path: Path) -> None:
    sweep_file(tmp_path, trainable="tests.cluster.stuck:Stuck")
    template = (resources.files("pcr_ray.clusters") / "templates/slurm.sh").read_text()
    assert "idle_limit=3" in template
    (tmp_path / "mine.sh").write_text(template.replace("idle_limit=3", "idle_limit=2"))
    number = typed.submit("--cpus-per-node", 1, "--time", 10, "--template", "mine.sh")
    for run in (1, 2):
        wait_for(lambda r=run: typed.log(number).count("running 1 trial at once") == r, "the sweep's start")
        typed.cluster.run("scancel", "--batch", "--signal=USR1", number)
    log = typed.ended(number, "FAILED")
    assert "no task was finished in 2 runs: not queued again" in log and "raise --time" in log
    assert "FAILED, exit code 75, run 2" in typed("job", "status", f"slurm/{number}")
    assert not typed.left_over()


def test_two_jobs_share_a_node(typed: Typed, tmp_path: Path) -> None:
    numbers = {}
    for name in ("one", "two"):
        sweep_file(tmp_path, name=name, trainable=FAULTY, grid={"method": ["er"], "seed": [0, 1]})
        (tmp_path / "tiny.yaml").rename(tmp_path / f"{name}.yaml")
        (tmp_path / "slow").touch()
        options = ["--cpus-per-node", 1, "--time", 10, "--sbatch=-w n1"]
        store = f"sqlite:///{tmp_path}/{name}.db"
        numbers[name] = typed.submit(*options, "--tracking-uri", store, file=f"{name}.yaml")
    wait_for(
        lambda: all("running 1 trial at once" in typed.log(number, name) for name, number in numbers.items()),
        "both jobs running",
    )
    running = typed.cluster.run("squeue", "-h", "-t", "running", "-o", "%N")
    assert running.split() == ["n1", "n1"]
    (tmp_path / "slow").unlink()
    for name, number in numbers.items():
        assert "the sweep ended with exit code 0" in typed.ended(number, name=name)
    one, two = (histories(f"sqlite:///{tmp_path}/{name}.db") for name in ("one", "two"))
    assert one == two and len(one) == 2
    assert not typed.left_over()


def test_a_cancelled_job_leaves_nothing_and_continues_later(typed: Typed, tmp_path: Path) -> None:
    sweep_file(tmp_path, trainable=FAULTY)
    (tmp_path / "slow").touch()
    number = typed.submit("--nodes", 2, "--cpus-per-node", 1, "--time", 10)
    wait_for(lambda: (tmp_path / "attempts.txt").exists(), "a first task")
    assert "RUNNING on n[1-2] for" in typed("job", "status", f"slurm/{number}")
    typed("job", "cancel", f"slurm/{number}")
    log = typed.ended(number, "CANCELLED")
    assert "run the same command again to continue" in log and "cancelled: submit again" in log
    wait_for(lambda: not typed.left_over(), "the end of all processes", 60)
    assert "not in Slurm's queue" in typed("job", "cancel", f"slurm/{number}", code=2)
    (tmp_path / "slow").unlink()
    again = typed.submit("--nodes", 2, "--cpus-per-node", 1, "--time", 10)
    assert again != number and "the sweep ended with exit code 0" in typed.ended(again)
    attempts = (tmp_path / "attempts.txt").read_text().splitlines()
    assert len(attempts) <= 12 + 2, attempts  # only the tasks that were cut short are done again
    assert not typed.left_over()


def test_a_job_that_somebody_else_requeues_goes_on(typed: Typed, tmp_path: Path) -> None:
    """As in a preemption."""
    sweep_file(tmp_path, trainable=FAULTY)
    (tmp_path / "slow").touch()
    number = typed.submit("--cpus-per-node", 1, "--time", 30)
    wait_for(lambda: (tmp_path / "attempts.txt").exists(), "a first task")
    typed.cluster.run("scontrol", "requeue", number)
    (tmp_path / "slow").unlink()
    log = typed.ended(number)
    assert ", run 2" in log and "the sweep ended with exit code 0" in log
    attempts = (tmp_path / "attempts.txt").read_text().splitlines()
    assert len(attempts) <= 12 + 1, attempts  # only the task that was cut short is done again
    assert not typed.left_over()


def test_a_plain_scancel_leaves_nothing_either(typed: Typed, tmp_path: Path) -> None:
    sweep_file(tmp_path, trainable=FAULTY)
    (tmp_path / "slow").touch()
    number = typed.submit("--nodes", 2, "--cpus-per-node", 1, "--time", 10)
    wait_for(lambda: (tmp_path / "attempts.txt").exists(), "a first task")
    assert typed.left_over()
    typed.cluster.run("scancel", number)
    typed.ended(number, "CANCELLED")
    wait_for(lambda: not typed.left_over(), "the end of all processes", 40)


def test_failed_trials_and_slurms_own_refusals_are_passed_on(typed: Typed, tmp_path: Path) -> None:
    sweep_file(tmp_path, trainable=FAULTY, retries=0, grid={"method": ["er"], "seed": [1]})
    assert "invalid partition" in typed(
        "submit", "slurm", "tiny.yaml", "--cpus-per-node", 1, "--partition", "nowhere", code=2
    )  # fmt: skip
    assert "bad.yaml does not exist" in typed("submit", "slurm", "bad.yaml", "--cpus-per-node", 1, code=2)
    assert not typed.cluster.run("squeue", "-h")
    (tmp_path / "raise").touch()
    number = typed.submit("--cpus-per-node", 1, "--time", 10)
    assert "the sweep ended with exit code 1" in typed.ended(number, "FAILED")
    assert not typed.left_over()


def test_nodes_that_do_not_come_are_told(typed: Typed, tmp_path: Path) -> None:
    sweep_file(tmp_path)
    template = (resources.files("pcr_ray.clusters") / "templates/slurm.sh").read_text()
    (tmp_path / "mine.sh").write_text(template.replace("start_seconds=300", "start_seconds=20"))
    number = typed.submit(
        "--nodes", 2, "--cpus-per-node", 1, "--time", 10, "--template", "mine.sh",
        "--setup", "[[ $SLURMD_NODENAME == n1 ]] || exit 3",
    )  # fmt: skip
    log = typed.ended(number, "FAILED")
    assert "only 1 of 2 nodes are there: ['n1']" in log and "nothing was run: submit again" in log
    assert not typed.left_over()
    assert "only 1 of 2" in typed("job", "logs", f"slurm/{number}")
