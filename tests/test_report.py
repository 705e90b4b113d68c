"""Reports from a real MLflow store: numbers, intervals, the paper's numbers, what is missing, offline files."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats as scipy_stats

from pcr_ray import api, report
from pcr_ray.analysis import document, tables
from pcr_ray.analysis.render import Grid, latex
from pcr_ray.analysis.results import collect, shown_classifiers
from pcr_ray.analysis.stats import estimate
from pcr_ray.analysis.style import COLOURS
from pcr_ray.analysis.views.lines import draw as lines
from pcr_ray.analysis.views.stages import draw as curves
from pcr_ray.errors import InputError
from pcr_ray.study import load as study_files
from pcr_ray.study.load import Study
from pcr_ray.study.paper import row_of
from pcr_ray.tracking.store import Store
from tests.recorded import deliver

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


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Study, Path]:
    folder = tmp_path_factory.mktemp("report")
    store = Store(f"sqlite:///{folder / 'mlflow.db'}")
    study = study_files.parse(CONTENT, "a file")
    deliver(store, study, folder)
    return store, study, folder


def test_confidence_intervals_are_those_of_scipy_and_one_value_has_none() -> None:
    values = [61.2, 58.7, 60.1, 57.9]
    low, high = scipy_stats.t.interval(0.95, 3, loc=sum(values) / 4, scale=scipy_stats.sem(values))
    mean, ci, n = estimate(values)
    assert math.isclose(mean - ci, low) and math.isclose(mean + ci, high) and n == 4
    assert estimate([3.0]) == (3.0, None, 1) and "no CI" in str(estimate([3.0]))


def test_cells_are_means_over_seeds_with_the_papers_number_beside(filled) -> None:
    store, study, _ = filled
    answer = collect(study, store)
    assert answer.complete
    cells = {(c.series, c.x): c for c in answer.cells}
    assert cells["pcr", 100].estimate.mean == 72.0 and cells["pcr", 100].estimate.n == 3
    assert cells["pcr", 100].paper["value"] == 70.5 and cells["pcr", 50].paper is None
    assert set(cells) == {("pcr", 50), ("pcr", 100), ("finetune", "any")}, "fine-tuning has no buffer and runs once"
    grid = tables.table(answer, answer.cells)
    assert grid.header == ["method", "buffer 50", "buffer 100"]
    rows = {row[0]: row[1:] for row in grid.rows}
    assert "[paper 70.5 ± 1.5]" in rows["PCR"][1] and rows["FINE-TUNE"][0] == rows["FINE-TUNE"][1]


def test_the_files_hold_every_trial_and_open_offline(filled, tmp_path: Path) -> None:
    store, study, _ = filled
    folder = document.write(collect(study, store), tmp_path / "study")
    frame = pd.read_csv(folder / "results.csv")
    assert len(frame) == 9 and set(frame["classifier"]) == {"softmax"}
    assert {"method", "buffer", "seed", "final_accuracy", "forgetting"} <= set(frame.columns)
    page = (folder / "report.html").read_text()
    assert "Is &lt;PCR&gt; better &amp; why?" in page
    assert page.count("data:image/png;base64,") == 2
    assert not re.search(r'(src|href)="(?!data:)', page), "nothing is fetched"
    assert r"72.0 $\pm$" in (folder / "table.tex").read_text()
    for picture in folder.glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_folder_that_cannot_be_made_is_named(filled, tmp_path: Path) -> None:
    store, _, _ = filled
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(InputError, match=r"cannot be written to .*taken.*--out"):
        report.main(["study", "--tracking-uri", store.uri, "--out", str(tmp_path / "taken")])


def test_learning_curves_say_when_they_leave_x_values_out(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'mlflow.db'}")
    grid = {"method": ["pcr"], "buffer": list(range(10, 111, 10)), "seed": [0]}
    study = study_files.parse(CONTENT | {"grid": grid}, "a file")
    deliver(store, study, tmp_path)
    text = (document.write(collect(study, store), tmp_path / "out") / "report.md").read_text()
    assert "Average accuracy after each task (the first 9 of 11 values of buffer)" in text


def test_a_report_shows_the_classifiers_it_is_asked_for() -> None:
    content = {"name": "a", "grid": {"method": ["pcr", "scr", "er"], "seed": [0]}}
    for spec, expected in (
        ({}, {"pcr": ["softmax", "ncm"], "scr": ["softmax"], "er": ["softmax", "ncm"]}),  # SCR's own are class means
        ({"ncm": ["pcr"]}, {"pcr": ["softmax", "ncm"], "scr": ["softmax"], "er": ["softmax"]}),
        ({"ncm": []}, {"pcr": ["softmax"], "scr": ["softmax"], "er": ["softmax"]}),
        ({"classifiers": ["ncm"]}, {"pcr": ["ncm"], "scr": ["softmax"], "er": ["ncm"]}),
        ({"classifiers": ["softmax"]}, {"pcr": ["softmax"], "scr": ["softmax"], "er": ["softmax"]}),
    ):
        study = study_files.parse(content | {"report": spec}, "a file")
        assert {t.method: shown_classifiers(study.spec.report, t) for t in study.trials.values()} == expected
    with pytest.raises(InputError, match=r"report\.ncm: unknown method 'prc'; did you mean 'pcr'"):
        study_files.parse(content | {"report": {"ncm": ["prc"]}}, "a file")


@pytest.mark.parametrize("y, expected", [("loss", ["softmax"]), ("forgetting", ["softmax", "ncm"])])
def test_what_is_about_the_training_has_one_row_per_method(y: str, expected: list[str]) -> None:
    study = study_files.parse({"name": "a", "grid": {"method": ["pcr"], "seed": [0]}, "report": {"y": y}}, "a file")
    assert [shown_classifiers(study.spec.report, t) for t in study.trials.values()] == [expected]


def test_a_name_that_no_sweep_can_have_is_not_blamed_on_the_store(filled) -> None:
    with pytest.raises(InputError, match="no sweep 'a'b' in sqlite"):
        api.find("a'b", filled[0])


SWEEPS = Path(__file__).parent.parent / "sweeps"


@pytest.mark.parametrize(
    "override",
    ["tasks=10", "lr=0.01", "views=original", "replay_batch_size=100", "class_order=natural", "normalise=true",
     "momentum=0.9", "head=linear", "fraction=0.3", "batchnorm=joint", "model=resnet18", "dataset=digits"],
)  # fmt: skip
def test_the_papers_numbers_stand_beside_the_papers_protocol_only(override: str) -> None:
    settings = ["fixed.dataset=cifar10", "fixed.buffer=1000", "grid.method=[er,ocm,iid]", "grid.seed=[3]"]

    def shown(*more: str) -> dict[str, float]:
        study = study_files.load(SWEEPS / "table1.yaml", [*settings, *more])
        rows = {t.method: row_of(study.spec, t, "softmax") for t in study.trials.values()}
        return {method: row["value"] for method, row in rows.items() if row}

    # Table 1 as printed; OCM too, which the file trains in another way than the preset.
    assert shown("fixed.proxy_gradients=true") == {"er": 46.1, "ocm": 59.2, "iid": 55.9}
    assert "er" not in shown(f"fixed.{override}")


def test_a_paper_row_without_a_preset_speaks_of_all_trials_with_its_fields() -> None:
    content = {"name": "a", "fixed": {"lr": 0.3}, "grid": {"method": ["pcr", "er"], "seed": [0]}}
    study = study_files.parse(content | {"report": {"paper": [{"method": "pcr", "value": 1.5}]}}, "a file")
    assert [row_of(study.spec, t, "softmax") is not None for t in study.trials.values()] == [True, False]
    with pytest.raises(InputError, match="unknown preset 'papr'; did you mean 'paper'"):
        study_files.parse(content | {"report": {"paper": [{"preset": "papr", "value": 1.5}]}}, "a file")


def test_figures_show_the_papers_numbers_also_of_methods_that_ignore_x() -> None:
    data = {"PCR": {100: estimate([50.0, 60.0]), 200: estimate([55.0])}}
    paper = {"PCR": {100: 45.4, 5000: 9.9}, "IID": {"any": 55.9}}
    names = {"names": ["PCR", "IID"], "xlabel": "buffer", "ylabel": "accuracy in %", "title": "t"}
    (axes,) = lines(data, {"IID": estimate([60.0, 62.0])}, paper, **names).axes
    crosses = {float(y): line.get_color() for line in axes.lines if line.get_marker() == "x" for y in line.get_ydata()}
    colour = {line.get_label(): line.get_color() for line in axes.lines}
    assert crosses == {45.4: COLOURS[0], 55.9: colour["IID"]}
    assert min(axes.get_ylim()) <= 45.4


def test_points_of_many_series_stay_near_their_x() -> None:
    data = {f"METHOD-{i}": {100: estimate([50.0, 60.0]), 200: estimate([55.0])} for i in range(31)}
    (axes,) = lines(data, {}, {}, list(data), xlabel="buffer", ylabel="y", title="t").axes
    xs = [container.lines[0].get_xdata() for container in axes.containers]
    assert len({first for first, _ in xs}) == 31
    assert all(abs(first) <= 0.15 and abs(second - 1) <= 0.15 for first, second in xs)


@pytest.mark.parametrize("series", [2, 30])
def test_figures_keep_room_for_their_plots_however_many_series_there_are(series: int) -> None:
    one = {f"METHOD-{i}": [[50.0, 40.0]] for i in range(series)}
    points = {name: {100: estimate([50.0, 60.0]), 200: estimate([55.0])} for name in one}
    plain = {"ylabel": "accuracy in %", "title": "t"}
    for figure in (
        curves({"buffer 100": one}, list(one), **plain),
        lines(points, {}, {}, list(one), xlabel="buffer", **plain),
    ):
        figure.draw_without_rendering()
        for axes in figure.axes:
            box = axes.get_window_extent()
            assert box.width > 200 and box.height > 200
        labels = [text.get_text() for legend in (figure.legends or [figure.axes[0].get_legend()])
                  for text in legend.get_texts()]  # fmt: skip
        assert labels == list(one)


def test_an_unfinished_sweep_is_reported_with_what_is_missing_and_failed(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'mlflow.db'}")
    study = study_files.parse(CONTENT, "a file")
    deliver(store, study, tmp_path, leave=2, fail=1)
    answer = collect(study, store)
    assert len(answer.missing) == 2 and list(answer.failed.values()) == ["it broke"]
    text = (document.write(answer, tmp_path / "out") / "report.md").read_text()
    assert "Finished: 6 of 9 trials" in text and "Missing trials" in text and "it broke" in text


def test_a_sweep_is_found_again_by_its_name(filled) -> None:
    store, study, _ = filled
    again = api.find("study", store)
    assert list(again.trials) == list(study.trials) and again.spec.report.question == CONTENT["report"]["question"]
    with pytest.raises(InputError, match="did you mean 'study'"):
        api.find("studdy", store)


def test_latex_escapes_what_latex_would_read() -> None:
    text = latex("a_b & 5%", Grid(["x_1"], [["a&b"]], frozenset({(0, 0)})))
    assert r"a\_b \& 5\%" in text and r"\textbf{a\&b}" in text


def test_values_of_zero_and_false_keep_their_columns_and_panels(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'mlflow.db'}")
    grid = {"method": ["pcr"], "weight_decay": [0.0, 0.01], "normalise": [False, True], "seed": [0, 1]}
    content = CONTENT | {"grid": grid, "report": {"x": "weight_decay"}}
    study = study_files.parse(content, "a file")
    deliver(store, study, tmp_path)
    panels = tables.panels(collect(study, store))
    assert [dict(panel) for panel, _ in panels] == [{"normalise": False}, {"normalise": True}]
    for _, cells in panels:
        assert tables.table(collect(study, store), cells).header == ["method", "weight_decay 0.0", "weight_decay 0.01"]
