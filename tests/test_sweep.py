"""Whole sweeps with real Ray and a real MLflow: done is done, faults, interruptions, kills."""

from __future__ import annotations

import re
import resource
import signal
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from pcr_ray.learner import Learner
from pcr_ray.study.resolve import resolve
from pcr_ray.study.schema import FIGURES
from tests.sweeping import (
    TINY,
    children,
    histories,
    kill_everything,
    run_sweep,
    start_sweep,
    sweep_file,
    wait_for,
)

pytestmark = pytest.mark.slow
SLOW = {"trainable": "tests.faulty:Faulty"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, root: Path) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    fixed = {**TINY, "proxy_gradients": True}  # recorded only: it changes no training
    sweep_file(folder, fixed=fixed, report={"figures": list(FIGURES), "classifiers": ["softmax"]})
    return folder, run_sweep(folder, root)


def store(folder: Path) -> str:
    return f"sqlite:///{folder / 'mlflow.db'}"


def test_a_sweep_runs_all_trials_and_answers(undisturbed: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, result = undisturbed
    assert result.returncode == 0, result.stdout + result.stderr
    assert "│ PCR " in result.stdout and "pcr-ray ui" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr
    runs = children(store(folder))
    assert {r.info.status for r in runs.values()} == {"FINISHED"} and len(runs) == 4
    for name in ("results.csv", "report.md", "report.html", "table.tex"):
        assert (folder / "runs/tiny" / name).stat().st_size > 0
    assert not list((folder / "runs/tiny/spool").iterdir()), "all was delivered"
    assert not list((folder / "runs/tiny/checkpoints").iterdir()), "finished trials need no checkpoint"


def test_the_report_is_what_training_and_scipy_give_directly(undisturbed, root: Path) -> None:
    folder = undisturbed[0] / "runs/tiny"
    final = {}
    for method in ("pcr", "er"):
        for seed in (0, 1):
            config = resolve({**TINY, "proxy_gradients": True, "method": method, "seed": seed})
            learner = Learner(config, root=root, device="cpu")
            while not learner.done:
                last = learner.run_task()
            final[method, seed] = last["final_accuracy"]
    rows = pd.read_csv(folder / "results.csv").query("classifier == 'softmax'")
    rows = rows.set_index(["method", "seed"])["final_accuracy"].to_dict()
    assert rows == pytest.approx(final)
    text = (folder / "report.md").read_text()
    for method, title in (("pcr", "PCR"), ("er", "ER")):
        one, two = final[method, 0], final[method, 1]
        half = stats.t.ppf(0.975, 1) * np.std([one, two], ddof=1) / 2**0.5
        assert re.search(rf"\| {title} \|.*{(one + two) / 2:.1f} ± {half:.1f}", text), text
    (comparison,) = pd.read_csv(folder / "comparisons.csv").to_dict("records")
    ahead = ("pcr", "er") if comparison["reference"] == "PCR" else ("er", "pcr")
    pairs = [[final[method, seed] for seed in (0, 1)] for method in ahead]
    assert comparison["difference"] == pytest.approx(np.mean(pairs[0]) - np.mean(pairs[1])) and comparison["n"] == 2
    assert comparison["p_t"] == pytest.approx(stats.ttest_rel(*pairs).pvalue)
    assert re.search(rf"(PCR|ER) is ahead of (PCR|ER) .*by {comparison['difference']:.1f} ± .*n = 2", text), text
    drawn = {file.stem for file in (folder / "figures").glob("*.png")}  # without an x there are no lines over it
    assert drawn == {"learning_curves", "knowledge_balance", "proxy_gradients", "accuracy_matrices"}


def test_a_refused_command_leaves_the_record_of_the_sweep_as_it_is(undisturbed, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    folder, _ = undisturbed
    client = MlflowClient(store(folder))
    experiment = client.get_experiment_by_name("pcr_ray").experiment_id

    def parent() -> tuple[str, str]:
        (run,) = client.search_runs([experiment], "tags.`pcr_ray.kind` = 'sweep'")
        return run.info.status, (Path(client.download_artifacts(run.info.run_id, "sweep.yaml"))).read_text()

    before = parent()
    refused = run_sweep(folder, tmp_path, "--set", "fixed.dataset=mini_imagenet")
    assert refused.returncode == 2 and "mini_imagenet" in refused.stderr
    assert parent() == before and before[0] == "FINISHED"


def test_children_hang_under_one_parent_with_params_and_artifacts(undisturbed) -> None:
    from mlflow import MlflowClient

    folder, _ = undisturbed
    client = MlflowClient(store(folder))
    experiment = client.get_experiment_by_name("pcr_ray").experiment_id
    (parent,) = client.search_runs([experiment], "tags.`pcr_ray.kind` = 'sweep'")
    assert parent.info.status == "FINISHED"
    names = {a.path for a in client.list_artifacts(parent.info.run_id)}
    assert {"sweep.yaml", "versions.json", "results.csv", "report.html", "report.md"} <= names
    for run in children(store(folder)).values():
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert run.data.params["buffer"] == "20" and run.data.params["dataset"] == "digits"
        files = {a.path for a in client.list_artifacts(run.info.run_id)}
        assert {"accuracy_matrix.csv", "accuracy_matrix.svg", "config.json"} <= files
        assert run.data.metrics["final_accuracy"] == run.data.metrics["average_accuracy"]
        assert len(client.get_metric_history(run.info.run_id, "ncm/average_accuracy")) == 3


def test_the_same_command_again_runs_nothing_and_more_seeds_run_only_the_new(undisturbed, root: Path) -> None:
    folder, _ = undisturbed
    before = {name: run.info.end_time for name, run in children(store(folder)).items()}
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    again = run_sweep(folder, root)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert again.returncode == 0 and "4 done, 0 to run" in again.stdout
    assert again.stdout.splitlines()[-8:] == undisturbed[1].stdout.splitlines()[-8:], "the same answer"
    assert now.ru_utime + now.ru_stime - spent.ru_utime - spent.ru_stime < 5, "seconds of CPU"
    assert {name: run.info.end_time for name, run in children(store(folder)).items()} == before
    more = run_sweep(folder, root, "--set", "grid.seed=[0,1,2]")
    assert more.returncode == 0 and "4 done, 2 to run" in more.stdout
    after = {name: run.info.end_time for name, run in children(store(folder)).items()}
    assert len(after) == 6 and {k: after[k] for k in before} == before


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_stopped_sweep_says_75_and_continues_to_the_same_numbers(
    stop, undisturbed, tmp_path: Path, root: Path
) -> None:
    sweep_file(tmp_path, **SLOW)
    (tmp_path / "slow").touch()
    process = start_sweep(tmp_path, root)
    wait_for(lambda: any((tmp_path / "runs/tiny/checkpoints").glob("*/*/checkpoint.pt")), "a checkpoint")
    busy = run_sweep(tmp_path, root)
    assert busy.returncode == 75 and "another process" in busy.stderr
    process.send_signal(stop)
    assert process.wait(120) == 75, (tmp_path / "out.txt").read_text()
    assert (tmp_path / "out.txt").read_text().count("stopping, saving") == 1
    assert {r.info.status for r in children(store(tmp_path)).values()} <= {"KILLED", "FINISHED"}
    (tmp_path / "slow").unlink()
    result = run_sweep(tmp_path, root)
    assert result.returncode == 0, result.stdout + result.stderr
    assert_same_numbers(undisturbed[0], tmp_path)
    attempts = (tmp_path / "attempts.txt").read_text().split("\n")
    assert len(attempts) < 2 * 4 * 3, "half-done trials continued instead of starting over"


def test_a_killed_sweep_continues_to_the_numbers_of_an_undisturbed_one(undisturbed, tmp_path: Path, root: Path) -> None:
    sweep_file(tmp_path, **SLOW)
    (tmp_path / "slow").touch()
    process = start_sweep(tmp_path, root)
    spool = tmp_path / "runs/tiny/spool"
    wait_for(
        lambda: any(f.read_text().count('"event": "task"') >= 2 for f in spool.glob("*.jsonl")), "two finished tasks"
    )
    kill_everything(process)
    (tmp_path / "slow").unlink()
    result = run_sweep(tmp_path, root)
    assert result.returncode == 0, result.stdout + result.stderr
    assert {r.info.status for r in children(store(tmp_path)).values()} == {"FINISHED"}
    assert_same_numbers(undisturbed[0], tmp_path)


def test_failing_trials_are_retried_then_reported_and_the_others_finish(tmp_path: Path, root: Path) -> None:
    sweep_file(tmp_path, **SLOW, grid={"method": ["pcr"], "seed": [0, 1, 2]}, retries=1)
    (tmp_path / "raise").touch()
    (tmp_path / "exit").touch()
    result = run_sweep(tmp_path, root)
    assert result.returncode == 1, result.stdout + result.stderr
    runs = children(store(tmp_path))
    assert [runs[f"{s} pcr (seed)"].info.status for s in range(3)] == ["FINISHED", "FAILED", "FAILED"]
    assert "made to fail" in runs["1 pcr (seed)"].data.tags["pcr_ray.reason"]
    assert "made to fail" in result.stdout and "--rerun failed" in result.stdout
    attempts = (tmp_path / "attempts.txt").read_text().split("\n")
    assert attempts.count("1 0") == 1 and attempts.count("1 1") == 2, "retried once, from its checkpoint"
    assert attempts.count("2 0") == 2
    (tmp_path / "raise").unlink()
    (tmp_path / "exit").unlink()
    assert run_sweep(tmp_path, root).returncode == 1, "failed trials are not run again unasked"
    retried = run_sweep(tmp_path, root, "--rerun", "failed")
    assert retried.returncode == 0, retried.stdout + retried.stderr
    assert {r.info.status for r in children(store(tmp_path)).values()} == {"FINISHED"}


def assert_same_numbers(expected: Path, got: Path) -> None:
    """Every metric of every trial, step by step, once each."""
    reference = {k: v for k, v in histories(store(expected)).items() if k in histories(store(got))}
    assert histories(store(got)) == reference and len(reference) == 4


def test_a_refused_first_run_makes_no_database_and_a_dry_run_shows_the_plan_before_it_refuses(
    tmp_path: Path, root: Path
) -> None:
    sweep_file(tmp_path)
    for change, message in (
        ("fixed.dataset=mini_imagenet", "mini_imagenet"),
        ("resources={cpu: 999}", "cpu 999 and gpu 0 asked for on one node"),
        ("trainable=tests.faulty:Nobody", "tests.faulty:Nobody"),
    ):
        for more in ([], ["--dry-run"]):
            refused = run_sweep(tmp_path, root, "--set", change, *more)
            assert refused.returncode == 2 and message in refused.stderr, refused.stdout + refused.stderr
            assert ("4 to run" in refused.stdout) == bool(more)
            assert "Traceback" not in refused.stderr
    assert not (tmp_path / "mlflow.db").exists()
