"""MLflow is the record: how runs of sweeps and trials are found in it. Never prints credentials."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pcr_ray.errors import InputError, NotNowError, PcrRayError
from pcr_ray.text import first_line, redact_uri
from pcr_ray.tracking.names import shown
from pcr_ray.tracking.runs import EXPERIMENT, TRIAL_INPUT, VERSIONS, Status, SweepInfo, Tag, TrialRun
from pcr_ray.tracking.uri import sqlite_file

PAGE = 1000
# Each request goes through all inputs of the store once, 0.3 s with 20,000 runs; one of 500 takes a server 1 s in
# all, far below the timeout.
IDENTITIES_PER_REQUEST = 500
CONNECT_ATTEMPTS = 4  # at a database, within 1.5 s; MLflow's own 10 take 100 s
LOCKED_PATIENCE = 60.0  # seconds that a locked database is waited for at the start
MISTAKES = ("file is not a database", "out-of-date database schema", "Can't load plugin", "maintenance mode")

# A server that is away is met with our own patience: waiting inside a request would block everything behind it.
SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


def _configure() -> None:
    """Before MLflow is imported: it reads its settings then."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.ERROR)  # what fails is told once, by us


def _advice(error: Exception) -> str:
    if isinstance(error, ImportError) or "load plugin" in str(error):
        return (
            "Install the database's driver beside pcr_ray, or name one that is there: pcr_ray[postgres] has psycopg2, "
            "and its URIs begin with postgresql+psycopg2://"
        )
    if "revision" in str(error) or "schema" in str(error):
        return "Another version of MLflow made it: use that version, or mlflow db upgrade URI on a copy of it."
    return "Name another with --tracking-uri or MLFLOW_TRACKING_URI."


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Without garbage collection: a page of runs is 100,000 objects, and looking for cycles among them took 40 %."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class Store:
    """One tracking store. Opened on first use, so that it can be made anywhere and copied."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._client: Any = None
        self._experiment: str | None = None

    def __str__(self) -> str:
        """For people: without credentials."""
        return redact_uri(self.uri)

    def __getstate__(self) -> dict[str, Any]:
        return {"uri": self.uri, "_client": None, "_experiment": None}

    @property
    def client(self) -> Any:
        if self._client is None:
            _configure()
            from mlflow import MlflowClient
            from mlflow.store.db import utils

            utils.MAX_RETRY_COUNT = CONNECT_ATTEMPTS
            self._client = MlflowClient(tracking_uri=self.uri)
        return self._client

    @property
    def experiment(self) -> str:
        """The id of the experiment that holds all sweeps, made where it is missing."""
        if self._experiment is None:
            found = self.client.get_experiment_by_name(EXPERIMENT)
            if found and found.lifecycle_stage == "deleted":
                raise InputError(f"experiment '{EXPERIMENT}' was deleted: restore it with mlflow experiments restore")
            self._experiment = found.experiment_id if found else self._create()
        return self._experiment

    def _create(self) -> str:
        from mlflow.exceptions import MlflowException

        location = None
        if file := sqlite_file(self.uri):  # artifacts beside the database
            location = (file.parent / "mlartifacts").as_uri()
        try:
            return self.client.create_experiment(EXPERIMENT, artifact_location=location)
        except MlflowException:  # another process was faster
            found = self.client.get_experiment_by_name(EXPERIMENT)
            if found is None:
                raise
            return found.experiment_id

    @property
    def missing_file(self) -> Path | None:
        """The file of a SQLite store that does not exist yet."""
        file = sqlite_file(self.uri)
        return file if file and not file.exists() else None

    def open(self) -> None:
        """Reach the store or say clearly that it cannot be reached. A locked database is waited for."""
        deadline = time.monotonic() + LOCKED_PATIENCE
        while True:
            try:
                with self.guarded():
                    _ = self.experiment
                return
            except NotNowError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(1)
            except PcrRayError:
                raise
            except Exception as error:  # a driver that is not installed, a database of another version
                raise InputError(
                    f"the tracking store {self} cannot be used: {first_line(error)}\n  {_advice(error)}"
                ) from None

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """What the store says when it fails, as one message without credentials."""
        _configure()
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (MlflowException, OSError, SQLAlchemyError) as error:
            if any(words in str(error) for words in MISTAKES):
                raise InputError(
                    f"the tracking store {self} cannot be used: {first_line(error)}\n  {_advice(error)}"
                ) from None
            raise NotNowError(
                f"the tracking store {self} cannot be used: {first_line(error)}\n"
                "  Start it and run the same command again, or name another with --tracking-uri or "
                "MLFLOW_TRACKING_URI."
            ) from None

    def ping(self) -> None:
        """Ask something small; raises what MLflow raises."""
        self.client.get_experiment_by_name(EXPERIMENT)

    def reachable(self) -> bool:
        try:
            self.ping()
        except Exception:
            return False
        return True

    def trials(self, identities: Collection[str]) -> dict[str, TrialRun]:
        """The run that stands for each of these trials, where there is one.

        The cost follows the number of trials asked for, not the size of the store.
        """
        found: dict[str, TrialRun] = {}
        for run in self._trial_runs(list(identities)):
            if run.identity in identities and (run.identity not in found or run.outranks(found[run.identity])):
                found[run.identity] = run
        return found

    def _trial_runs(self, identities: list[str]) -> Iterator[TrialRun]:
        for i in range(0, len(identities), IDENTITIES_PER_REQUEST):
            digests = ",".join(f"'{identity}'" for identity in identities[i : i + IDENTITIES_PER_REQUEST])
            text = f"datasets.name = '{TRIAL_INPUT}' and datasets.digest IN ({digests})"
            yield from map(TrialRun.read, self._search(text))
        # Runs of the first version have no such input. Their identities are the same.
        yield from map(TrialRun.read, self._search(f"tags.`{Tag.KIND}` = 'trial' and tags.`{Tag.FORM}` IS NULL"))

    def attempts(self, identity: str) -> list[TrialRun]:
        """Every run of one trial, the newest first."""
        runs = self._search(f"tags.`{Tag.KIND}` = 'trial' and tags.`{Tag.IDENTITY}` = '{identity}'")
        return sorted(map(TrialRun.read, runs), key=lambda run: -run.started)

    def curves(self, runs: Iterable[TrialRun], metrics: list[str]) -> dict[tuple[str, str], list[float]]:
        """(run id, metric) -> values after each task; histories are asked only where a run has no tag of them."""
        found: dict[tuple[str, str], list[float]] = {}
        asked: list[tuple[str, str]] = []
        for run in runs:
            for metric in metrics:
                if metric in run.metrics and run.curves is None:
                    asked.append((run.run_id, metric))
                elif run.curves and metric in run.curves:
                    found[run.run_id, metric] = run.curves[metric]
        with ThreadPoolExecutor(8) as pool:
            found |= dict(zip(asked, pool.map(lambda item: self.history(*item), asked)))
        return found

    def history(self, run_id: str, metric: str) -> list[float]:
        """Values by step, under the metric's name of today and of earlier versions: a run may have been continued."""
        names = dict.fromkeys([metric, shown(metric)])
        steps = {m.step: m.value for name in names for m in self.client.get_metric_history(run_id, name)}
        return [value for _, value in sorted(steps.items())]

    def sweep_run(self, name: str) -> str | None:
        """The id of a sweep's parent run."""
        sweep = self.sweep(name)
        return sweep.run_id if sweep else None

    def sweep_names(self) -> list[str]:
        return sorted(run.name for run in self.sweeps())

    def sweeps(self) -> list[SweepInfo]:
        """What is recorded of every sweep, those last begun first."""
        found = [SweepInfo.read(run) for run in self._search(f"tags.`{Tag.KIND}` = 'sweep'")]
        return sorted(found, key=lambda run: -run.touched)

    def sweep(self, name: str) -> SweepInfo | None:
        """What is recorded of one sweep."""
        found = self._search(f"tags.`{Tag.KIND}` = 'sweep' and tags.`{Tag.SWEEP}` = '{name}'")
        return next(map(SweepInfo.read, found), None)

    def alive(self, name: str) -> bool:
        """Whether a sweep runs at this moment, on whatever machine."""
        sweep = self.sweep(name)
        return sweep is not None and sweep.alive(time.time())

    def sweep_versions(self, name: str) -> dict[str, str]:
        """What a sweep was last run with; empty where that is not recorded."""
        parent = self.sweep_run(name)
        text = self.artifact_text(parent, VERSIONS) if parent else None
        found = json.loads(text) if text else {}
        return found if isinstance(found, dict) else {}

    def running_under(self, parent: str) -> list[str]:
        """Ids of a sweep's children that are marked as running."""
        text = f"tags.`{Tag.PARENT}` = '{parent}' and attributes.status = '{Status.RUNNING.value}'"
        return [run.info.run_id for run in self._search(text)]

    def _search(self, text: str) -> Iterator[Any]:
        """All runs that a filter names, newest first."""
        token = None
        while True:
            with _uncollected():
                page = self.client.search_runs([self.experiment], text, max_results=PAGE, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    def artifact_text(self, run_id: str, path: str) -> str | None:
        from mlflow.artifacts import download_artifacts
        from mlflow.exceptions import MlflowException

        try:
            with tempfile.TemporaryDirectory() as folder:  # MLflow would make one and leave it
                local = download_artifacts(run_id=run_id, artifact_path=path, tracking_uri=self.uri, dst_path=folder)
                return Path(local).read_text()
        except (MlflowException, OSError):
            return None
