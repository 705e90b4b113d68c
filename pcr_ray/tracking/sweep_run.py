"""The parent run of a sweep in MLflow: one per sweep name, holding its file, versions, report and figures."""

from __future__ import annotations

import json
import tempfile
from importlib import metadata
from pathlib import Path

from pcr_ray import __version__
from pcr_ray.provenance import commit
from pcr_ray.study.load import Study
from pcr_ray.tracking.runs import TAG_LIMIT, Status, Tag
from pcr_ray.tracking.store import Store

PACKAGES = ("torch", "torchvision", "ray", "mlflow", "numpy", "scikit-learn", "pillow")
REPORT_FILES = ("results.csv", "comparisons.csv", "report.md", "report.html", "table.tex", "*.png")


class SweepRun:
    """Found again when a sweep continues, so that children of all invocations hang under one run.

    Nothing is written before `begin`: a command that is refused leaves the record as it was.
    """

    def __init__(self, store: Store, study: Study) -> None:
        self.store, self.study = store, study
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
        return self._run_id

    def begin(self) -> None:
        """This invocation runs trials: store the file and the versions that it runs with."""
        client = self.store.client
        client.update_run(self.run_id, status=Status.RUNNING)
        tags = {Tag.NOTE: _without_html(self.study.spec.description), Tag.COMMIT: commit() or ""}
        for key, value in tags.items():
            if value:
                client.set_tag(self.run_id, key, value)
        # Children that a killed driver left running; those that are still asked for will run again.
        for child in self.store.running_under(self.run_id):
            client.set_terminated(child, status=Status.KILLED)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "sweep.yaml").write_text(self.study.to_yaml())
            (Path(folder) / "versions.json").write_text(json.dumps(versions(), indent=1) + "\n")
            client.log_artifacts(self.run_id, folder)

    def conclude(self, folder: Path, status: Status, note: str) -> None:
        """Upload the report, describe the run by it, and close the run."""
        self.store.client.set_tag(self.run_id, Tag.NOTE, _without_html(note)[:TAG_LIMIT])
        for pattern in REPORT_FILES:
            for file in folder.glob(pattern):
                self.store.client.log_artifact(self.run_id, str(file))
        self.close(status)

    def close(self, status: Status) -> None:
        self.store.client.set_terminated(self.run_id, status=status)


def _without_html(markdown: str) -> str:
    """Names and values of a sweep are text, whatever a browser might read into them."""
    return markdown.replace("<", "&lt;")


def versions() -> dict[str, str]:
    found = {"pcr_ray": __version__}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
