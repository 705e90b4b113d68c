"""What Tune makes of the trials that it is handed, with Tune's own code and no Ray running."""

from __future__ import annotations

import copy
from collections import UserDict
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.impl.placeholder import create_resolvers_map, inject_placeholders, resolve_placeholders
from ray.tune.search.variant_generator import generate_variants

from pcr_ray.errors import InputError
from pcr_ray.execution import tuner
from pcr_ray.execution.callback import TuneTracker
from pcr_ray.execution.options import RunOptions
from pcr_ray.provenance import code_of
from pcr_ray.study import load as study_files
from pcr_ray.study.schema import Resources
from tests.sweeping import sweep_file

TRIALS = 50


def expanded(space: dict[str, Any]) -> list[Any]:
    """As `tune.run` does: references put aside, one variant per case, references put back."""
    aside = create_resolvers_map()
    injected = inject_placeholders(space, aside)
    configs = [spec["config"] for _, spec in generate_variants({"run": "any", "config": injected})]
    for config in configs:
        resolve_placeholders(config, aside)
    return [config["case"] for config in configs]


class Taken:
    """Tune's place: takes the grid, runs nothing."""

    space: dict[str, Any]

    def __init__(self, trainable: Any, *, param_space: dict[str, Any], **settings: Any) -> None:
        Taken.space = param_space

    def fit(self) -> None:
        pass


def test_each_case_reaches_its_trial_in_order_and_is_not_copied_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = {"method": ["er"], "seed": {"range": [0, TRIALS]}}
    study = study_files.parse({"name": "study", "fixed": {"dataset": "digits"}, "grid": grid}, "a file")
    monkeypatch.setattr(tune, "Tuner", Taken)
    callback = type("Callback", (tune.Callback,), {"over": lambda self, trial_id, result: True})()
    tuner.run(study, study.trials, RunOptions(out=tmp_path), Resources(cpu=1), callback)
    copied, copies = 0, copy.deepcopy

    def counting(value: Any, *memo: Any) -> Any:
        nonlocal copied
        copied += isinstance(value, dict | UserDict) and "identity" in value
        return copies(value, *memo)

    monkeypatch.setattr(copy, "deepcopy", counting)
    monkeypatch.setitem(copy._deepcopy_dispatch, list, lambda x, memo: [counting(v, memo) for v in x])  # type: ignore[attr-defined]
    cases = expanded(Taken.space)
    assert [(case["identity"], case["trial"]) for case in cases] == [
        (identity, trial.model_dump()) for identity, trial in study.trials.items()
    ]
    assert copied <= TRIALS, "a grid of dicts is copied once per trial"


def test_tune_keeps_no_numbers_of_a_trial_that_has_ended() -> None:
    nothing: Any = None
    tracker = TuneTracker(nothing, nothing, nothing, nothing, nothing, Path())

    def kept(numbers: int) -> str:
        trial = Trial("any", stub=True, config={"case": {"identity": "a"}})
        metrics = {f"metric {n}": 0.5 for n in range(numbers)}
        trial.update_last_result({"training_iteration": 5, "done": True, **metrics})
        tracker.on_trial_complete(0, [trial], trial)
        assert trial.last_result["training_iteration"] == 5 and trial.has_reported_at_least_once
        return str(sorted(vars(trial.run_metadata)["last_result"])) + str(trial.metric_analysis | trial.metric_n_steps)

    assert kept(40) == kept(0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("class Thing:\n    x = (\n", r"SyntaxError: '\(' was never closed \(.*, line 2\)"),
        ("class Thing:\n    pass\n\nnowhere()\n", r"NameError: name 'nowhere' is not defined \(.*bad_.*, line 4\)"),
        ("class Thing:\n    pass\n\nraise SystemExit(3)\n", r"SystemExit: 3 \(.*, line 4\)"),
        ("import no_such_thing\n\nclass Thing:\n    pass\n", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("class Other:\n    pass\n", "AttributeError: module 'bad_.*' has no attribute 'Thing'"),
    ],
    ids=["syntax", "name", "exit", "module", "attribute"],
)  # fmt: skip
@pytest.mark.parametrize("place", ["{}", "{}.inside"])
def test_a_trainable_that_cannot_be_imported_is_the_users_to_mend(
    content: str, message: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    """Whether the module itself is at fault or the package above it."""
    module = f"bad_{request.node.callspec.id.split('-')[-1]}_{len(place)}"
    if place == "{}":
        (tmp_path / f"{module}.py").write_text(content)
    else:
        (tmp_path / module).mkdir()
        (tmp_path / module / "__init__.py").write_text("" if "Other" in content else content)
        (tmp_path / module / "inside.py").write_text("class Other:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    name = f"{place.format(module)}:Thing"
    with pytest.raises(InputError, match=f"trainable: '{name}' cannot be imported: {message}"):
        tuner.check_trainable(name)
        tuner.load_trainable(name)


def test_a_file_of_a_trials_code_that_is_no_python_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sound_trainable.py").write_text("import broken_helper\n")
    (tmp_path / "broken_helper.py").write_text("def f(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"broken_helper\.py is part of a trial's code and cannot be read as Python"):
        code_of(next(iter(study_files.load(sweep_file(tmp_path)).trials.values())), "sound_trainable:Thing")
