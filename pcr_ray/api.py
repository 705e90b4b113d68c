"""From Python: load a study, run it, read its results. Errors are exceptions of `pcr_ray.errors`.

import pcr_ray
study = pcr_ray.load("sweeps/quickstart.yaml", fixed={"fraction": 0.2})
pcr_ray.run(study)
frame = pcr_ray.results("quickstart")
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console

from pcr_ray.console import console
from pcr_ray.errors import InputError, NotNowError, PcrRayError
from pcr_ray.execution import driver, folders, search, signals
from pcr_ray.execution.options import RunOptions
from pcr_ray.study import load as study_files
from pcr_ray.study.cells import x_field
from pcr_ray.study.load import Study
from pcr_ray.study.reader import read_yaml
from pcr_ray.study.schema import NAME
from pcr_ray.study.search import describe, searched
from pcr_ray.text import did_you_mean, first_line, redact_uri
from pcr_ray.tracking.runs import Status
from pcr_ray.tracking.store import Store
from pcr_ray.tracking.uri import tracking_uri

if TYPE_CHECKING:
    import pandas as pd

    from pcr_ray.analysis.results import Answer


KEPT = ".answer.json"  # beside a report: what was shown with it


def load(
    path: str | Path,
    *,
    overrides: Sequence[str] = (),
    plugins: Sequence[str | Path] = (),
    **keys: Any,
) -> Study:
    """A study from its file; `fixed={...}`, `grid={...}`, `name=...` change keys of it, as `--set fixed.x=...` does."""
    changes = [*overrides]
    for key, value in keys.items():
        parts = {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, Mapping) else {key: value}
        changes += [f"{place}={_as_yaml(v, place)}" for place, v in parts.items()]
    return study_files.load(path, changes, [str(p) for p in plugins])


def _as_yaml(value: Any, place: str) -> str:
    try:
        return yaml.safe_dump(value.tolist() if hasattr(value, "tolist") else value, default_flow_style=True)
    except yaml.YAMLError:
        raise InputError(f"{place}: {value!r} cannot stand in a sweep file; give numbers, text or lists") from None


def run(study: Study, options: RunOptions | None = None) -> Status:
    """Run what is left of a study and write its report; FINISHED, FAILED (some trials) or KILLED.

    KILLED means that the same call continues: trials are left to run, or numbers to be delivered to MLflow.
    """
    options = options or RunOptions()
    store = Store(tracking_uri(options.tracking_uri))
    folder = options.folder(study.name)
    with folders.held(folder, study.name), signals.caught():
        try:
            if searched(study.spec.search):
                study = _search(study, store, options)
            result = driver.execute(study, store, options)
            if result.delivered:
                with signals.patience(result.asked, "the report"), result.sweep_run.killed_on_error():
                    _conclude(study, store, options, result)
            elif store.reachable():  # numbers wait for another sweep: nobody drives this one any more
                with store.guarded():
                    result.sweep_run.close(result.status)
        except (KeyboardInterrupt, search.Unfinished):  # outside Tune, which handles it itself
            console.print(signals.STOPPED)
            return Status.KILLED
    if result.stopped:
        console.print("stopped before all trials were done: run the same command again to continue")
    elif result.failed:
        again = options.rerun or "failed"
        console.print(f"run the same command with --rerun {again} to try failed trials again")
    return result.status


def _search(study: Study, store: Store, options: RunOptions) -> Study:
    """Find the settings that the file searches for; raises `Unfinished` where that was stopped."""
    console.print(describe(study), markup=False, soft_wrap=True)

    def run_all(tuning: Study) -> bool:
        with folders.held(options.folder(tuning.name), tuning.name):
            if options.rerun == "all":  # begun with the study's own: interrupted, it does no round again
                began, its = (options.folder(s.name) / driver.RERUN_ALL for s in (study, tuning))
                its.write_text(str(driver.rerun_since(began)))
            result = driver.execute(tuning, store, options)
        with store.guarded():
            result.sweep_run.close(result.status)
        return result.delivered and not result.stopped and not result.asked

    if not store.missing_file:
        store.open()
    with store.guarded():
        settled = search.settle(study, store, run_all, options.rerun)
    for found in settled.spec.search.chosen if settled.spec.search else []:
        console.print(f"chosen for {_fields(found.when)}: {_fields(found.set)}", markup=False, soft_wrap=True)
    return settled


def _fields(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in values.items())


def _conclude(study: Study, store: Store, options: RunOptions, result: driver.Result) -> None:
    folder = options.folder(study.name)
    known = [run.run_id for run in result.known.values() if run.finished]
    if not result.ran and (text := _kept(folder, _state(study, known, result.failed))) is not None:
        with store.guarded():
            result.sweep_run.close(result.status)
        console.print(text, end="", markup=False, soft_wrap=True)
        _point_to(folder, options)
        return
    from pcr_ray.analysis import document  # pandas, scipy and matplotlib: what needs no new report does without

    console.print("writing the report …")
    try:
        found = answer(study, store)
        document.write(found, folder)
        with store.guarded():
            result.sweep_run.conclude(folder, result.status, document.note(found), _summary(found))
        _keep(found, folder)
    except NotNowError:  # MLflow is away: the same command finishes the sweep's own run, and the report
        console.print("every number is recorded, but there is no report yet")
        raise
    except (PcrRayError, OSError) as error:  # the trials are done and recorded: only the report is not
        with store.guarded():
            result.sweep_run.close(result.status)
        console.print(f"no report: {error}\n  python -m pcr_ray.report {study.name} writes it", markup=False)
        return
    document.show(found, console)
    _point_to(folder, options)


def _point_to(folder: Path, options: RunOptions) -> None:
    console.print(f"report: {folder / 'report.html'}", soft_wrap=True, markup=False)
    where = f" --tracking-uri {redact_uri(options.tracking_uri)}" if options.tracking_uri else ""
    console.print(f"compare in the browser: pcr-ray ui {folder.name}{where}", soft_wrap=True, markup=False)


def _state(study: Study, finished: Iterable[str], failed: Mapping[str, str]) -> str:
    """Of all that a report depends on: the study, the runs that it shows, and the code that writes it."""
    sources = sorted((Path(__file__).parent / "analysis").rglob("*.py"))
    parts = [study.to_yaml(), *sorted(finished), *map(str, sorted(failed.items())), *(f.read_text() for f in sources)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _keep(found: Answer, folder: Path) -> None:
    """What was shown, for the next time that nothing has changed: a new report takes 2 s of CPU."""
    from pcr_ray.analysis import document

    text = io.StringIO()
    document.show(found, Console(file=text, width=console.width, highlight=False))
    state = _state(found.study, (run.run_id for run in found.runs.values()), found.failed)
    (folder / KEPT).write_text(json.dumps({"state": state, "text": text.getvalue()}))


def _kept(folder: Path, state: str) -> str | None:
    """The text of the report that is there; None where it is not of this state."""
    try:
        kept = json.loads((folder / KEPT).read_text())
        return kept["text"] if kept["state"] == state and (folder / "report.html").exists() else None
    except (OSError, ValueError, KeyError):
        return None


def _summary(answer: Answer) -> tuple[dict[str, float], str]:
    """A sweep at a glance: trials done and failed, the best single trial, the best mean and whose it is."""
    from pcr_ray.analysis.results import label
    from pcr_ray.metrics import METRICS

    study, y = answer.study, answer.metric
    numbers: dict[str, float] = {"trials": len(study.trials), "trials_done": len(answer.runs)}
    numbers["trials_failed"] = len(answer.failed)
    if not answer.cells:
        return numbers, ""
    best = min if METRICS[y].lower_is_better else max
    leader = best(answer.cells, key=lambda cell: cell.estimate.mean)
    numbers[f"best_{y}"] = best(value for cell in answer.cells for value in cell.values.values())
    numbers[f"leading_{y}"] = leader.estimate.mean
    place = [*leader.panel, *([(x_field(study), leader.x)] if x_field(study) else [])]
    where = f" at {', '.join(f'{name} {value}' for name, value in place)}" if place else ""
    return numbers, label(leader, study) + where


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
        raise InputError(f"no sweep '{text}' in {store}{hint}")
    stored = store.artifact_text(parent, "sweep.yaml")
    if stored is None:
        raise InputError(f"sweep '{text}' has no stored sweep file in MLflow; name its file instead")
    where = f"the stored file of sweep '{text}'"
    try:
        content = read_yaml(stored)
    except yaml.YAMLError as error:
        raise InputError(f"{where} is not valid YAML: {first_line(error)}; name the sweep's file instead") from None
    return study_files.parse(content, where, list(overrides), stored=True)


def look_up(name: str | Path | Study, store: Store) -> Study:
    """As `find`, for whoever looks on: with the settings that a search chose, or the round of it that comes next."""
    found = find(name, store)
    if not searched(found.spec.search):
        return found
    try:
        return search.settle(found, store)
    except search.Unfinished as error:
        return error.round


def existing_store(uri: str | None = None) -> Store:
    """The store to read from; reading makes none."""
    store = Store(tracking_uri(uri))
    if store.missing_file:
        raise InputError(
            f"there is no record yet: {store.missing_file} does not exist; go to the folder of your sweeps, name "
            "another store with --tracking-uri or MLFLOW_TRACKING_URI, or run a sweep first"
        )
    store.open()
    return store


def answer(study: str | Path | Study, store: Store, overrides: Sequence[str] = ()) -> Answer:
    """Everything that a report shows."""
    from pcr_ray.analysis.results import collect

    with store.guarded():
        found = find(study, store, overrides)
        if searched(found.spec.search):
            try:
                found = search.settle(found, store)
            except search.Unfinished:
                raise InputError(
                    f"sweep '{found.name}': its search is not over; run python -m pcr_ray.sweep to go on"
                ) from None
        return collect(found, store)


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
