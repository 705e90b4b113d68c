"""Reports from a real MLflow store: numbers, intervals, the paper's numbers, what is missing, offline files."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats as scipy_stats

from pcr_ray import report
from pcr_ray.analysis.render import Grid, latex
from pcr_ray.analysis.results import collect, heads, paper_row
from pcr_ray.analysis.stats import estimate
from pcr_ray.analysis.views import lines as figures
from pcr_ray.errors import InputError
from pcr_ray.study import load as sweepfile
from pcr_ray.text import redact
from pcr_ray.tracking.spool import Courier, Spool
from pcr_ray.tracking.store import Record, read_param, tracking_uri
from pcr_ray.tracking.sweep_run import ParentRun

CONTENT = {
    "name": "study",
    "fixed": {"dataset": "digits", "tasks": 2},
    "grid": {"method": ["pcr", "finetune"], "buffer": [50, 100], "seed": {"range": [0, 3]}},
    "report": {
        "question": "Is <PCR> better & why?",
        "x": "buffer",
        "paper": [{"method": "pcr", "buffer": 100, "value": 70.5, "ci": 1.5}, {"method": "finetune", "value": 18.0}],
    },
}


def accuracy(trial: object) -> float:
    """A made-up, known number for every trial."""
    return {"pcr": 60.0, "finetune": 20.0}[trial.method] + trial.buffer / 10 + 2 * trial.seed


def deliver(record: Record, sweep: sweepfile.Sweep, folder: Path, leave: int = 0, fail: int = 0) -> Spool:
    """Write the trials of a sweep as the tracker would; the last `leave` not at all, `fail` before them as failed."""
    spool = Spool(folder / "spool")
    courier = Courier(spool, record, sweep.name, ParentRun(record, sweep).run_id)
    identities = list(sweep.trials)[: len(sweep.trials) - leave]
    for number, identity in enumerate(identities):
        trial = sweep.trials[identity]
        spool.append(identity, "start", name=sweep.trial_name(identity), params=trial.flat())
        if number >= len(identities) - fail:
            spool.append(identity, "end", status="FAILED", reason="it broke")
            continue
        final = accuracy(trial)
        for task in (1, 2):
            spool.append(identity, "task", task=task, metrics={"average_accuracy": final + 10 * (2 - task)})
        last = {"final_accuracy": final, "forgetting": 1.0, "new_accuracy": final, "samples_per_second": 9.0}
        spool.append(identity, "task", task=3, metrics=last)
        matrix = [[final + 10], [final, final]]
        results = {"config": trial.model_dump(), "accuracy_matrix": matrix, "ncm_accuracy_matrix": []}
        spool.append(identity, "end", status="FINISHED", results=results)
    assert courier.deliver_all(), courier.trouble
    return spool


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, sweepfile.Sweep, Path]:
    folder = tmp_path_factory.mktemp("report")
    record = Record(f"sqlite:///{folder / 'mlflow.db'}")
    sweep = sweepfile.parse(CONTENT, "a file")
    deliver(record, sweep, folder)
    return record, sweep, folder


def test_confidence_intervals_are_those_of_scipy_and_one_value_has_none() -> None:
    values = [61.2, 58.7, 60.1, 57.9]
    low, high = scipy_stats.t.interval(0.95, 3, loc=sum(values) / 4, scale=scipy_stats.sem(values))
    mean, ci, n = estimate(values)
    assert math.isclose(mean - ci, low) and math.isclose(mean + ci, high) and n == 4
    assert estimate([3.0]) == (3.0, None, 1) and "no CI" in str(estimate([3.0]))


def test_cells_are_means_over_seeds_with_the_papers_number_beside(filled) -> None:
    record, sweep, _ = filled
    answer = collect(sweep, record)
    assert answer.complete
    cells = {(c.series, c.x): c for c in answer.cells}
    assert cells["pcr", 100].estimate.mean == 72.0 and cells["pcr", 100].estimate.n == 3
    assert cells["pcr", 100].paper["value"] == 70.5 and cells["pcr", 50].paper is None
    assert set(cells) == {("pcr", 50), ("pcr", 100), ("finetune", "any")}, "fine-tuning has no buffer and runs once"
    grid = report.table(answer, answer.cells)
    assert grid.header == ["method", "buffer 50", "buffer 100"]
    rows = {row[0]: row[1:] for row in grid.rows}
    assert "[paper 70.5 ± 1.5]" in rows["PCR"][1] and rows["FINE-TUNE"][0] == rows["FINE-TUNE"][1]


def test_the_files_hold_every_trial_and_open_offline(filled, tmp_path: Path) -> None:
    record, sweep, _ = filled
    folder = report.write(collect(sweep, record), record, tmp_path / "study")
    frame = pd.read_csv(folder / "results.csv")
    assert len(frame) == 9 and set(frame["head"]) == {"softmax"}
    assert {"method", "buffer", "seed", "final_accuracy", "forgetting"} <= set(frame.columns)
    page = (folder / "report.html").read_text()
    assert "Is &lt;PCR&gt; better &amp; why?" in page
    assert page.count("data:image/png;base64,") == 2
    assert not re.search(r'(src|href)="(?!data:)', page), "nothing is fetched"
    assert r"72.0 $\pm$" in (folder / "table.tex").read_text()
    for picture in folder.glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_folder_that_cannot_be_made_is_named(filled, tmp_path: Path) -> None:
    record, _, _ = filled
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(InputError, match=r"cannot be written to .*taken.*--out"):
        report.main(["study", "--tracking-uri", record.uri, "--out", str(tmp_path / "taken")])


def test_learning_curves_say_when_they_leave_x_values_out(tmp_path: Path) -> None:
    record = Record(f"sqlite:///{tmp_path / 'mlflow.db'}")
    grid = {"method": ["pcr"], "buffer": list(range(10, 111, 10)), "seed": [0]}
    sweep = sweepfile.parse(CONTENT | {"grid": grid}, "a file")
    deliver(record, sweep, tmp_path)
    text = (report.write(collect(sweep, record), record, tmp_path / "out") / "report.md").read_text()
    assert "Average accuracy after each task (the first 9 of 11 values of buffer)" in text


def test_a_report_shows_the_heads_it_is_asked_for() -> None:
    content = {"name": "a", "grid": {"method": ["pcr", "scr", "er"], "seed": [0]}}
    for spec, expected in (
        ({}, {"pcr": ["softmax", "ncm"], "scr": ["softmax"], "er": ["softmax", "ncm"]}),  # SCR's own are class means
        ({"ncm": ["pcr"]}, {"pcr": ["softmax", "ncm"], "scr": ["softmax"], "er": ["softmax"]}),
        ({"ncm": []}, {"pcr": ["softmax"], "scr": ["softmax"], "er": ["softmax"]}),
        ({"heads": ["ncm"]}, {"pcr": ["ncm"], "scr": ["softmax"], "er": ["ncm"]}),
        ({"heads": ["softmax"]}, {"pcr": ["softmax"], "scr": ["softmax"], "er": ["softmax"]}),
    ):
        sweep = sweepfile.parse(content | {"report": spec}, "a file")
        assert {t.method: heads(sweep.spec.report, t) for t in sweep.trials.values()} == expected
    with pytest.raises(InputError, match=r"report\.ncm: unknown method 'prc'; did you mean 'pcr'"):
        sweepfile.parse(content | {"report": {"ncm": ["prc"]}}, "a file")


@pytest.mark.parametrize("y, expected", [("loss", ["softmax"]), ("forgetting", ["softmax", "ncm"])])
def test_what_is_about_the_training_has_one_row_a_method(y: str, expected: list[str]) -> None:
    sweep = sweepfile.parse({"name": "a", "grid": {"method": ["pcr"], "seed": [0]}, "report": {"y": y}}, "a file")
    assert [heads(sweep.spec.report, t) for t in sweep.trials.values()] == [expected]


def test_a_name_that_no_sweep_can_have_is_not_blamed_on_the_store(filled) -> None:
    with pytest.raises(InputError, match="no sweep 'a'b' in MLflow"):
        report.find("a'b", filled[0], [])


SWEEPS = Path(__file__).parent.parent / "sweeps"


@pytest.mark.parametrize(
    "override",
    ["tasks=10", "lr=0.01", "views=original", "replay_batch_size=100", "class_order=natural", "normalise=true",
     "momentum=0.9", "head=linear", "fraction=0.3", "batchnorm=joint", "model=resnet18", "dataset=digits"],
)  # fmt: skip
def test_the_papers_numbers_stand_beside_the_papers_protocol_only(override: str) -> None:
    settings = ["fixed.dataset=cifar10", "fixed.buffer=1000", "grid.method=[er,ocm,iid]", "grid.seed=[3]"]

    def shown(*more: str) -> dict[str, float]:
        sweep = sweepfile.load(SWEEPS / "table1.yaml", [*settings, *more])
        rows = {t.method: paper_row(sweep.spec, t, "softmax") for t in sweep.trials.values()}
        return {method: row["value"] for method, row in rows.items() if row}

    # Table 1 as printed; OCM too, which the file trains in another way than the preset.
    assert shown("fixed.proxy_gradients=true") == {"er": 46.1, "ocm": 59.2, "iid": 55.9}
    assert "er" not in shown(f"fixed.{override}")


def test_a_paper_row_without_a_preset_speaks_of_all_trials_with_its_fields() -> None:
    content = {"name": "a", "fixed": {"lr": 0.3}, "grid": {"method": ["pcr", "er"], "seed": [0]}}
    sweep = sweepfile.parse(content | {"report": {"paper": [{"method": "pcr", "value": 1.5}]}}, "a file")
    assert [paper_row(sweep.spec, t, "softmax") is not None for t in sweep.trials.values()] == [True, False]
    with pytest.raises(InputError, match="unknown preset 'papr'; did you mean 'paper'"):
        sweepfile.parse(content | {"report": {"paper": [{"preset": "papr", "value": 1.5}]}}, "a file")


def test_figures_show_the_papers_numbers_also_of_methods_that_ignore_x() -> None:
    data = {"PCR": {100: estimate([50.0, 60.0]), 200: estimate([55.0])}}
    paper = {"PCR": {100: 45.4, 5000: 9.9}, "IID": {"any": 55.9}}
    names = {"names": ["PCR", "IID"], "xlabel": "buffer", "ylabel": "accuracy in %", "title": "t"}
    (axes,) = figures.lines(data, {"IID": estimate([60.0, 62.0])}, paper, **names).axes
    crosses = {float(y): line.get_color() for line in axes.lines if line.get_marker() == "x" for y in line.get_ydata()}
    colour = {line.get_label(): line.get_color() for line in axes.lines}
    assert crosses == {45.4: figures.COLOURS[0], 55.9: colour["IID"]}
    assert min(axes.get_ylim()) <= 45.4


def test_points_of_many_series_stay_near_their_x() -> None:
    data = {f"METHOD-{i}": {100: estimate([50.0, 60.0]), 200: estimate([55.0])} for i in range(31)}
    (axes,) = figures.lines(data, {}, {}, list(data), xlabel="buffer", ylabel="y", title="t").axes
    xs = [container.lines[0].get_xdata() for container in axes.containers]
    assert len({first for first, _ in xs}) == 31
    assert all(abs(first) <= 0.15 and abs(second - 1) <= 0.15 for first, second in xs)


@pytest.mark.parametrize("series", [2, 30])
def test_figures_keep_room_for_their_plots_however_many_series_there_are(series: int) -> None:
    one = {f"METHOD-{i}": [[50.0, 40.0]] for i in range(series)}
    lines = {name: {100: estimate([50.0, 60.0]), 200: estimate([55.0])} for name in one}
    plain = {"ylabel": "accuracy in %", "title": "t"}
    for figure in (
        figures.curves({"buffer 100": one}, list(one), **plain),
        figures.lines(lines, {}, {}, list(one), xlabel="buffer", **plain),
    ):
        figure.draw_without_rendering()
        for axes in figure.axes:
            box = axes.get_window_extent()
            assert box.width > 200 and box.height > 200
        labels = [text.get_text() for legend in (figure.legends or [figure.axes[0].get_legend()])
                  for text in legend.get_texts()]  # fmt: skip
        assert labels == list(one)


def test_an_unfinished_sweep_is_reported_with_what_is_missing_and_failed(tmp_path: Path) -> None:
    record = Record(f"sqlite:///{tmp_path / 'mlflow.db'}")
    sweep = sweepfile.parse(CONTENT, "a file")
    deliver(record, sweep, tmp_path, leave=2, fail=1)
    answer = collect(sweep, record)
    assert len(answer.missing) == 2 and list(answer.failed.values()) == ["it broke"]
    text = (report.write(answer, record, tmp_path / "out") / "report.md").read_text()
    assert "6 of 9 trials are finished" in text and "Missing trials" in text and "it broke" in text


def test_a_sweep_is_found_again_by_its_name(filled) -> None:
    record, sweep, _ = filled
    again = report.find("study", record, [])
    assert list(again.trials) == list(sweep.trials) and again.spec.report.question == CONTENT["report"]["question"]
    with pytest.raises(InputError, match="did you mean 'study'"):
        report.find("studdy", record, [])


def test_delivering_the_same_events_again_changes_nothing(filled, tmp_path: Path) -> None:
    record, sweep, _ = filled
    identity = next(iter(sweep.trials))
    run = record.trials()[identity].info.run_id
    before = record.client.get_metric_history(run, "average_accuracy")
    deliver(record, sweep, tmp_path)
    assert record.trials()[identity].info.run_id == run
    assert record.client.get_metric_history(run, "average_accuracy") == before
    assert len(list(record.runs(kind="trial", identity=identity))) == 1 and len(list(record.runs(kind="sweep"))) == 1


def test_a_half_written_line_at_the_end_of_a_spool_is_left_out(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append("a", "start", name="a", params={})
    with spool.events_file("a").open("a") as file:
        file.write('{"event": "task", "ti')
    assert [e["event"] for e in spool.events("a")] == ["start"]
    spool.append("a", "end", status="KILLED")
    assert [e["event"] for e in spool.events("a")] == ["start", "end"]


@pytest.mark.parametrize(
    "uri",
    ["http://me:secret@host/x", "postgresql+psycopg2://me:secret@host:5432/db", "https://host/?token=secret&a=1",
     "mysql://me:sec@ret@host/db", "postgresql://host/db?user=me&password=secret"],
)  # fmt: skip
def test_credentials_are_redacted(uri: str) -> None:
    shown = redact(f"cannot reach {uri}: refused")
    assert "secret" not in shown and "ret@" not in shown and "host" in shown and "refused" in shown


def test_the_default_store_is_absolute_and_nonsense_is_refused(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    assert tracking_uri() == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://somewhere")
    assert tracking_uri() == "http://somewhere" and tracking_uri("sqlite:///a.db") == f"sqlite:///{tmp_path}/a.db"
    with pytest.raises(InputError, match="expected http"):
        tracking_uri("mlflow.db")


def test_parameters_survive_the_way_through_mlflow(filled) -> None:
    record, sweep, _ = filled
    for identity, run in record.trials().items():
        assert {k: read_param(v) for k, v in run.data.params.items()} == sweep.trials[identity].flat()


def test_latex_escapes_what_latex_would_read() -> None:
    text = latex("a_b & 5%", Grid(["x_1"], [["a&b"]], frozenset({(0, 0)})))
    assert r"a\_b \& 5\%" in text and r"\textbf{a\&b}" in text


def spooled(folder: Path, *events: tuple[str, dict]) -> Spool:
    spool = Spool(folder)
    for name, content in events:
        spool.append("abc", name, **content)
    return spool


START = ("start", {"name": "a trial", "params": {"seed": 0}})


def test_a_run_that_was_deleted_or_belongs_to_another_store_is_made_anew(tmp_path: Path) -> None:
    first, second = (Record(f"sqlite:///{tmp_path / name}.db") for name in ("first", "second"))
    task = ("task", {"task": 1, "metrics": {"average_accuracy": 50.0}})
    spool = spooled(tmp_path / "spool", START, task)
    assert Courier(spool, first, "s", "parent").deliver_all()
    spool.append("abc", "task", task=2, metrics={"average_accuracy": 40.0})
    assert Courier(spool, second, "s", "parent").deliver_all()
    (run,) = second.runs(kind="trial")
    assert [m.step for m in second.client.get_metric_history(run.info.run_id, "average_accuracy")] == [1, 2]
    second.client.delete_run(run.info.run_id)
    spool.append("abc", "end", status="FAILED", reason="broke")
    courier = Courier(spool, second, "s", "parent")
    assert not courier.deliver_all() and courier.deliver_all(), "the second attempt begins anew"
    (again,) = second.runs(kind="trial")
    assert again.info.run_id != run.info.run_id and again.info.status == "FAILED" and again.data.params == {"seed": "0"}


def test_a_finished_run_is_not_demoted_by_an_older_interruption(tmp_path: Path) -> None:
    record = Record(f"sqlite:///{tmp_path / 'mlflow.db'}")
    old = spooled(tmp_path / "old", START, ("end", {"status": "KILLED", "reason": "stopped"}))
    new = spooled(tmp_path / "new", START, ("end", {"status": "FINISHED"}))
    assert Courier(new, record, "s", "parent").deliver_all() and Courier(old, record, "s", "parent").deliver_all()
    (run,) = record.runs(kind="trial")
    assert run.info.status == "FINISHED" and not old.pending()


def test_values_of_zero_and_false_keep_their_columns_and_panels(tmp_path: Path) -> None:
    record = Record(f"sqlite:///{tmp_path / 'mlflow.db'}")
    grid = {"method": ["pcr"], "weight_decay": [0.0, 0.01], "normalise": [False, True], "seed": [0, 1]}
    content = CONTENT | {"grid": grid, "report": {"x": "weight_decay"}}
    sweep = sweepfile.parse(content, "a file")
    deliver(record, sweep, tmp_path)
    panels = report._panels(collect(sweep, record))
    assert [dict(panel) for panel, _ in panels] == [{"normalise": False}, {"normalise": True}]
    for _, cells in panels:
        assert report.table(collect(sweep, record), cells).header == ["method", "weight_decay 0.0", "weight_decay 0.01"]


def test_a_store_that_fails_is_one_message_without_its_password() -> None:
    record = Record("http://someone:hunter2@127.0.0.1:9/")
    with pytest.raises(InputError, match=r"\*\*\*") as caught, record.guarded():
        list(record.runs(kind="trial"))
    assert "hunter2" not in str(caught.value)
