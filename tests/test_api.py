"""From Python: the README's example on tiny trials, in a script and off the main thread; errors are exceptions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pcr_ray
from pcr_ray.errors import InputError
from pcr_ray.study import load as study_files
from pcr_ray.tracking.store import Store
from tests.recorded import accuracy, deliver
from tests.sweeping import environment, sweep_file

CONTENT = {
    "name": "study",
    "fixed": {"dataset": "digits", "tasks": 2},
    "grid": {"method": ["pcr", "finetune"], "buffer": [50, 100], "seed": [0, 1]},
}


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("api")
    store = Store(f"sqlite:///{folder / 'mlflow.db'}")
    deliver(store, study_files.parse(CONTENT, "a file"), folder)
    return store.uri


def test_results_are_one_row_per_trial_and_classifier(uri: str) -> None:
    frame = pcr_ray.results("study", tracking_uri=uri)
    study = study_files.parse(CONTENT, "a file")
    assert len(frame) == 6 == frame["trial"].nunique()
    for row in frame.itertuples():
        assert row.final_accuracy == accuracy(study.trials[row.trial]) and row.classifier == "softmax"
    assert set(frame.columns) >= {"method", "buffer", "seed", "forgetting", "code", "run"}


def test_curves_are_one_row_per_trial_classifier_and_task(uri: str) -> None:
    frame = pcr_ray.curves("study", tracking_uri=uri)
    one = frame[(frame["method"] == "pcr") & (frame["buffer"] == 50) & (frame["seed"] == 1)]
    assert list(one["task"]) == [1, 2, 3] and list(one["average_accuracy"]) == [77.0, 67.0, 67.0]


def test_fields_are_changed_as_set_changes_them(tmp_path: Path) -> None:
    file = sweep_file(tmp_path)
    study = pcr_ray.load(file, fixed={"buffer": 30, "gamma": 5.0}, grid={"seed": [3], "method": ["pcr"]})
    assert [(t.buffer, t.gamma, t.seed, t.method) for t in study.trials.values()] == [(30, 5.0, 3, "pcr")]
    assert list(study.trials) == list(
        study_files.load(file, ["fixed.buffer=30", "fixed.gamma=5.0", "grid.seed=[3]", "grid.method=[pcr]"]).trials
    )


def test_mistakes_are_exceptions(uri: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'study'"):
        pcr_ray.results("studdy", tracking_uri=uri)
    with pytest.raises(InputError, match="does not exist"):
        pcr_ray.results("study", tracking_uri=f"sqlite:///{tmp_path / 'none.db'}")
    with pytest.raises(InputError, match="bufer"):
        pcr_ray.load(sweep_file(tmp_path), fixed={"bufer": 3})
    assert not (tmp_path / "none.db").exists()


SCRIPT = """
import sys, threading
import pcr_ray

study = pcr_ray.load("tiny.yaml", grid={"seed": [0], "method": ["pcr"]})
options = pcr_ray.RunOptions(data_root=sys.argv[1])
print(pcr_ray.run(study, options).value)
seen = []
more = pcr_ray.load("tiny.yaml", grid={"seed": [0], "method": ["pcr", "finetune"]})
thread = threading.Thread(target=lambda: seen.append(pcr_ray.run(more, options).value))
thread.start()
thread.join()
print(seen, sorted(pcr_ray.results("tiny")["method"]))
"""


@pytest.mark.slow
def test_a_script_runs_a_study_twice_the_second_time_off_the_main_thread(tmp_path: Path, root: Path) -> None:
    sweep_file(tmp_path)
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(root)], cwd=tmp_path, env=environment(tmp_path), capture_output=True,
        text=True, timeout=600, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "FINISHED" in run.stdout.splitlines()
    assert run.stdout.splitlines()[-1] == "['FINISHED'] ['finetune', 'pcr', 'pcr']", run.stdout
    assert "1 done, 1 to run" in run.stdout
