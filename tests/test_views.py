"""Every kind of figure on recorded trials: what is drawn against numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pcr_ray.analysis import document, tables, words
from pcr_ray.analysis.results import Answer, collect
from pcr_ray.analysis.style import WIDE
from pcr_ray.analysis.views import VIEWS, balance, heat_map, proxies, stages
from pcr_ray.study import load as study_files
from pcr_ray.study.schema import FIGURES
from pcr_ray.tracking.courier import Courier
from pcr_ray.tracking.spool import Spool
from pcr_ray.tracking.store import Store
from pcr_ray.tracking.sweep_run import SweepRun
from tests.recorded import code

CONTENT: dict[str, Any] = {
    "name": "views",
    "fixed": {"dataset": "digits", "tasks": 2, "proxy_gradients": True},
    "grid": {"method": ["pcr", "er"], "buffer": [50, 100], "seed": [0, 1]},
    "report": {"x": "buffer", "classifiers": ["softmax"], "figures": list(FIGURES)},
}


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    """Accuracy on task 1: 80 + seed, then 60 + seed; on task 2: 40 + seed. Proxies: class c received c."""
    folder = tmp_path_factory.mktemp("views")
    store, study = Store(f"sqlite:///{folder / 'mlflow.db'}"), study_files.parse(CONTENT, "a file")
    spool, run = Spool(folder / "spool"), SweepRun(store, study)
    for identity, trial in study.trials.items():
        s = trial.seed
        spool.append(identity, "start", name="a", params=trial.flat(), code=code(trial), rerun=False)
        one = {"average_accuracy": 80.0 + s, "new_accuracy": 80.0 + s, "accuracy_task_1": 80.0 + s}
        two = {"average_accuracy": 50.0 + s, "new_accuracy": 40.0 + s, "old_accuracy": 60.0 + s,
               "accuracy_task_1": 60.0 + s, "accuracy_task_2": 40.0 + s, "final_accuracy": 50.0 + s}  # fmt: skip
        for task, metrics in enumerate((one, two), start=1):
            spool.append(identity, "task", task=task, metrics=metrics)
        results = {"config": trial.model_dump(), "accuracy_matrix": [], "ncm_accuracy_matrix": []}
        results |= {"data_fingerprint": "00", "proxy_gradients": [[9.0] * 10, [float(c) for c in range(10)]]}
        spool.append(identity, "end", status="FINISHED", results=results)
    assert Courier(spool, store, study.name, lambda: run.run_id).deliver_all()
    return collect(study, store)


def test_every_kind_that_a_file_can_name_is_there() -> None:
    assert set(VIEWS) == set(FIGURES)


def test_a_report_shows_the_figures_that_its_file_names(answer: Answer, tmp_path: Path) -> None:
    folder = document.write(answer, tmp_path)
    names = {file.name for file in (folder / "figures").glob("*.png")}
    assert names == {"final_accuracy_by_buffer.png", "learning_curves.png", "knowledge_balance_1.png",
                     "knowledge_balance_2.png", "proxy_gradients.png", "accuracy_matrices.png"}  # fmt: skip
    assert (folder / "report.html").read_text().count('src="data:image/svg') == 6


def test_stages_have_one_curve_per_seed(answer: Answer) -> None:
    data = stages.shape(answer, answer.cells)
    assert data["buffer 50"] == {"PCR": [[80.0, 50.0], [81.0, 51.0]], "ER": [[80.0, 50.0], [81.0, 51.0]]}


def test_old_knowledge_begins_with_the_second_task_and_new_knowledge_with_it(answer: Answer) -> None:
    ((_, cells),) = tables.panels(answer)
    new, old = balance.pictures(answer, (), cells)[0].draw(WIDE).axes
    assert [line.get_ydata().tolist() for line in new.lines] == [[40.5], [40.5]]
    assert [line.get_ydata().tolist() for line in old.lines] == [[60.5], [60.5]]
    assert new.lines[0].get_xdata()[0] == 2


def test_a_heat_map_is_the_mean_matrix(answer: Answer) -> None:
    assert heat_map.shape(answer, answer.cells[0]) == [[80.5], [60.5, 40.5]]


def test_the_answer_says_what_share_the_newest_classes_received(answer: Answer) -> None:
    (text,) = words.of_proxies(answer)
    assert "newest classes received: PCR 77.8 ± 0.0 %, PCR 77.8 ± 0.0 %, ER" in text, text  # 35 of 45, at both x
    assert text.endswith("An even share is 50 %.")


def test_bars_are_the_proxies_of_the_last_task_with_the_newest_classes_apart(answer: Answer) -> None:
    cell = answer.cells[0]
    assert proxies.shape(answer, cell) == [float(c) for c in range(10)]
    assert proxies.newest_classes(answer, cell) == 5, "ten classes in two tasks"
    axes = proxies.draw({"PCR": proxies.shape(answer, cell)}, {"PCR": 5}).axes[0]
    old, newest = axes.containers
    assert [bar.get_height() for bar in old] == [0, 1, 2, 3, 4] and [bar.get_height() for bar in newest] == [
        5,
        6,
        7,
        8,
        9,
    ]
    assert axes.get_title() == "PCR: 78 % on the newest classes"  # 35 of 45
