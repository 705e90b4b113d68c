"""The metrics of 64 trials at once through our courier to an MLflow server with PostgreSQL: python -m tests.load

Blocks of 64 trials, one task of each after the other, as 64 workers would report them; time per trial has to stay flat.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import psutil

from pcr_ray.learner import Learner
from pcr_ray.provenance import code_of
from pcr_ray.study.load import load
from pcr_ray.tracking.courier import Courier
from pcr_ray.tracking.runs import Status, code_entry
from pcr_ray.tracking.spool import END, START, TASK, Spool
from pcr_ray.tracking.store import Store
from pcr_ray.tracking.sweep_run import SweepRun
from tests import databases
from tests.servers import Server
from tests.sweeping import sweep_file

AT_ONCE = 64


def main() -> int:
    p = argparse.ArgumentParser(prog="python -m tests.load", description=__doc__)
    p.add_argument("--blocks", type=int, default=4, help=f"of {AT_ONCE} trials (default: 4)")
    blocks = p.parse_args().blocks
    if why := databases.missing():
        sys.exit(why)
    with tempfile.TemporaryDirectory() as text, databases.postgres() as database:
        folder = Path(text)
        server = Server(folder, database.uri)
        server.start()
        try:
            _deliver(folder, server.uri, blocks)
        finally:
            server.stop()
    return 0


def _deliver(folder: Path, uri: str, blocks: int) -> None:
    fixed = {"dataset": "digits", "fraction": 0.1, "tasks": 5, "buffer": 20}
    grid = {"method": ["pcr"], "seed": {"range": [0, AT_ONCE * blocks]}}
    study = load(sweep_file(folder, fixed=fixed, grid=grid))
    learner = Learner(next(iter(study.trials.values())), root=folder / "data")
    while not learner.done:
        learner.run_task()
    tasks = [learner.task_metrics(t) for t in range(1, learner.tasks_done + 1)]
    metrics = [{k: float(v) for k, v in numbers.items() if k != "task"} for numbers in tasks]
    store, spool = Store(uri), Spool(folder / "spool")
    store.open()
    run = SweepRun(store, study)
    run.begin()
    courier = Courier(spool, store, study.name, lambda: run.run_id)
    identities, me = list(study.trials), psutil.Process()
    print(f"{AT_ONCE} trials at once, {sum(map(len, metrics))} metrics per trial")
    for block in range(blocks):
        began, cpu = time.monotonic(), sum(me.cpu_times()[:2])
        mine = identities[AT_ONCE * block : AT_ONCE * (block + 1)]
        for identity in mine:
            trial = study.trials[identity]
            spool.append(identity, START, name=identity, params=trial.flat(), code=code_entry(code_of(trial)))
        for number, numbers in enumerate(metrics, 1):
            for identity in mine:
                spool.append(identity, TASK, task=number, metrics=numbers)
                if number == len(metrics):
                    spool.append(identity, END, status=Status.FINISHED, results=learner.results())
            assert courier.deliver_all(), courier.trouble
        seconds, used = time.monotonic() - began, sum(me.cpu_times()[:2]) - cpu
        print(
            f"trials {AT_ONCE * block + 1:4} to {AT_ONCE * (block + 1):4}: {seconds / AT_ONCE:.2f} s per trial, "
            f"{used / AT_ONCE:.2f} s of it CPU here; {me.memory_info().rss / 2**20:.0f} MiB", flush=True,
        )  # fmt: skip
    found = store.trials(identities)
    whole = [r for r in found.values() if r.finished and len(r.curves or {}) and r.metrics.keys() >= metrics[-1].keys()]
    print(f"{len(whole)} of {len(identities)} trials complete in MLflow")
    assert len(whole) == len(identities)


if __name__ == "__main__":
    sys.exit(main())
