"""Studies with made-up, known numbers in a real MLflow store, written as a running sweep writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pcr_ray.config import TrialConfig
from pcr_ray.provenance import code_of
from pcr_ray.study.load import Study
from pcr_ray.tracking.courier import Courier
from pcr_ray.tracking.runs import code_entry
from pcr_ray.tracking.spool import Spool
from pcr_ray.tracking.store import Store
from pcr_ray.tracking.sweep_run import SweepRun


def accuracy(trial: TrialConfig) -> float:
    return {"pcr": 60.0, "finetune": 20.0}[trial.method] + trial.buffer / 10 + 2 * trial.seed


def code(trial: TrialConfig, **other: str) -> dict[str, Any]:
    """What a trial is recorded with; `other` sources pretend to be those of another version."""
    entry = code_entry(code_of(trial))
    if other:
        entry |= {"sources": entry["sources"] | other, "fingerprint": "another"}
    return entry


def deliver(
    store: Store, study: Study, folder: Path, *, leave: int = 0, fail: int = 0, rerun: bool = False, **other: str
) -> Spool:
    """The trials of a study; the last `leave` not at all, `fail` before them as failed."""
    spool, sweep_run = Spool(folder / "spool"), SweepRun(store, study)
    sweep_run.begin()
    courier = Courier(spool, store, study.name, lambda: sweep_run.run_id)
    identities = list(study.trials)[: len(study.trials) - leave]
    for number, identity in enumerate(identities):
        trial = study.trials[identity]
        name = study.describe(identity)
        spool.append(identity, "start", name=name, params=trial.flat(), code=code(trial, **other), rerun=rerun)
        if number >= len(identities) - fail:
            spool.append(identity, "end", status="FAILED", reason="it broke")
            continue
        final = accuracy(trial)
        for task in (1, 2):
            spool.append(identity, "task", task=task, metrics={"average_accuracy": final + 10 * (2 - task)})
        last = {"final_accuracy": final, "forgetting": 1.0, "new_accuracy": final, "samples_per_second": 9.0}
        spool.append(identity, "task", task=3, metrics=last | {"average_accuracy": final})
        matrix = [[final + 10], [final, final]]
        results = {"config": trial.model_dump(), "accuracy_matrix": matrix, "ncm_accuracy_matrix": []}
        spool.append(identity, "end", status="FINISHED", results=results | {"data_fingerprint": "0a0b0c0d"})
    assert courier.deliver_all(), courier.trouble
    return spool
