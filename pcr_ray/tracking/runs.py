"""A trial's run as the rest of the package sees it: the one place that knows MLflow's run objects and our tags."""

from __future__ import annotations

import contextlib
import getpass
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pcr_ray.identity import FORM
from pcr_ray.provenance import Code
from pcr_ray.tracking.names import known

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
    IN_SWEEP = "pcr_ray.sweep."  # and a name: "yes" on the trials of that sweep, whichever ran them
    REASON = "pcr_ray.reason"  # of its failure
    CODE = "pcr_ray.code"  # fingerprint
    SOURCES = "pcr_ray.sources"  # file -> hash
    VERSION = "pcr_ray.version"
    NODE = "pcr_ray.node"  # the host that ended it
    DEVICE = "pcr_ray.device"  # and what it ran on there
    PROGRESS = "pcr_ray.progress"  # of a running sweep, with the time of its last sign of life
    LEADER = "pcr_ray.leader"  # the best series of a sweep, and where
    DATA = "pcr_ray.data"  # the dataset's fingerprint
    CURVES = "pcr_ray.curves"  # metric -> values after each task that has one
    PROXIES = "pcr_ray.proxy_gradients"
    SUPERSEDED = "pcr_ray.superseded"  # the run that replaced this one
    COMMIT = "mlflow.source.git.commit"
    PARENT = "mlflow.parentRunId"
    NOTE = "mlflow.note.content"
    USER = "mlflow.user"
    SOURCE = "mlflow.source.name"
    SOURCE_TYPE = "mlflow.source.type"


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
    sweeps: frozenset[str]  # that have this trial
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
            sweeps=frozenset(key.removeprefix(Tag.IN_SWEEP) for key in tags if key.startswith(Tag.IN_SWEEP)),
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
            metrics={known(k): v for k, v in run.data.metrics.items()},
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


SILENT = 120.0  # seconds without a sign of life after which a sweep that is marked as running is held for dead


@dataclass(frozen=True)
class SweepInfo:
    """The run of a sweep."""

    run_id: str
    name: str
    status: Status
    started: int  # ms since 1970
    ended: int  # the same; 0: not yet
    leader: str
    metrics: Mapping[str, float]
    progress: Mapping[str, Any]  # its last sign of life: time (s since 1970), host, place, headline, last, running

    @classmethod
    def read(cls, run: Any) -> SweepInfo:
        tags = run.data.tags
        return cls(
            run_id=run.info.run_id,
            name=tags[Tag.SWEEP],
            status=Status(run.info.status) if run.info.status in Status.__members__ else Status.RUNNING,
            started=run.info.start_time or 0,
            ended=run.info.end_time or 0,
            leader=tags.get(Tag.LEADER, ""),
            metrics=run.data.metrics,
            progress=_mapping(tags.get(Tag.PROGRESS)) or {},
        )

    @property
    def touched(self) -> float:
        """When it was last heard of, in ms since 1970."""
        return max(self.started, self.ended, 1000 * self.progress.get("time", 0))

    def alive(self, now: float) -> bool:
        """Whether it runs at `now` (s since 1970), on whatever machine."""
        return self.status is Status.RUNNING and now - self.touched / 1000 < SILENT


def trial_tags(identity: str, sweep: str, parent: str, code: Mapping[str, Any] | None) -> dict[str, str]:
    """Of a new run; `code` is what `code_entry` made of the code."""
    tags = {Tag.KIND: "trial", Tag.IDENTITY: identity, Tag.FORM: str(FORM), Tag.SWEEP: sweep, Tag.PARENT: parent}
    return tags | {f"{Tag.IN_SWEEP}{sweep}": "yes"} | code_tags(code) | source_tags("pcr_ray")


def source_tags(name: str) -> dict[str, str]:
    """What the UI shows as a run's source and creator."""
    tags = {Tag.SOURCE: name, Tag.SOURCE_TYPE: "LOCAL"}
    with contextlib.suppress(Exception):  # a container's user may have no name
        tags[Tag.USER] = getpass.getuser()
    return tags


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
