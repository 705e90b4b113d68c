"""The parent run of a sweep in MLflow: one a sweep name, holding its file, versions, report and figures."""

from __future__ import annotations

import json
import subprocess
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from pcr_ray import __version__
from pcr_ray.study.load import Sweep
from pcr_ray.text import redact
from pcr_ray.tracking.store import KIND, SWEEP, Record

PACKAGES = ("torch", "torchvision", "ray", "mlflow", "numpy", "scikit-learn", "pillow")
REPORT_FILES = ("results.csv", "report.md", "report.html", "table.tex", "*.png")


class ParentRun:
    """Found again when a sweep continues, so that children of all invocations hang under one run."""

    def __init__(self, record: Record, sweep: Sweep) -> None:
        self.record, self.sweep = record, sweep
        found = record.sweep_run(sweep.name)
        tags = {KIND: "sweep", SWEEP: sweep.name, "mlflow.note.content": sweep.spec.description}
        if commit := _git_commit():
            tags["mlflow.source.git.commit"] = commit
        if found is None:
            created = record.client.create_run(record.experiment, tags=tags, run_name=sweep.name)
            self.run_id = created.info.run_id
        else:
            self.run_id = found.info.run_id
            record.client.update_run(self.run_id, status="RUNNING")
            for key, value in tags.items():
                record.client.set_tag(self.run_id, key, value)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "sweep.yaml").write_text(sweep.to_yaml())
            (Path(folder) / "versions.json").write_text(json.dumps(versions(), indent=1) + "\n")
            record.client.log_artifacts(self.run_id, folder)

    def tidy(self, known: dict[str, Any]) -> None:
        """Runs of this sweep that a killed driver left RUNNING; those that are still asked for will run again."""
        for run in known.values():
            if run.info.status == "RUNNING" and run.data.tags.get(SWEEP) == self.sweep.name:
                self.record.client.set_terminated(run.info.run_id, status="KILLED")

    def conclude(self, folder: Path, status: str) -> None:
        """Upload the report and close the run."""
        for pattern in REPORT_FILES:
            for file in folder.glob(pattern):
                self.record.client.log_artifact(self.run_id, str(file))
        self.close(status)

    def close(self, status: str) -> None:
        self.record.client.set_terminated(self.run_id, status=status)


def versions() -> dict[str, str]:
    found = {"pcr_ray": __version__}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git_commit() -> str | None:
    """Of the code that runs, where it is a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return redact(subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip())
    except (OSError, subprocess.SubprocessError):
        return None
