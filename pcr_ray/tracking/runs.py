"""A trial's run as the rest of the package sees it: the one place that knows MLflow's run objects and our tags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pcr_ray.identity import FORM
from pcr_ray.provenance import Code

EXPERIMENT = "pcr_ray"


class Status(str, Enum):
    """Of a trial or a sweep, in MLflow's words."""

    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"


class Tag:
    """What is written on runs."""

    KIND = "pcr_ray.kind"  # sweep or trial
    IDENTITY = "pcr_ray.identity"
    FORM = "pcr_ray.form"  # of the identity
    SWEEP = "pcr_ray.sweep"  # that ran it
    REASON = "pcr_ray.reason"  # of its failure
    CODE = "pcr_ray.code"  # fingerprint
    SOURCES = "pcr_ray.sources"  # file -> hash
    VERSION = "pcr_ray.version"
    NODE = "pcr_ray.node"  # the host that ended it
    DATA = "pcr_ray.data"  # the dataset's fingerprint
    CURVES = "pcr_ray.curves"  # metric -> values after each task that has one
    PROXIES = "pcr_ray.proxy_gradients"
    SUPERSEDED = "pcr_ray.superseded"  # the run that replaced this one
    COMMIT = "mlflow.source.git.commit"
    PARENT = "mlflow.parentRunId"
    NOTE = "mlflow.note.content"


VERSIONS = "versions.json"  # artifact of a sweep's run
TAG_LIMIT = 8000  # characters that MLflow keeps
# A trial's identity is also the digest of an input of this name: MLflow looks for many digests in one request, and for
# many values of a tag in as many.
TRIAL_INPUT = "pcr_ray.trial"


@dataclass(frozen=True)
class TrialRun:
    """One attempt at a trial."""

    run_id: str
    identity: str
    status: Status
    sweep: str
    reason: str
    started: int  # ms since 1970
    ended: int  # the same; 0: not yet
    superseded: bool
    sources: Mapping[str, str] | None  # None: recorded by a version that did not know them
    code: str
    version: str  # of the package
    commit: str
    node: str  # the host that ended it
    data: str
    metrics: Mapping[str, float]  # the last value of each
    params: Mapping[str, Any]
    curves: Mapping[str, list[float]] | None  # None: only in the metrics' histories
    proxy_gradients: list[float] | None  # of the last task, by class

    @property
    def finished(self) -> bool:
        return self.status is Status.FINISHED

    @classmethod
    def read(cls, run: Any) -> TrialRun:
        tags = run.data.tags
        return cls(
            run_id=run.info.run_id,
            identity=tags.get(Tag.IDENTITY, ""),
            status=Status(run.info.status) if run.info.status in Status.__members__ else Status.RUNNING,
            sweep=tags.get(Tag.SWEEP, ""),
            reason=tags.get(Tag.REASON) or "",
            started=run.info.start_time or 0,
            ended=run.info.end_time or 0,
            superseded=Tag.SUPERSEDED in tags,
            sources=_mapping(tags.get(Tag.SOURCES)),
            code=tags.get(Tag.CODE, ""),
            version=tags.get(Tag.VERSION, ""),
            commit=tags.get(Tag.COMMIT, ""),
            node=tags.get(Tag.NODE, ""),
            data=tags.get(Tag.DATA, ""),
            metrics=run.data.metrics,
            params={k: read_param(v) for k, v in run.data.params.items()},
            curves=_mapping(tags.get(Tag.CURVES)),
            proxy_gradients=(_mapping(tags.get(Tag.PROXIES)) or {}).get("last_task"),
        )

    def outranks(self, other: TrialRun) -> bool:
        """A finished attempt that nothing replaced stands for the trial, then any finished one, then the newest."""
        return self._rank > other._rank

    @property
    def _rank(self) -> tuple[bool, bool, int]:
        return self.finished, not self.superseded, self.started


def trial_tags(identity: str, sweep: str, parent: str, code: Mapping[str, Any] | None) -> dict[str, str]:
    """Of a new run; `code` is what `code_entry` made of the code."""
    tags = {Tag.KIND: "trial", Tag.IDENTITY: identity, Tag.FORM: str(FORM), Tag.SWEEP: sweep, Tag.PARENT: parent}
    return tags | code_tags(code)


def code_entry(code: Code) -> dict[str, Any]:
    """For the spool: plain values."""
    return {
        "version": code.version,
        "commit": code.commit,
        "sources": dict(code.sources),
        "fingerprint": code.fingerprint,
    }


def code_tags(entry: Mapping[str, Any] | None) -> dict[str, str]:
    """None: events that the first version left in a spool do not know their code."""
    if entry is None:
        return {}
    tags = {Tag.CODE: entry["fingerprint"], Tag.VERSION: entry["version"], Tag.SOURCES: json.dumps(entry["sources"])}
    if entry["commit"]:
        tags[Tag.COMMIT] = entry["commit"]
    return {key: value for key, value in tags.items() if len(value) <= TAG_LIMIT}


def param_text(value: Any) -> str:
    """A config value as an MLflow parameter; `read_param` turns it back."""
    return value if isinstance(value, str) else json.dumps(value)


def read_param(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _mapping(text: str | None) -> dict[str, Any] | None:
    try:
        found = json.loads(text) if text else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
