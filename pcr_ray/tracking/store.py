"""MLflow is the record: where it is, how runs of sweeps and trials are found in it. Never prints credentials."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pcr_ray.errors import InputError
from pcr_ray.text import redact

EXPERIMENT = "pcr_ray"
KIND, IDENTITY, SWEEP, REASON = "pcr_ray.kind", "pcr_ray.identity", "pcr_ray.sweep", "pcr_ray.reason"
PARENT = "mlflow.parentRunId"
PAGE = 1000

# A server that is away is met with our own patience: waiting inside a request would block everything behind it.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
logging.getLogger("alembic").setLevel(logging.WARNING)


def tracking_uri(given: str | None = None) -> str:
    """`--tracking-uri`, else MLFLOW_TRACKING_URI, else mlflow.db in the working directory; absolute."""
    uri = given or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        return f"sqlite:///{Path(uri.removeprefix('sqlite:///')).absolute()}"
    if not urlsplit(uri).scheme:
        raise InputError(f"tracking URI '{redact(uri)}': expected http://..., sqlite:///FILE or another database's URI")
    return uri


class Record:
    """One tracking store. Opened on first use, so that it can be made anywhere and copied."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._client: Any = None
        self._experiment: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"uri": self.uri, "_client": None, "_experiment": None}

    @property
    def client(self) -> Any:
        if self._client is None:
            from mlflow import MlflowClient

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
        if self.uri.startswith("sqlite:///"):  # artifacts beside the database
            location = (Path(self.uri.removeprefix("sqlite:///")).parent / "mlartifacts").as_uri()
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
        file = Path(self.uri.removeprefix("sqlite:///"))
        return file if self.uri.startswith("sqlite:///") and not file.exists() else None

    def open(self) -> None:
        """Reach the store or say clearly that it cannot be reached."""
        with self.guarded():
            _ = self.experiment

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """What the store says when it fails, as one message without credentials."""
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (MlflowException, OSError, SQLAlchemyError) as error:
            raise InputError(
                f"the tracking store {redact(self.uri)} cannot be used: {redact(error).splitlines()[0][:300]}\n"
                "  Start it, or name another with --tracking-uri or MLFLOW_TRACKING_URI."
            ) from None

    def reachable(self) -> bool:
        try:
            self.client.get_experiment_by_name(EXPERIMENT)
        except Exception:
            return False
        return True

    def runs(self, **tags: str) -> Iterator[Any]:
        """All runs with these tags, newest first; keys are given without the `pcr_ray.` prefix."""
        parts = [f"tags.`pcr_ray.{key}` = '{value}'" for key, value in tags.items()]
        token = None
        while True:
            page = self.client.search_runs([self.experiment], " and ".join(parts), max_results=PAGE, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    def trials(self) -> dict[str, Any]:
        """Every trial's run by identity, a finished one preferred."""
        found: dict[str, Any] = {}
        for run in self.runs(kind="trial"):
            identity = run.data.tags.get(IDENTITY)
            if identity and (identity not in found or run.info.status == "FINISHED"):
                found[identity] = run
        return found

    def sweep_run(self, name: str) -> Any | None:
        """The parent run of a sweep."""
        return next(self.runs(kind="sweep", sweep=name), None)

    def artifact_text(self, run_id: str, path: str) -> str | None:
        from mlflow.artifacts import download_artifacts
        from mlflow.exceptions import MlflowException

        try:
            local = download_artifacts(run_id=run_id, artifact_path=path, tracking_uri=self.uri)
        except (MlflowException, OSError):
            return None
        return Path(local).read_text()


def param_text(value: Any) -> str:
    """A config value as an MLflow parameter; `read_param` turns it back."""
    return value if isinstance(value, str) else json.dumps(value)


def read_param(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
