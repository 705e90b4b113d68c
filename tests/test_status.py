"""How sweeps fare: the cells that fill up, what `pcr-ray status` and `list` say, and what the record has for the UI."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from pcr_ray import status, ui
from pcr_ray.cli import main
from pcr_ray.console import console, run
from pcr_ray.execution.board import Board
from pcr_ray.study.load import Study, parse
from pcr_ray.tracking import names, views
from pcr_ray.tracking.runs import SILENT, Tag
from pcr_ray.tracking.store import Store
from pcr_ray.tracking.sweep_run import SweepRun
from tests.recorded import accuracy, deliver

CONTENT: dict[str, Any] = {
    "name": "study",
    "fixed": {"dataset": "digits", "tasks": 2},
    "grid": {"method": ["pcr", "er"], "buffer": [10, 20], "seed": [0, 1, 2]},
    "report": {"x": "buffer", "classifiers": ["softmax"]},
}


def study_of(**changes: Any) -> Study:
    return parse({**CONTENT, **changes}, "a file")


def trial_of(study: Study, method: str, buffer: int, seed: int) -> str:
    wanted = (method, buffer, seed)
    return next(i for i, t in study.trials.items() if (t.method, t.buffer, t.seed) == wanted)


def lines_of(board: Board, width: int, height: int | None = None) -> list[str]:
    out = Console(width=width, force_terminal=True, color_system="standard", file=None, record=True, quiet=False)
    with out.capture() as captured:
        for thing in board.tables(width, height):
            out.print(thing)
    lines = captured.get().splitlines()
    marked = [line if "method" in line else re.sub(r"\x1b\[1m(.+?)\x1b\[0m", r"*\1*", line) for line in lines]
    return [re.sub(r"\x1b\[[\d;]*m", "", line).rstrip() for line in marked]


def shown(board: Board) -> list[str]:
    """The rows of the table, with single spaces; what is bold stands in stars."""
    return [" ".join(line.split()) for line in lines_of(board, 120)[2:]]


def test_cells_compare_only_the_seeds_that_a_column_shares() -> None:
    study = study_of()
    board = Board(study)
    for method, seed, value in (("pcr", 0, 50.0), ("pcr", 1, 70.0), ("er", 0, 60.0)):
        board.add(trial_of(study, method, 10, seed), {"final_accuracy": value})
    for method, seed, value in (("pcr", 0, 40.0), ("er", 1, 30.0)):
        board.add(trial_of(study, method, 20, seed), {"final_accuracy": value})
    board.run([trial_of(study, "er", 20, 2)])
    # At 10 both have seed 0 alone in common, where ER leads, though PCR's own mean is 60 too; at 20 they share none.
    assert shown(board) == ["PCR 50.0 2/3 (40.0) 1/3", "ER *60.0* 1/3 ▸(30.0) 1/3"]


def test_numbers_stay_in_place_when_a_trial_of_their_cell_starts() -> None:
    study = study_of(grid={**CONTENT["grid"], "buffer": [10]})
    board = Board(study)
    for method in ("pcr", "er"):
        board.add(trial_of(study, method, 10, 0), {"final_accuracy": 50.0})
    before = lines_of(board, 80)
    board.run([trial_of(study, "er", 10, 1)])
    now = lines_of(board, 80)
    assert "▸50.0 1/3" in now[-1] and [line.replace("▸", " ") for line in now] == before


def test_a_series_without_numbers_does_not_keep_others_from_being_compared() -> None:
    study = study_of(grid={**CONTENT["grid"], "method": ["pcr", "er", "mir"], "buffer": [10]})
    board = Board(study)
    board.add(trial_of(study, "pcr", 10, 0), {"final_accuracy": 50.0})
    board.add(trial_of(study, "er", 10, 0), {"final_accuracy": 40.0})
    assert shown(board) == ["PCR *50.0* 1/3", "ER 40.0 1/3", "MIR - 0/3"]


def test_a_method_that_ignores_x_is_compared_in_every_column() -> None:
    study = study_of(grid={**CONTENT["grid"], "method": ["pcr", "finetune"], "seed": [0]})
    board = Board(study)
    for identity, trial in study.trials.items():
        board.add(identity, {"final_accuracy": accuracy(trial)})
    assert shown(board) == ["PCR *61.0* 1/1 *62.0* 1/1", "FINE-TUNE 20.0 1/1 20.0 1/1"]


def test_a_method_without_a_memory_has_no_row_of_class_means_that_would_stay_empty() -> None:
    study = study_of(grid={"method": ["pcr", "finetune"], "buffer": [10], "seed": [0]}, report={"x": "buffer"})
    assert shown(Board(study)) == ["PCR - 0/1", "PCR-NCM - 0/1", "FINE-TUNE - 0/1"]


def test_a_cell_of_which_everything_failed_says_so() -> None:
    study = study_of(grid={**CONTENT["grid"], "method": ["pcr"], "seed": [0, 1]})
    board = Board(study)
    for buffer, seed in ((10, 0), (20, 0), (20, 1)):
        board.fail(trial_of(study, "pcr", buffer, seed))
    assert shown(board) == ["PCR - 0/2 failed 0/2"]


def test_columns_that_a_narrow_terminal_has_no_room_for_follow_below() -> None:
    study = study_of(grid={**CONTENT["grid"], "buffer": [10, 20, 50, 100, 200], "seed": [0]})
    board = Board(study)
    for identity in study.trials:
        board.add(identity, {"final_accuracy": 50.0})
    assert len(lines_of(board, 100)) == 4
    lines = lines_of(board, 40)
    assert [line.split() for line in lines if line.startswith("method")] == [
        ["method", "10", "20"], ["method", "50", "100"], ["method", "200"]
    ]  # fmt: skip
    assert max(map(len, lines)) <= 40 and not any("…" in line for line in lines)


def test_of_more_panels_than_a_terminal_has_lines_those_that_run_are_shown() -> None:
    study = study_of(grid={**CONTENT["grid"], "lr": [0.1, 0.2, 0.3]})
    board = Board(study)
    board.run([next(i for i, t in study.trials.items() if t.lr == 0.2)])
    assert len(lines_of(board, 100, 6)) == 2 + 6
    assert [line.split()[0] for line in lines_of(board, 100, 5)[2:]] == ["0.2", "0.2"]


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Store, Study]:
    """All but four trials are done; two failed, two are not there."""
    monkeypatch.setattr(console, "_width", 200)
    store = Store(f"sqlite:///{tmp_path / 'mlflow.db'}")
    study = study_of(grid={**CONTENT["grid"], "method": ["pcr", "finetune"], "seed": list(range(4))})
    deliver(store, study, tmp_path, leave=2, fail=2)
    return store, study


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(main, arguments) == 0
    return capsys.readouterr().out


def test_status_tells_counts_cells_and_failures(
    record: tuple[Store, Study], capsys: pytest.CaptureFixture[str]
) -> None:
    store, study = record
    total = len(study.trials)
    SweepRun(store, study).close("KILLED")
    said = ask(capsys, "status", "--tracking-uri", store.uri)
    assert "study: stopped 0 s ago before all trials were done; run the same command again to continue" in said
    assert f"{total - 4} of {total} trials done, 2 failed, 2 left" in said
    assert re.search(r"failed: 2 trials, finetune .*, finetune .*: it broke\n", said) and "--rerun failed" in said
    assert re.search(r"PCR +64.0 4/4 +65.0 4/4", said), said


def test_status_of_a_running_sweep_repeats_its_own_words_until_it_falls_silent(
    record: tuple[Store, Study], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, study = record
    parent = store.sweep_run(study.name)
    news = {"host": "node01", "headline": "2 trials at once, about 3 min left", "last": "pcr started", "running": []}
    store.client.set_tag(parent, Tag.PROGRESS, json.dumps({"time": time.time(), **news}))
    said = ask(capsys, "status", "study", "--tracking-uri", store.uri)
    assert re.search(
        r"running on node01: 2 trials at once, about 3 min left; last: pcr started \(told \d+ s ago\)", said
    )
    later = time.time() + SILENT + 60
    monkeypatch.setattr(status, "time", SimpleNamespace(time=lambda: later))
    said = ask(capsys, "status", "study", "--tracking-uri", store.uri)
    assert "no sign of life since 3 min ago" in said and "run the same command again to continue" in said


def test_list_shows_the_sweeps_of_a_store(record: tuple[Store, Study], capsys: pytest.CaptureFixture[str]) -> None:
    store, _ = record
    SweepRun(store, study_of(name="second")).begin()
    SweepRun(store, study_of(name="second")).close("FINISHED")
    said = ask(capsys, "list", "--tracking-uri", store.uri)
    assert re.search(r"second .*finished", said) and re.search(r"study .*running", said)
    news = {"trials": 12, "trials_done": 8, "trials_failed": 2, "headline": "", "host": ""}
    store.client.set_tag(store.sweep_run("study"), Tag.PROGRESS, json.dumps({"time": time.time(), **news}))
    said = ask(capsys, "list", "--tracking-uri", store.uri)
    assert re.search(r"study .*running.* 8/12 .* 2 ", said), said


def test_a_sweep_marks_trials_that_another_ran_as_its_own_too(record: tuple[Store, Study]) -> None:
    store, _ = record
    other = study_of(name="other", grid={**CONTENT["grid"], "method": ["pcr"], "seed": [0]})
    known = store.trials(other.trials.keys())
    assert len(known) == 2 and all(r.sweeps == {"study"} for r in known.values())
    for _ in range(2):  # again changes nothing
        SweepRun(store, other).begin(store.trials(other.trials.keys()).values())
    assert all(
        r.sweeps == {"study", "other"} and r.sweep == "study" for r in store.trials(other.trials.keys()).values()
    )
    query = views.state(other)["searchFilter"]
    assert {r.info.run_id for r in store.client.search_runs([store.experiment], query)} == {
        r.run_id for r in known.values()
    }


def test_pages_of_a_sweep_are_made_for_records_of_earlier_versions_too(record: tuple[Store, Study]) -> None:
    store, study = record
    for trial in store.trials(study.trials.keys()).values():
        store.client.delete_tag(trial.run_id, f"{Tag.IN_SWEEP}study")
    pages = ui.sweep_pages(store, study)
    query = views.state(study)["searchFilter"]
    assert len(store.client.search_runs([store.experiment], query)) == len(study.trials) - 2
    assert f"{views.SHARED}study" in store.client.get_experiment(store.experiment).tags
    assert "first seeds compared" in pages


@pytest.mark.parametrize(
    ("ours", "mlflows"),
    [("final_accuracy", "final_accuracy"), ("ncm_final_accuracy", "ncm/final_accuracy"), ("loss", "loss"),
     ("accuracy_task_3", "task/03"), ("ncm_accuracy_task_12", "ncm/task/12"), ("accuracy_task_100", "task/100")],
)  # fmt: skip
def test_metrics_are_grouped_in_mlflow_and_known_by_both_names(ours: str, mlflows: str) -> None:
    assert names.shown(ours) == mlflows
    assert names.known(mlflows) == names.known(ours) == ours


def test_names_of_runs_begin_with_what_tells_them_apart() -> None:
    study = study_of(grid={"replay_batch_size": [10, 100], "seed": [0, 1]}, report={})
    found = [study.run_name(i) for i in study.trials]
    assert found[0] == "10 0 pcr (replay_batch_size, seed)" and len({name[:6] for name in found}) == 4
