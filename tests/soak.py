"""Sweeps under random faults: python -m tests.soak --minutes 60 --seed 0 (or make soak).

Sweeps on digits run one after the other against a real MLflow server, the same command again and again until each is
done, while workers, driver, raylet, GCS and server are killed or paused at random. Then every number in MLflow is held
against a training of the same trial without Ray and MLflow.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch

from pcr_ray.learner import Learner
from pcr_ray.study.load import Study, load
from pcr_ray.tracking.names import shown
from tests.servers import Server
from tests.sweeping import kill_everything, start_sweep, sweep_file

TIMES = ("samples_per_second", "train_seconds", "peak_memory")  # differ from run to run
AGAIN = (75, -signal.SIGKILL)  # exit codes after which the same command is to continue
# A driver that dies again and again before Ray is up gets nowhere: what ends it is rarer than what does not.
WEIGHTS = {"worker": 6, "server killed": 3, "server paused": 2, "driver": 2, "driver and Ray": 1, "raylet": 1, "GCS": 1,
           "SIGTERM": 1}  # fmt: skip
Point = tuple[str, str, int, float]  # trial, metric, step, value


@dataclass
class Tally:
    """What was done to the sweeps, and what came of it."""

    faults: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    trials: int = 0
    compared: int = 0
    lost: list[Point] = field(default_factory=list)
    doubled: list[Point] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)  # exit codes and words that no fault excuses
    left: list[str] = field(default_factory=list)  # runs, files and processes

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.odd or self.left)

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {n}" for kind, n in sorted(self.faults.items()))
        lines = [
            f"faults injected: {self.faults.total()} ({kinds})",
            f"the command was started {self.starts} times for {self.trials} trials",
            f"metrics compared: {self.compared}, lost or different: {len(self.lost)}, duplicated: {len(self.doubled)}",
            f"left behind (runs still RUNNING, files, processes): {len(self.left)}; unexpected ends: {len(self.odd)}",
        ]
        return "\n".join(lines + [f"  {what}" for what in [*self.odd, *self.left, *self.lost[:9], *self.doubled[:9]]])


class Soak:
    """One server, one folder, sweep after sweep."""

    def __init__(self, folder: Path, root: Path, seed: int, say: Callable[[str], None] = print) -> None:
        self.folder, self.root, self.say = folder, root, say
        self.random, self.tally = random.Random(seed), Tally()
        self.pause, self.away = (2.0, 18.0), (1.0, 30.0)  # seconds between faults, and that the server is away
        self.temporary = Path(tempfile.mkdtemp(prefix="s", dir="/tmp"))  # short: Ray's sockets are below it
        self.server = Server(folder, f"sqlite:///{folder / 'server.db'}")
        self.until = float("inf")  # no fault after that (monotonic): the last sweep comes to its end
        self.heal: list[tuple[float, Callable[[], None]]] = []  # when the server is to come back, and how
        self.studies: list[Study] = []
        (folder / "slow").touch()  # two seconds more per task: the time in which faults come

    def sweep(self, name: str, grid: dict[str, Any], tasks: int, faults: list[str] | None = None) -> None:
        """One sweep until it is done; `faults` in this order, soon after one another, else at random."""
        fixed = {"dataset": "digits", "fraction": 0.1, "tasks": tasks, "buffer": 20}
        file = sweep_file(self.folder, name=name, fixed=fixed, grid=grid, retries=1000, trainable="tests.faulty:Faulty")
        self.studies.append(load(file))
        self.tally.trials += len(self.studies[-1].trials)
        while True:
            place = {"TMPDIR": str(self.temporary), "RAY_TMPDIR": str(self.temporary)}
            arguments = ("--tracking-uri", self.server.uri, "--flush-seconds", 30)
            process = start_sweep(self.folder, self.root, *arguments, **place)
            self.tally.starts += 1
            self._disturb(process, faults)
            if self._over(process, name):
                return

    def _disturb(self, process: subprocess.Popen[str], faults: list[str] | None) -> None:
        """Until the process has ended; three of four starts are left alone until a trial runs."""
        begun = self._tasks()
        patient, due = faults is not None or self.random.random() < 0.75, self._later()
        while process.poll() is None:
            time.sleep(0.2)
            now = time.monotonic()
            for when, back in [h for h in self.heal if now >= h[0] and self.heal]:
                self.heal.remove((when, back))
                back()
            patient = patient and self._tasks() == begun
            if now < due or patient or now > self.until:
                continue
            due = self._later()
            kinds = self.random.choices(*zip(*WEIGHTS.items())) if faults is None else faults[:1]
            if kinds and self._inject(kinds[0], process):
                self.tally.faults[kinds[0]] += 1
                self.say(f"{time.strftime('%H:%M:%S')} {kinds[0]}")
                if faults:
                    faults.pop(0)

    def _tasks(self) -> int:
        """How many were ever begun, whichever command did."""
        file = self.folder / "attempts.txt"
        return file.read_text().count("\n") if file.exists() else 0

    def _later(self) -> float:
        return time.monotonic() + self.random.uniform(*self.pause)

    def _inject(self, kind: str, process: subprocess.Popen[str]) -> bool:
        """False where there is nothing of the kind to hit at the moment."""
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if kind.startswith("server"):
                return self._hit_server(kind)
            if kind in ("driver", "SIGTERM"):
                process.send_signal(signal.SIGKILL if kind == "driver" else signal.SIGTERM)
                return True
            if kind == "driver and Ray":
                kill_everything(process)
                return True
            names = {"worker": "Trainable", "raylet": "raylet/raylet", "GCS": "gcs_server"}
            family = psutil.Process(process.pid).children(recursive=True)
            victims = [p for p in family if names[kind] in (p.cmdline() or [""])[0]]
            if victims:
                self.random.choice(victims).kill()
                return True
        return False

    def _hit_server(self, kind: str) -> bool:
        if self.heal:  # it is away already
            return False
        back = time.monotonic() + self.random.uniform(*self.away)
        if kind == "server killed":
            self.server.stop()
            self.heal.append((back, self.server.launch))
        else:
            self.server.signal(signal.SIGSTOP)
            self.heal.append((back, lambda: self.server.signal(signal.SIGCONT)))
        return True

    def _over(self, process: subprocess.Popen[str], name: str) -> bool:
        code, said = process.returncode, (self.folder / "out.txt").read_text()
        self.say(f"{time.strftime('%H:%M:%S')} {name} ended with {code}: {(said.splitlines() or [''])[-1]}")
        if code not in (0, *AGAIN) or "Traceback" in said:
            self.tally.odd.append(f"{name}: exit code {code}")
            (self.folder / f"odd{len(self.tally.odd)}.txt").write_text(said)
        if code == 75 and "cannot be used" in said:
            time.sleep(2)  # the store is away: as a person would, not at once again
        return code == 0

    def check(self) -> Tally:
        """Against trainings without Ray and MLflow, with the server back."""
        for _, back in self.heal:
            back()
        self.heal.clear()
        deadline = time.monotonic() + 180
        while not self.server.healthy() and time.monotonic() < deadline:
            time.sleep(0.5)
        found = Counter(self._found())
        expected = {point for study in self.studies for point in self._expected(study)}
        self.tally.compared = len(expected)
        self.tally.lost = sorted(expected - found.keys())
        steps = Counter((trial, metric, step) for trial, metric, step, _ in found.elements())
        self.tally.doubled = sorted(p for p in found if steps[p[:3]] > 1)
        self._look_for_leftovers()
        return self.tally

    def _expected(self, study: Study) -> list[Point]:
        torch.set_num_threads(1)
        points = []
        for identity, config in study.trials.items():
            learner = Learner(config, root=self.root)
            while not learner.done:
                learner.run_task()
            for task in range(1, learner.tasks_done + 1):
                numbers = learner.task_metrics(task).items()
                points += [(identity, shown(k), task, float(v)) for k, v in numbers if k not in ("task", *TIMES)]
        return points

    def _found(self) -> list[Point]:
        from mlflow import MlflowClient

        client, points = MlflowClient(self.server.uri), []
        experiment = client.get_experiment_by_name("pcr_ray")
        runs = client.search_runs([experiment.experiment_id], max_results=5000)
        self.tally.left += [f"run {r.info.run_name} is RUNNING" for r in runs if r.info.status == "RUNNING"]
        trials = [r for r in runs if r.data.tags["pcr_ray.kind"] == "trial"]
        for run in trials:
            identity = run.data.tags["pcr_ray.identity"]
            for key in run.data.metrics:
                history = client.get_metric_history(run.info.run_id, key)
                points += [(identity, key, m.step, m.value) for m in history]
        if len(trials) != self.tally.trials:
            self.tally.odd.append(f"{len(trials)} runs for {self.tally.trials} trials")
        return points

    def _look_for_leftovers(self) -> None:
        """One Ray session stays, for its logs: the next start clears it."""
        out = [f for f in self.folder.glob("runs/*/*/*") if f.parent.name in ("spool", "checkpoints")]
        ours = [*self.temporary.glob("pcr_ray-*"), *sorted(self.temporary.glob("ray/session_2*"))[:-1]]
        self.tally.left += [f"file {f}" for f in [*out, *ours]]
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("TMPDIR") == str(self.temporary):
                    self.tally.left.append(f"process {process.pid}: {' '.join(process.cmdline())[:80]}")

    def close(self) -> None:
        """Ends what is left, our own processes alone."""
        self.server.stop()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("TMPDIR") == str(self.temporary):
                    process.kill()
        shutil.rmtree(self.temporary, ignore_errors=True)


def main() -> int:
    p = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    p.add_argument("--minutes", type=float, default=60, help="no fault and no new sweep after so many (default: 60)")
    p.add_argument("--seed", type=int, default=0, help="of the faults (default: 0)")
    p.add_argument("--folder", type=Path, help="kept; else a temporary folder, kept where something was found")
    given = p.parse_args()
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="soak-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # closes what it started
    began, number = time.monotonic(), 0
    soak = Soak(folder, folder / "data", given.seed, lambda text: print(text, flush=True))
    soak.until = began + 60 * given.minutes
    try:
        soak.server.start()
        while number == 0 or time.monotonic() < soak.until:
            seeds = [3 * number + s for s in range(3)]
            soak.sweep(f"soak{number}", {"method": ["pcr", "er", "er_ace"], "seed": seeds}, 4)
            number += 1
        tally = soak.check()
    finally:
        soak.close()
    print(f"{number} sweeps, {given.minutes:g} minutes of faults, seed {given.seed}\n{tally}")
    if tally.clean and not given.folder:
        shutil.rmtree(folder, ignore_errors=True)
    elif not tally.clean:
        print(f"see {folder}")
    return 0 if tally.clean else 1


if __name__ == "__main__":
    sys.exit(main())
