"""Whole sweeps whose code changes, and trials that a scheduler of Tune's stops early."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from mlflow import MlflowClient

from tests.sweeping import REPOSITORY, TINY, environment, histories, run_sweep, sweep_file

pytestmark = pytest.mark.slow


def runs_by_code(folder: Path) -> dict[str, list[str]]:
    """Code fingerprint -> names of the runs that nothing replaced."""
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("pcr_ray").experiment_id
    found: dict[str, list[str]] = {}
    for run in client.search_runs([experiment], "tags.`pcr_ray.kind` = 'trial'"):
        if "pcr_ray.superseded" not in run.data.tags:
            found.setdefault(run.data.tags["pcr_ray.code"], []).append(run.info.run_name)
    return {code: sorted(names) for code, names in found.items()}


def test_trials_of_other_code_are_told_apart_and_run_again_on_request(tmp_path: Path, root: Path) -> None:
    code = tmp_path / "code"
    for package in ("pcr_ray", "trainables"):
        shutil.copytree(REPOSITORY / package, code / package, ignore=shutil.ignore_patterns("__pycache__"))
    here = {"PYTHONPATH": f"{code}:{REPOSITORY}"}
    sweep_file(tmp_path, grid={"method": ["pcr", "er"], "seed": [0]})
    assert run_sweep(tmp_path, root, **here).returncode == 0
    before = runs_by_code(tmp_path)
    assert sorted(map(len, before.values())) == [1, 1], "each method has its own sources"

    file = code / "pcr_ray/methods/pcr.py"
    text = file.read_text()
    file.write_text(text.replace("return (log_sum - logits", "return 2 * (log_sum - logits"))
    assert file.read_text() != text
    plan = run_sweep(tmp_path, root, "--dry-run", **here)
    assert "2 done (1 of them with other code: pcr_ray/methods/pcr.py), 0 to run" in plan.stdout
    more = run_sweep(tmp_path, root, "--set", "grid.seed=[0,1]", **here)
    assert more.returncode == 0, more.stdout + more.stderr
    page = (tmp_path / "runs/tiny/report.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith("| PCR |"))  # the first is the answer's
    assert "†" in row and "different code: pcr_ray/methods/pcr.py" in page
    assert "†" not in next(line for line in page.splitlines() if line.startswith("| ER |"))
    assert len(runs_by_code(tmp_path)) == 3

    again = run_sweep(tmp_path, root, "--set", "grid.seed=[0,1]", "--rerun", "changed", **here)
    assert again.returncode == 0 and "1 to run, 1 of them again" in again.stdout, again.stdout + again.stderr
    assert "†" not in (tmp_path / "runs/tiny/report.md").read_text()
    assert sorted(map(len, runs_by_code(tmp_path).values())) == [2, 2], "the old run stays, marked as superseded"
    nothing = run_sweep(tmp_path, root, "--set", "grid.seed=[0,1]", "--rerun", "changed", **here)
    assert "4 done, 0 to run" in nothing.stdout


EARLY = """
import sys
from ray.tune.schedulers import ASHAScheduler
from pcr_ray import api
from pcr_ray.execution import driver
from pcr_ray.execution.options import RunOptions
from pcr_ray.tracking.store import Store
from pcr_ray.tracking.uri import tracking_uri

study, options = api.load("tiny.yaml"), RunOptions(data_root=sys.argv[1])
scheduler = ASHAScheduler(metric="average_accuracy", mode="max", max_t=2, grace_period=1, reduction_factor=2)
result = driver.execute(study, Store(tracking_uri()), options, scheduler=scheduler)
print(result.status.value, sorted(result.failed))
"""


def test_a_trial_that_a_scheduler_stops_early_is_not_finished(tmp_path: Path, root: Path) -> None:
    """ASHA stops every trial after two of its three tasks at the latest."""
    content = {"name": "tiny", "fixed": TINY, "grid": {"method": ["pcr"], "seed": [0, 1]}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(content))
    early = subprocess.run(
        [sys.executable, "-c", EARLY, str(root)], cwd=tmp_path, env=environment(tmp_path), capture_output=True,
        text=True, timeout=600, check=False,
    )  # fmt: skip
    assert early.stdout.splitlines()[-1] == "KILLED []", early.stdout + early.stderr
    plan = run_sweep(tmp_path, root, "--dry-run")
    assert re.search(r"0 done, 2 to run", plan.stdout), plan.stdout
    rest = run_sweep(tmp_path, root)
    assert rest.returncode == 0, rest.stdout + rest.stderr

    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    sweep_file(undisturbed, grid={"method": ["pcr"], "seed": [0, 1]})
    assert run_sweep(undisturbed, root).returncode == 0
    assert histories(f"sqlite:///{tmp_path / 'mlflow.db'}") == histories(f"sqlite:///{undisturbed / 'mlflow.db'}")
