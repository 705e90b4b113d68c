"""Reports from a real MLflow store: numbers, intervals, the paper's numbers, what is missing, offline files."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pandas as pd
import pytest
import yaml
from matplotlib.figure import Figure
from scipy import stats as scipy_stats

from pcr_ray import api, report
from pcr_ray.analysis import document, tables
from pcr_ray.analysis.render import Grid, latex, markdown, page
from pcr_ray.analysis.results import collect
from pcr_ray.analysis.stats import estimate
from pcr_ray.analysis.style import COLOURS, NARROW, look, looks, scale_of, set_y, spread
from pcr_ray.analysis.style import METHODS as STYLED
from pcr_ray.analysis.views.lines import draw as lines
from pcr_ray.analysis.views.stages import draw as curves
from pcr_ray.errors import InputError
from pcr_ray.methods import METHODS
from pcr_ray.study import load as study_files
from pcr_ray.study.cells import shown_classifiers
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
    assert rows["PCR"][1] == "72.0 ± 5.0\npaper 70.5 ± 1.5" and rows["FINE-TUNE"][0] == rows["FINE-TUNE"][1]


def test_a_column_of_which_everything_failed_stays_in_the_table(tmp_path: Path, capsys) -> None:
    store = Store(f"sqlite:///{tmp_path / 'mlflow.db'}")
    grid = {"method": ["finetune", "pcr"], "buffer": [50, 100], "seed": [0, 1]}
    study = study_files.parse({**CONTENT, "grid": grid, "report": {"x": "buffer"}}, "a file")
    deliver(store, study, tmp_path, fail=2)  # PCR with 100
    answer = collect(study, store)
    shown = tables.table(answer, answer.cells)
    assert shown.header == ["method", "buffer 50", "buffer 100"]
    # FINE-TUNE 20, 22 and PCR 65, 67; class means are recorded of none, and fine-tuning cannot have any.
    assert {row[0]: [text[:4] for text in row[1:]] for row in shown.rows} == {
        "FINE-TUNE": ["21.0", "21.0"], "PCR": ["66.0", "fail"], "PCR-NCM": ["-", "fail"]
    }  # fmt: skip
    assert shown.bold == {(1, 1)}, "what failed is not compared"
    assert report.main(["study", "--tracking-uri", store.uri, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert said.count("it broke") == 1 and "2 trials, pcr buffer=100 seed=0, pcr buffer=100 seed=1: it broke" in said
    assert "--rerun failed" in said and "--rerun failed" in (tmp_path / "out" / "study" / "report.md").read_text()


def test_the_description_of_a_sweeps_run_begins_with_the_answer(filled) -> None:
    store, study, _ = filled
    words, rest = document.note(collect(study, store))
    assert words.startswith("PCR leads FINE-TUNE at buffer 50 and 100 by 45.0")
    assert rest.startswith("| method |") and "The question: Is &lt;PCR> better & why?" in rest and words not in rest


def test_the_files_hold_every_trial_and_open_offline(filled, tmp_path: Path) -> None:
    store, study, _ = filled
    folder = document.write(collect(study, store), tmp_path / "study")
    frame = pd.read_csv(folder / "results.csv")
    assert len(frame) == 9 and set(frame["classifier"]) == {"softmax"}
    assert {"method", "buffer", "seed", "final_accuracy", "forgetting", "lr", "dataset"} <= set(frame.columns)
    trials = {identity: trial.flat() for identity, trial in study.trials.items()}
    for row in frame.to_dict("records"):
        assert (row["lr"], row["tasks"], row["dataset"]) == tuple(
            trials[row["trial"]][k] for k in ("lr", "tasks", "dataset")
        )
    page = (folder / "report.html").read_text()
    assert "Is &lt;PCR&gt; better &amp; why?" in page
    assert page.count('src="data:image/svg+xml;base64,') == 2 == page.count('srcset="data:image/svg+xml;base64,')
    assert not re.search(r'(src|srcset|href)="(?!data:)', page), "nothing is fetched"
    assert r"72.0 $\pm$" in (folder / "table.tex").read_text()
    pictures = list(folder.glob("figures/*.png"))
    assert len(pictures) == 2 and all(p.read_bytes().startswith(b"\x89PNG") for p in pictures)
    text = (folder / "report.md").read_text()
    assert all(f"](figures/{p.name})" in text for p in pictures)
    assert "the second underlined or in italics" in text, "Markdown does not underline"
    assert text.count("mean and 95 % interval") == 2


def test_captions_of_one_seed_promise_no_interval(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'mlflow.db'}")
    study = study_files.parse(CONTENT | {"grid": CONTENT["grid"] | {"seed": [0]}}, "a file")
    deliver(store, study, tmp_path)
    folder = document.write(collect(study, store), tmp_path / "out")
    text = (folder / "report.md").read_text()
    assert "Final accuracy in % by buffer, one seed" in text and "after each task, one seed" in text
    assert "95 % interval](" not in text
    assert r"\caption{Final accuracy in \%: one seed" in (folder / "table.tex").read_text()


@pytest.mark.parametrize(("values", "limits"), [([0.0, 100.0], (-2.0, 102.0)), ([40.0, 60.0], (38.8, 61.2))])
def test_markers_at_the_ends_of_a_percentage_are_not_cut(values: list[float], limits: tuple[float, float]) -> None:
    axes = Figure().subplots()
    set_y(axes, values, "accuracy in %")
    assert axes.get_ylim() == pytest.approx(limits)


def test_a_report_says_how_to_reproduce_it_and_what_is_out_of_date(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'mlflow.db'}")
    study = study_files.parse(CONTENT, "a file")
    deliver(store, study, tmp_path, **{"pcr_ray/methods/pcr.py": "00000000"})
    text = (document.write(collect(study, store), tmp_path / "out") / "report.md").read_text()
    assert "python -m pcr_ray.sweep study.yaml" in text and re.search(r"Versions: pcr_ray \S+, python 3\.", text)
    other = re.search(
        r"## Trials of other code than today's\n+- (\d+) trials, (.*): other pcr_ray/methods/pcr.py\n", text
    )
    assert other and int(other[1]) == len(study.trials)
    assert other[2].startswith("pcr buffer=50 seed=0, pcr buffer=50 seed=1, ")
    stored = yaml.safe_load(re.findall(r"```\n(name: study.*?)```", text, re.S)[0])
    assert list(study_files.parse(stored, "the report", stored=True).trials) == list(study.trials)


def test_several_metrics_have_their_own_tables_in_one_report(filled, tmp_path: Path) -> None:
    store, _, _ = filled
    both = study_files.parse(CONTENT | {"report": {"x": "buffer", "y": ["final_accuracy", "forgetting"]}}, "a file")
    folder = document.write(collect(both, store), tmp_path)
    text = (folder / "report.md").read_text()
    assert "## Answer: final accuracy" in text and "## Answer: forgetting" in text
    frame = pd.read_csv(folder / "comparisons.csv")
    assert set(frame["metric"]) == {"final_accuracy", "forgetting"}
    assert (frame[frame["metric"] == "forgetting"]["difference"] == 0).all(), "recorded as 1.0 for all"
    names = {p.name for p in (folder / "figures").iterdir()}
    assert names == {"final_accuracy_by_buffer.png", "forgetting_by_buffer.png", "learning_curves.png"}
    with pytest.raises(InputError, match=r"report\.y: unknown metric 'forgeting'; did you mean 'forgetting'"):
        study_files.parse(CONTENT | {"report": {"y": ["forgeting"]}}, "a file")


def test_the_wide_table_has_the_reports_columns_as_means_of_the_seeds(filled) -> None:
    store, _, _ = filled
    report = {"x": "buffer", "columns": ["forgetting", "new_accuracy", "peak_memory"]}
    answer = collect(study_files.parse(CONTENT | {"report": report}, "a file"), store)
    grid = tables.details(answer, answer.cells)
    assert grid.header == ["method", "buffer", "Final accuracy in %", "Forgetting in points",
                           "Accuracy on the newest task in %"], "nobody recorded memory"  # fmt: skip
    assert ["PCR", "100", "72.0 ± 5.0", "1.0 ± 0.0", "72.0 ± 5.0"] in grid.rows  # 70, 72, 74: t(2) · 2 / √3


def test_the_best_is_bold_and_the_second_underlined_everywhere() -> None:
    grid = Grid(["m", "x"], [["a", "1\npaper 2"], ["b", "3"]], frozenset({(1, 1)}), frozenset({(0, 1)}))
    assert "**3**" in markdown("t", [grid]) and "*1*<br>paper 2" in markdown("t", [grid])
    assert "<b>3</b>" in page("t", [grid]) and "<u>1</u><br><small>paper 2</small>" in page("t", [grid])
    assert r"\textbf{3}" in latex("t", grid) and r"\shortstack[r]{\underline{1}\\ \scriptsize paper 2}" in latex(
        "t", grid
    )


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
    assert "Average accuracy after each task (9 of 11 values of buffer)" in text


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
        assert {
            t.method: shown_classifiers(study.spec.report, t, "final_accuracy") for t in study.trials.values()
        } == expected
    with pytest.raises(InputError, match=r"report\.ncm: unknown method 'prc'; did you mean 'pcr'"):
        study_files.parse(content | {"report": {"ncm": ["prc"]}}, "a file")


@pytest.mark.parametrize("y, expected", [("loss", ["softmax"]), ("forgetting", ["softmax", "ncm"])])
def test_what_is_about_the_training_has_one_row_per_method(y: str, expected: list[str]) -> None:
    study = study_files.parse({"name": "a", "grid": {"method": ["pcr"], "seed": [0]}, "report": {"y": y}}, "a file")
    assert [shown_classifiers(study.spec.report, t, y) for t in study.trials.values()] == [expected]


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
    names = {"xlabel": "buffer", "ylabel": "accuracy in %", "title": "t"}
    styles = {"PCR": look(0), "IID": look(1)}
    (axes,) = lines(data, {"IID": estimate([60.0, 62.0])}, paper, styles, **names).axes
    crosses = {float(y): line.get_color() for line in axes.lines if line.get_marker() == "x" for y in line.get_ydata()}
    colour = {line.get_label(): line.get_color() for line in axes.lines}
    assert crosses == {45.4: COLOURS[0], 55.9: colour["IID"]} and colour["IID"] == COLOURS[1]
    assert min(axes.get_ylim()) <= 45.4


def test_points_of_many_series_stay_near_their_x() -> None:
    data = {f"METHOD-{i}": {100: estimate([50.0, 60.0]), 200: estimate([55.0])} for i in range(31)}
    for few in (dict(list(data.items())[:9]), data):
        styles = {name: look(i) for i, name in enumerate(few)}
        figure = lines(few, {}, {}, styles, xlabel="buffer", ylabel="y", title="t")
        figure.draw_without_rendering()
        (axes,) = figure.axes
        box = axes.get_window_extent()
        drawn = [c.lines[0].get_transform().transform(c.lines[0].get_xydata())[:, 0] for c in axes.containers]
        places = axes.transData.transform([(100, 50), (200, 50)])[:, 0]
        assert all(abs(d - p) < 0.03 * box.width for at in drawn for d, p in zip(at, places))
        assert len({round(float(first), 3) for first, _ in drawn}) == (9 if len(few) == 9 else 1), (
            "with intervals: beside"
        )


def test_x_is_logarithmic_where_it_grows_by_factors() -> None:
    assert scale_of([10, 20, 50, 100]) == "log" and scale_of([0.001, 0.01, 0.1]) == "log"
    assert scale_of([1, 2, 3, 4]) == "linear" and scale_of([0, 10, 100]) == "linear" and scale_of([5, 9]) == "linear"
    assert scale_of(["a", "b"]) == "names" == scale_of([True, False])
    points = {"PCR": {x: estimate([50.0]) for x in (10, 20, 50, 100)}}
    (axes,) = lines(points, {}, {}, {"PCR": look(0)}, xlabel="b", ylabel="y", title="t").axes
    assert axes.get_xscale() == "log" and [t.get_text() for t in axes.get_xticklabels()] == ["10", "20", "50", "100"]


def test_labels_move_as_little_as_their_height_asks() -> None:
    assert spread([0.1, 0.5, 0.9], 0.05) == pytest.approx([0.1, 0.5, 0.9])
    assert spread([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    crowded = spread([0.99] * 5, 0.1)
    assert crowded == pytest.approx([0.6, 0.7, 0.8, 0.9, 1.0])


def test_a_method_has_one_colour_in_all_reports_and_its_class_means_have_it_too(filled) -> None:
    store, study, _ = filled
    first = looks(collect(study, store))
    other = study_files.parse(CONTENT | {"name": "other", "grid": {"method": ["finetune", "pcr"], "seed": [0]}}, "it")
    deliver(store, other, filled[2] / "other")
    second = looks(collect(other, store))
    assert {k: v.colour for k, v in first.items()} == {k: v.colour for k, v in second.items()}
    assert first["PCR"].colour != first["FINE-TUNE"].colour
    assert look(0, own=False).colour == look(0).colour and look(0, own=False).linestyle != look(0).linestyle
    assert len(set(COLOURS)) >= len(STYLED) and set(METHODS.names()) <= {*STYLED}, "every method has its own"


@pytest.mark.parametrize("series", [2, 30])
def test_figures_keep_room_for_their_plots_however_many_series_there_are(series: int) -> None:
    one = {f"METHOD-{i}": [[50.0, 40.0]] for i in range(series)}
    points = {name: {100: estimate([50.0, 60.0]), 200: estimate([55.0])} for name in one}
    styles = {name: look(i) for i, name in enumerate(one)}
    plain = {"ylabel": "accuracy in %", "title": "t"}
    for figure in (
        curves({"buffer 100": one}, styles, **plain),
        curves({"buffer 100": one}, styles, width=NARROW, **plain),
        lines(points, {}, {}, styles, xlabel="buffer", **plain),
        lines(points, {}, {}, styles, xlabel="buffer", width=NARROW, **plain),
    ):
        figure.draw_without_rendering()
        for axes in figure.axes:
            box = axes.get_window_extent()
            assert box.width > 200 and box.height > 200
        in_legends = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
        at_ends = [text.get_text() for text in figure.axes[0].texts]
        assert sorted(in_legends or at_ends) == sorted(one)


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


def test_methods_as_columns_have_what_else_varies_as_rows(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'mlflow.db'}")
    study = study_files.parse({**CONTENT, "report": {"x": "method", "classifiers": ["softmax"]}}, "a file")
    deliver(store, study, tmp_path)
    answer = collect(study_files.parse(yaml.safe_load(study.to_yaml()), "as stored", stored=True), store)
    shown = tables.table(answer, answer.cells)
    assert shown.header == ["buffer", "method finetune", "method pcr"]
    assert {row[0]: row[2][:4] for row in shown.rows} == {"50": "67.0", "100": "72.0", "any": "-"}
    alone = study_files.parse(
        {**CONTENT, "grid": {"method": ["pcr", "er"], "seed": [0]}, "report": {"x": "method"}}, ""
    )
    assert alone.spec.report.series == "dataset"
