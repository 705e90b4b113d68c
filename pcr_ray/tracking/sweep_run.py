"""The parent run of a sweep in MLflow: one per sweep name, holding its file, versions, report and figures."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from pcr_ray import __version__
from pcr_ray.provenance import commit
from pcr_ray.study.load import Study
from pcr_ray.text import as_markdown
from pcr_ray.tracking import views
from pcr_ray.tracking.runs import TAG_LIMIT, VERSIONS, Status, Tag, TrialRun, source_tags
from pcr_ray.tracking.store import Store

PACKAGES = ("torch", "torchvision", "ray", "mlflow", "numpy", "scikit-learn", "pillow")
Summary = tuple[Mapping[str, float], str]  # numbers of the whole sweep, and who leads where
FIGURES = "figures"  # folder of a report
REPORT_FILES = ("results.csv", "comparisons.csv", "search.csv", "report.md", "report.html", "table.tex")


class SweepRun:
    """Found again when a sweep continues, so that children of all invocations hang under one run.

    Nothing is written before `begin`: a command that is refused leaves the record as it was.
    """

    def __init__(self, store: Store, study: Study) -> None:
        self.store, self.study = store, study
        self.begun = False  # whether it is ours to close
        self._run_id: str | None = None

    @property
    def run_id(self) -> str:
        """Made where there is none yet."""
        if self._run_id is None:
            self._run_id = self.store.sweep_run(self.study.name)
        if self._run_id is None:
            tags = {Tag.KIND: "sweep", Tag.SWEEP: self.study.name}
            created = self.store.client.create_run(self.store.experiment, tags=tags, run_name=self.study.name)
            self._run_id = str(created.info.run_id)
            self.begun = True
        return self._run_id

    def begin(
        self, known: Iterable[TrialRun] = (), data: Mapping[str, str] | None = None, place: str = ""
    ) -> None:  # fmt: skip
        """This invocation runs trials: store the file and the versions that it runs with.

        `known` are runs that stand for trials of this sweep already; they stay what they are and become visible here.
        `data` has the fingerprints of datasets, as far as they are known, `place` tells where the sweep is driven from.
        """
        from mlflow.entities import Dataset, DatasetInput, RunTag

        client = self.store.client
        self.begun = True
        client.update_run(self.run_id, status=Status.RUNNING)
        tags = {Tag.COMMIT: commit() or ""} | source_tags("pcr-ray sweep")
        if Tag.NOTE not in client.get_run(self.run_id).data.tags:  # later it is the answer so far
            tags[Tag.NOTE] = as_markdown(self.study.spec.description)
        sign = {"time": time.time(), "host": socket.gethostname(), "headline": "starting"}
        sign |= {"place": place} if place else {}
        tags[Tag.PROGRESS] = json.dumps(sign)
        client.log_batch(self.run_id, tags=[RunTag(key, value) for key, value in tags.items() if value])
        inputs = [DatasetInput(Dataset(name, print_, "pcr_ray", name), []) for name, print_ in (data or {}).items()]
        client.log_inputs(self.run_id, inputs)
        # Children that a killed driver left running; those that are still asked for will run again.
        for child in self.store.running_under(self.run_id):
            client.set_terminated(child, status=Status.KILLED)
        self.claim(known)
        views.save(self.store, self.study)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "sweep.yaml").write_text(self.study.to_yaml())
            (Path(folder) / VERSIONS).write_text(json.dumps(versions(), indent=1) + "\n")
            client.log_artifacts(self.run_id, folder)

    def claim(self, known: Iterable[TrialRun]) -> None:
        """Mark runs as trials of this sweep too: there is one run per trial, shown in every sweep that has it."""
        new = [run.run_id for run in known if self.study.name not in run.sweeps]
        # 30 ms each through a server, which answers several at once; a database file takes one writer.
        with ThreadPoolExecutor(8 if self.store.uri.startswith("http") else 1) as pool:
            tag = f"{Tag.IN_SWEEP}{self.study.name}"
            list(pool.map(lambda run: self.store.client.set_tag(run, tag, "yes"), new))

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """CPU, memory and GPU of this machine on the sweep's run, where MLflow's own option asks for it."""
        from mlflow.environment_variables import MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING

        if not MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING.get():
            yield
            return
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        monitor = SystemMetricsMonitor(self.run_id, resume_logging=True, tracking_uri=self.store.uri)
        monitor.start()
        try:
            yield
        finally:
            monitor.finish()

    def conclude(self, folder: Path, status: Status, note: tuple[str, str], summary: Summary | None = None) -> None:
        """Upload the report, describe the run by it, and close the run. `note`: answer and rest, as Markdown."""
        from mlflow.entities import Metric, RunTag

        client, now = self.store.client, int(time.time() * 1000)
        links = views.markdown(self.store.experiment, self.run_id, self.study.name)
        words, rest = note
        text = "\n\n".join(part for part in (words, links, rest) if part)  # words first: the UI folds all but 4 lines
        numbers, leader = summary or ({}, "")
        tags = {Tag.NOTE: text[:TAG_LIMIT], Tag.LEADER: leader}
        metrics = [Metric(key, value, now, 0) for key, value in numbers.items()]
        client.log_batch(self.run_id, metrics=metrics, tags=[RunTag(k, v) for k, v in tags.items() if v])
        for pattern in REPORT_FILES:
            for file in folder.glob(pattern):
                client.log_artifact(self.run_id, str(file))
        if (folder / FIGURES).is_dir():
            client.log_artifacts(self.run_id, str(folder / FIGURES), FIGURES)
        self.close(status)

    @contextlib.contextmanager
    def killed_on_error(self) -> Iterator[None]:
        """An error leaves the run KILLED, not RUNNING as if somebody drove it; before it is begun, as it was."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):  # the error matters more than the run's status
                if self.begun:
                    self.close(Status.KILLED)
            raise

    def close(self, status: Status) -> None:
        with contextlib.suppress(Exception):  # a sweep that had nothing to run has none
            self.store.client.delete_tag(self.run_id, Tag.PROGRESS)
        self.store.client.set_terminated(self.run_id, status=status)


def versions() -> dict[str, str]:
    found = {"pcr_ray": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found | {"machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"}
