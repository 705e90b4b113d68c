"""Searches: settings are judged by seeds and tasks of their own, chosen by hand-computed scores, and found again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from pcr_ray import api
from pcr_ray.cli import main
from pcr_ray.config import TrialConfig
from pcr_ray.console import run
from pcr_ray.errors import InputError
from pcr_ray.execution import driver, search
from pcr_ray.execution.options import RunOptions
from pcr_ray.study import load as study_files
from pcr_ray.study.load import Study
from pcr_ray.tracking.courier import Courier
from pcr_ray.tracking.runs import Status
from pcr_ray.tracking.spool import Spool
from pcr_ray.tracking.store import Store
from pcr_ray.tracking.sweep_run import SweepRun
from tests.recorded import code
from tests.sweeping import TINY, run_sweep, sweep_file

SPACE = {"lr": {"log": [0.001, 1.0]}, "gamma": {"uniform": [2.0, 40.0]}, "batch_size": {"integer": [5, 20]}}
CONTENT: dict[str, Any] = {
    "name": "tuned",
    "fixed": {"dataset": "digits", "tasks": 5, "buffer": 50},
    "grid": {"method": ["pcr", "er"], "seed": [0, 1, 2]},
    "search": {"samples": 7, "space": SPACE, "tune_on": {"tasks": 2, "seeds": 2}},
}


def score(trial: TrialConfig) -> float | None:
    """Best at lr 0.05 for PCR and at lr 0.2 for ER; seeds differ by 1; rates above 0.5 fail."""
    best = {"pcr": 0.05, "er": 0.2}[trial.method]
    return None if trial.lr > 0.5 else 80 - 100 * abs(trial.lr - best) + trial.seed


class Runner:
    """Records made-up scores as a sweep would, at most `limit` trials; `mended`: tries failed ones again, and none
    fails any more."""

    def __init__(self, store: Store, folder: Path, limit: int = 10_000, *, mended: bool = False) -> None:
        self.store, self.folder, self.limit, self.mended = store, folder, limit, mended
        self.ran: list[TrialConfig] = []

    def __call__(self, study: Study) -> bool:
        spool, run = Spool(self.folder / "spool"), SweepRun(self.store, study)
        run.begin()
        known = self.store.trials(study.trials.keys())
        left = [(i, t) for i, t in study.trials.items() if i not in known or (self.mended and not known[i].finished)]
        for identity, trial in left[: self.limit - len(self.ran)]:
            self.ran.append(trial)
            value = score(trial) or (50.0 if self.mended else None)
            spool.append(identity, "start", name="a", params=trial.flat(), code=code(trial), rerun=False)
            if value is None:
                spool.append(identity, "end", status="FAILED", reason="diverged")
                continue
            metrics = {"average_accuracy": value, "final_accuracy": value}
            spool.append(identity, "task", task=1, metrics=metrics)
            spool.append(identity, "end", status="FINISHED", results=None)
        assert Courier(spool, self.store, study.name, lambda: run.run_id).deliver_all()
        return len(left) <= self.limit


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path / 'mlflow.db'}")


@pytest.mark.parametrize("algorithm", ["random", "optuna"])
def test_the_best_mean_over_the_tuning_seeds_is_chosen(algorithm: str, store: Store, tmp_path: Path) -> None:
    content = CONTENT | {"search": CONTENT["search"] | {"algorithm": algorithm}}
    study = study_files.parse(content, "a file")
    runner = Runner(store, tmp_path)
    done = search.settle(study, store, runner)
    assert {t.seed for t in runner.ran} == {3, 4}, "no seed of a final trial"
    assert {t.stop_after for t in runner.ran} == {2} and len(runner.ran) == 2 * 7 * 2
    assert done.spec.search is not None
    for found in done.spec.search.chosen:
        own = [t for t in runner.ran if t.method == found.when["method"]]
        by_lr = {lr: [score(t) for t in own if t.lr == lr] for lr in {t.lr for t in own}}
        means = {lr: sum(v) / 2 for lr, v in by_lr.items() if None not in v}  # type: ignore[arg-type]
        assert found.set["lr"] == max(means, key=means.__getitem__)
        assert found.value == pytest.approx(max(means.values())) and len(found.tried) == 7
        assert [t.value is None for t in found.tried] == [t.set["lr"] > 0.5 for t in found.tried]
        final = [t for t in done.trials.values() if t.method == found.when["method"]]
        assert {(t.lr, t.gamma, t.batch_size) for t in final if t.gamma} <= {tuple(found.set.values())}
        assert {t.lr for t in final} == {found.set["lr"]} and {t.seed for t in final} == {0, 1, 2}
        assert {t.stop_after for t in final} == {None}
    assert len(done.trials) == 6


@pytest.mark.parametrize("algorithm", ["random", "optuna"])
def test_an_interrupted_search_ends_as_an_undisturbed_one(algorithm: str, tmp_path: Path) -> None:
    study = study_files.parse(CONTENT | {"search": CONTENT["search"] | {"algorithm": algorithm}}, "a file")
    whole, cut = (Store(f"sqlite:///{tmp_path / name}.db") for name in ("whole", "cut"))
    expected = search.settle(study, whole, Runner(whole, tmp_path / "whole"))
    first = Runner(cut, tmp_path / "cut", limit=9)
    with pytest.raises(search.Unfinished):
        search.settle(study, cut, first)
    with pytest.raises(search.Unfinished):
        search.settle(study, cut)
    second = Runner(cut, tmp_path / "cut")
    assert search.settle(study, cut, second).spec == expected.spec
    assert len(first.ran) == 9 and len(first.ran) + len(second.ran) == 28, "nothing twice"
    assert search.settle(study, cut).spec == expected.spec, "from the record alone"


def test_a_search_is_looked_at_like_any_sweep(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tuned.yaml"
    file.write_text(yaml.safe_dump(CONTENT))
    study = study_files.load(file)
    with pytest.raises(search.Unfinished) as stopped:
        search.settle(study, store, Runner(store, tmp_path, 5))
    stored = api.find("tuned.search", store)
    assert {i: t.flat() for i, t in stored.trials.items()} == {
        i: t.flat() for i, t in stopped.value.round.trials.items()
    }
    for name in ([], ["tuned.search"], [str(file)]):
        assert run(main, ["status", *name, "--tracking-uri", store.uri]) == 0
        said = capsys.readouterr().out
        assert "tuned.search: running" in said and " of 28 trials done" in said, said
    done = search.settle(study, store, Runner(store, tmp_path))
    assert run(main, ["status", str(file), "--tracking-uri", store.uri]) == 0
    assert "0 of 6 trials done" in capsys.readouterr().out
    Runner(store, tmp_path, mended=True)(done)
    assert run(main, ["status", str(file), "--tracking-uri", store.uri]) == 0
    assert "6 of 6 trials done" in capsys.readouterr().out


def test_settings_stay_in_their_space(store: Store, tmp_path: Path) -> None:
    space = SPACE | {"views": {"choice": ["both", "original"]}}
    content = CONTENT | {"search": {"samples": 40, "space": space, "tune_on": {"tasks": 1}}}
    done = search.settle(study_files.parse(content, "a file"), store, Runner(store, tmp_path))
    assert done.spec.search is not None
    tried = [t.set for c in done.spec.search.chosen for t in c.tried]
    assert all(0.001 <= t["lr"] <= 1 and 2 <= t["gamma"] <= 40 and 5 <= t["batch_size"] <= 20 for t in tried)
    assert {type(t["batch_size"]) for t in tried} == {int} and {t["views"] for t in tried} == {"both", "original"}
    below = sum(t["lr"] < 0.0316 for t in tried)
    assert 25 <= below <= 55, "half of them below the middle of the logarithms"


def test_without_any_score_the_search_says_so(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = CONTENT | {"search": {"samples": 2, "space": {"lr": {"uniform": [0.6, 0.9]}}, "tune_on": {"tasks": 1}}}
    study = study_files.parse(content, "a file")
    with pytest.raises(InputError, match=r"no setting tried for method pcr has a score.*--rerun failed"):
        search.settle(study, store, Runner(store, tmp_path))
    with pytest.raises(InputError, match="no setting tried"):  # nothing is tried again unasked
        search.settle(study, store, Runner(store, tmp_path, mended=True))
    options = RunOptions(out=str(tmp_path), data_root=str(tmp_path), tracking_uri=store.uri, rerun="failed")
    driver.preview(study, options)
    assert "4 trials" in (told := capsys.readouterr().out) and "4 to run" in told
    again = Runner(store, tmp_path, mended=True)
    done = search.settle(study, store, again, "failed")
    assert len(again.ran) == 4 and [c.value for c in done.spec.search.chosen] == [50.0, 50.0]  # type: ignore[union-attr]


@pytest.mark.parametrize("rerun, rounds", [(None, 0), ("failed", 0), ("changed", 2), ("all", 2)])
def test_each_round_is_run_again_once(rerun: str | None, rounds: int, store: Store, tmp_path: Path) -> None:
    content = CONTENT | {"search": CONTENT["search"] | {"algorithm": "optuna", "space": {"lr": {"log": [0.01, 0.4]}}}}
    study = study_files.parse(content, "a file")
    search.settle(study, store, Runner(store, tmp_path))
    asked: list[Study] = []

    def nothing_to_do(round: Study) -> bool:
        asked.append(round)
        return True

    search.settle(study, store, nothing_to_do, rerun)
    assert len(asked) == rounds


@pytest.mark.parametrize("rerun", ["failed", "all"])
def test_a_rerun_reaches_the_search(rerun: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted `--rerun all` goes on: its rounds are as old as itself."""
    since: list[float] = []

    def execute(study: Study, *given: object) -> None:
        assert study.name == "tuned.search"
        stamp = tmp_path / "runs" / study.name / ".rerun-all"
        since.append(float(stamp.read_text()) if stamp.exists() else 0)
        stamp.unlink(missing_ok=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(api.driver, "execute", execute)
    options = RunOptions(out=str(tmp_path / "runs"), tracking_uri=store.uri, rerun=rerun)
    study = study_files.parse(CONTENT, "a file")
    search.settle(study, store, Runner(store, tmp_path))
    assert [api.run(study, options) for _ in range(2)] == [Status.KILLED] * 2
    assert len(since) == 2 and since[0] == since[1] and (since[0] > 0) == (rerun == "all")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"space": {"lr": {"log": [0, 1]}}}, "log needs two numbers"),
        ({"space": {"lr": {"log": [0.1, 1], "uniform": [0, 1]}}}, "give one of"),
        ({"space": {"lrr": {"log": [0.1, 1]}}}, "search.space.lrr: unknown field"),
        ({"space": {"method": {"choice": ["a", "b"]}}}, "the grid decides it"),
        ({"metric": "loss"}, "search.metric: 'loss' cannot be searched by"),
        ({"per": ["dataset"]}, "search.per.dataset: not in a grid"),
        ({"tune_on": {"tasks": 9}}, "there are 5 tasks"),
        ({"samplse": 3}, "did you mean 'samples'"),
    ],
)  # fmt: skip
def test_mistakes_are_told(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        study_files.parse(CONTENT | {"search": CONTENT["search"] | change}, "a file")


def test_the_papers_numbers_do_not_stand_beside_searched_settings(store: Store, tmp_path: Path) -> None:
    from pcr_ray.study.paper import row_of

    row = {"preset": "paper", "method": "pcr", "dataset": "cifar10", "buffer": 1000, "value": 58.8}
    content = CONTENT | {"fixed": {"dataset": "cifar10", "buffer": 1000}, "report": {"paper": [row]}}
    study = study_files.parse(content, "a file")
    done = search.settle(study, store, Runner(store, tmp_path))
    assert any(row_of(study.spec, t, "softmax") for t in study.trials.values())
    assert not any(row_of(done.spec, t, "softmax") for t in done.trials.values())


def test_a_sweep_with_a_search_runs_ends_and_is_found_again(tmp_path: Path, root: Path) -> None:
    sweep_file(
        tmp_path, fixed=TINY, grid={"method": ["pcr"], "seed": [0, 1]},
        search={"samples": 2, "space": {"lr": {"log": [0.01, 0.3]}}, "tune_on": {"tasks": 2}},
    )  # fmt: skip
    looked = run_sweep(tmp_path, root, "--dry-run")
    assert looked.returncode == 0, looked.stderr
    assert "2 to run" in looked.stdout and "then 2 trials with what it finds" in looked.stdout
    first = run_sweep(tmp_path, root)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "chosen for method pcr: lr 0." in first.stdout
    assert all((tmp_path / "runs" / name / ".progress").exists() for name in ("tiny", "tiny.search")), "for Slurm"
    again = run_sweep(tmp_path, root)
    assert "2 done, 0 to run" in again.stdout and "running" not in again.stdout
    tried = pd.read_csv(tmp_path / "runs" / "tiny" / "search.csv")
    assert len(tried) == 2 and tried["chosen"].sum() == 1
    best = tried.loc[tried["final_accuracy"].idxmax()]
    assert bool(best["chosen"])
    frame = api.results("tiny", f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert set(frame["lr"]) == {best["lr"]} and set(frame["seed"]) == {0, 1}
    assert "Chosen settings" in (tmp_path / "runs" / "tiny" / "report.html").read_text()
