"""From Python: load a study, run it, read its results. Errors are exceptions of `pcr_ray.errors`.

import pcr_ray
study = pcr_ray.load("sweeps/quickstart.yaml", fixed={"fraction": 0.2})
pcr_ray.run(study)
frame = pcr_ray.results("quickstart")
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pcr_ray.console import console
from pcr_ray.errors import InputError, PcrRayError
from pcr_ray.execution import driver
from pcr_ray.execution.options import RunOptions
from pcr_ray.study import load as study_files
from pcr_ray.study.load import Study
from pcr_ray.study.reader import read_yaml
from pcr_ray.study.schema import NAME
from pcr_ray.text import did_you_mean, first_line, redact
from pcr_ray.tracking.runs import Status
from pcr_ray.tracking.store import Store, tracking_uri

if TYPE_CHECKING:
    import pandas as pd

    from pcr_ray.analysis.results import Answer


def load(
    path: str | Path,
    *,
    fixed: Mapping[str, Any] | None = None,
    grid: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
) -> Study:
    """A study from its file; `fixed` and `grid` change fields of it, as `--set fixed.x=...` does on a command line."""
    changes = [*overrides]
    for place, values in (("fixed", fixed), ("grid", grid)):
        changes += [f"{place}.{k}={yaml.safe_dump(v, default_flow_style=True)}" for k, v in (values or {}).items()]
    return study_files.load(path, changes)


def run(study: Study, options: RunOptions | None = None) -> Status:
    """Run what is left of a study and write its report; FINISHED, FAILED (some trials) or KILLED (some are left)."""
    options = options or RunOptions()
    store = Store(tracking_uri(options.tracking_uri))
    folder = options.folder(study.name)
    with driver.held(folder, study.name), driver.stop_signals():
        try:
            result = driver.execute(study, store, options)
            if result.delivered:
                _conclude(study, store, options, result)
        except KeyboardInterrupt:  # outside Tune, which handles it itself
            console.print("stopped: run the same command again to continue")
            return Status.KILLED
    if result.stopped:
        console.print("stopped before all trials were done: run the same command again to continue")
    elif result.failed:
        again = options.rerun or "failed"
        console.print(f"run the same command with --rerun {again} to try failed trials again")
    return result.status


def _conclude(study: Study, store: Store, options: RunOptions, result: driver.Result) -> None:
    from pcr_ray.analysis import document  # pandas and matplotlib: a dry run does without

    folder = options.folder(study.name)
    try:
        found = answer(study, store)
        document.write(found, folder)
        with store.guarded():
            result.sweep_run.conclude(folder, result.status, document.note(found))
    except (PcrRayError, OSError) as error:  # the trials are done and recorded: only the report is not
        with contextlib.suppress(Exception):
            result.sweep_run.close(result.status)
        console.print(f"no report: {error}\n  python -m pcr_ray.report {study.name} writes it", markup=False)
        return
    document.show(found, console)
    console.print(f"report: {folder / 'report.html'}", soft_wrap=True, markup=False)
    where = f" --tracking-uri {redact(options.tracking_uri)}" if options.tracking_uri else ""
    console.print(f"compare in the browser: pcr-ray ui{where}", soft_wrap=True, markup=False)


def find(name: str | Path | Study, store: Store, overrides: Sequence[str] = ()) -> Study:
    """A study by its file, or by the name under which it was run: its file was stored then."""
    if isinstance(name, Study):
        return name
    text = str(name)
    if text.endswith((".yaml", ".yml")) or Path(text).is_file():
        return study_files.load(text, list(overrides))
    parent = store.sweep_run(text) if re.match(NAME, text) else None
    if parent is None:
        known = store.sweep_names()
        hint = did_you_mean(text, known) if known else "; no sweep was run with this store yet"
        raise InputError(f"no sweep '{text}' in {redact(store.uri)}{hint}")
    stored = store.artifact_text(parent, "sweep.yaml")
    if stored is None:
        raise InputError(f"sweep '{text}' has no stored sweep file in MLflow; name its file instead")
    where = f"the stored file of sweep '{text}'"
    try:
        content = read_yaml(stored)
    except yaml.YAMLError as error:
        raise InputError(f"{where} is not valid YAML: {first_line(error)}; name the sweep's file instead") from None
    return study_files.parse(content, where, list(overrides), stored=True)


def existing_store(uri: str | None = None) -> Store:
    """The store to read from; reading makes none."""
    store = Store(tracking_uri(uri))
    if store.missing_file:
        raise InputError(
            f"there is no record yet: {store.missing_file} does not exist; run a sweep, or name another store"
        )
    store.open()
    return store


def answer(study: str | Path | Study, store: Store, overrides: Sequence[str] = ()) -> Answer:
    """Everything that a report shows."""
    from pcr_ray.analysis.results import collect

    with store.guarded():
        return collect(find(study, store, overrides), store)


def results(study: str | Path | Study, tracking_uri: str | None = None) -> pd.DataFrame:
    """One row per finished trial and classifier: its fields that vary, its final metrics, its code and run."""
    return answer(study, existing_store(tracking_uri)).frame


def curves(study: str | Path | Study, tracking_uri: str | None = None) -> pd.DataFrame:
    """One row per finished trial, classifier and task: the average accuracy on the tasks so far."""
    import pandas as pd

    from pcr_ray.metrics import CLASSIFIERS

    store = existing_store(tracking_uri)
    found, metric = answer(study, store), "average_accuracy"
    values = store.curves(found.runs.values(), [c.metric(metric) for c in CLASSIFIERS.values()])
    rows = []
    for identity, run in found.runs.items():
        flat = found.study.trials[identity].flat()
        for name, classifier in CLASSIFIERS.items():
            fields = {"trial": identity, "classifier": name, **{k: flat.get(k) for k in found.study.varying}}
            curve = values.get((run.run_id, classifier.metric(metric)), [])
            rows += [fields | {"task": task, metric: value} for task, value in enumerate(curve, start=1)]
    return pd.DataFrame(rows, columns=["trial", "classifier", *found.study.varying, "task", metric])
