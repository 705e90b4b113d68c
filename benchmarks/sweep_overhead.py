"""What a sweep adds to a trial that does nothing: our driver against bare Tune with actor reuse, in turns, in one run.

python -m benchmarks.sweep_overhead [--trials 100] [--rounds 3] [--seconds 0]
python -m benchmarks.sweep_overhead --memory [--trials 2000]     # the driver's memory and time, by blocks of 250
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from ray import tune

from pcr_ray.execution import cluster, driver
from pcr_ray.execution.options import RunOptions
from pcr_ray.execution.scheduler import InOrder
from pcr_ray.study.load import Study, load
from pcr_ray.tracking.store import Store

BLOCK = 250  # trials
MATRIX = [[50.0], [50.0, 50.0]]
FILE = """
name: trivial
trainable: benchmarks.sweep_overhead:Trivial
fixed: {{dataset: digits, method: er, tasks: 2}}
grid: {{seed: {{range: [0, {trials}]}}}}
"""


class Trivial(tune.Trainable):
    """Says at once what a trial of two tasks says at its end."""

    def setup(self, config: dict[str, Any]) -> None:
        self.trial = config["case"]["trial"]

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        time.sleep(float(os.environ.get("TRIVIAL_SECONDS", "0")))
        tasks = [{"task": t, "average_accuracy": 50.0, "final_accuracy": 50.0} for t in (1, 2)]
        results = {"config": self.trial, "data_fingerprint": "00", "accuracy_matrix": MATRIX, "ncm_accuracy_matrix": []}
        return {"done": True, "complete": True, "failure": None, "tasks": tasks, "results": results}


class Clock(tune.Callback):
    """When the first trial started and the last ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.times.append(time.time())

    on_trial_complete = on_trial_start


class Blocks(InOrder):
    """When each block of trials ended, and the driver's memory then; the first entry is the first trial's end."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = 0
        self.seen: list[tuple[int, float, float]] = []

    def on_trial_complete(self, *args: Any, **more: Any) -> None:
        super().on_trial_complete(*args, **more)
        self.ended += 1
        if self.ended == 1 or self.ended % BLOCK == 0:
            self.seen.append((self.ended, time.monotonic(), resident()))


def resident() -> float:
    """MiB of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def bare(study: Study) -> float:
    """Seconds per trial of Tune alone, from the first start to the last end."""
    clock = Clock()
    cases = [{"identity": i, "trial": t.model_dump()} for i, t in study.trials.items()]
    with tempfile.TemporaryDirectory() as folder, cluster.connected(None, False):
        tune.Tuner(
            tune.with_resources(Trivial, tune.PlacementGroupFactory([{"CPU": 1}])),
            param_space={"case": tune.grid_search(cases)},
            tune_config=tune.TuneConfig(reuse_actors=True),
            run_config=tune.RunConfig(
                storage_path=folder, callbacks=[clock], verbose=0,
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        ).fit()  # fmt: skip
    return (max(clock.times) - min(clock.times)) / len(cases)


def ours(study: Study, scheduler: Any = None) -> tuple[float, float]:
    """The same of a sweep, by the times in its record; and with the delivery of all of it to MLflow."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(f"sqlite:///{folder}/mlflow.db")
        options = RunOptions(out=folder, tracking_uri=store.uri)
        result = driver.execute(study, store, options, scheduler=scheduler)
        assert result.delivered and not result.failed and not result.stopped
        delivered = time.time()
        runs = store.trials(study.trials.keys()).values()
        first, last = min(r.started for r in runs) / 1000, max(r.ended for r in runs) / 1000
    return (last - first) / len(runs), (delivered - first) / len(runs)


def memory(study: Study) -> None:
    blocks = Blocks()
    _, delivered = ours(study, blocks)
    for (n, began, before), (m, ended, after) in zip(blocks.seen, blocks.seen[1:]):
        pace = 1e3 * (ended - began) / (m - n)
        print(f"trials {n} to {m}: {pace:.1f} ms per trial, memory {before:.0f} to {after:.0f} MiB")
    print(f"all delivered: {1e3 * delivered:.0f} ms per trial, memory {resident():.0f} MiB")


def main() -> None:
    p = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    p.add_argument("--trials", type=int, help="default: 100, with --memory 2000")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=0.0, help="that a trial takes (default: none)")
    p.add_argument("--memory", action="store_true", help="the driver's memory and time over one sweep instead")
    given = p.parse_args()
    given.trials = given.trials or (2000 if given.memory else 100)
    os.environ["TRIVIAL_SECONDS"] = str(given.seconds)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trivial.yaml"
        file.write_text(FILE.format(trials=given.trials))
        study = load(file)
    if given.memory:
        memory(study)
        return
    rows = []
    for _ in range(given.rounds):
        alone, (run, delivered) = bare(study), ours(study)
        rows.append((alone, run, delivered, run / alone))
        print(f"Tune alone {1e3 * alone:.0f} ms per trial, sweep {1e3 * run:.0f} ms, ratio {run / alone:.2f}; "
              f"with delivery to MLflow {1e3 * delivered:.0f} ms", flush=True)  # fmt: skip
    print(f"median ratio of {given.rounds}: {median(row[-1] for row in rows):.2f}, {given.trials} trials of "
          f"{given.seconds:g} s on {os.cpu_count()} CPUs")  # fmt: skip


if __name__ == "__main__":
    main()
