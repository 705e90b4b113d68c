"""Presets: what they say per method and memory, in trials, sweep files and on the command line; the page about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pcr_ray.cli import main
from pcr_ray.config import FIELDS
from pcr_ray.console import run
from pcr_ray.errors import InputError
from pcr_ray.identity import identity
from pcr_ray.learner import Learner
from pcr_ray.listing import presets_markdown
from pcr_ray.methods import METHODS
from pcr_ray.study import load as sweepfile
from pcr_ray.study.paper import row_of
from pcr_ray.study.presets import PRESETS, preset
from pcr_ray.study.resolve import ConfigProblems, resolve
from pcr_ray.study.search import combinations, tuning_trials
from pcr_ray.train import parser, trial_config

NAMES = pytest.mark.parametrize("name", PRESETS)


def sweep(text: str) -> sweepfile.Study:
    return sweepfile.parse(yaml.safe_load(text), "a file")


@NAMES
def test_a_preset_resolves_with_every_method_and_names_its_source(name: str) -> None:
    found = preset(name)
    assert found.source and found.summary
    assert found.methods.keys() <= set(METHODS.names()) and found.buffers.keys() <= found.methods.keys()
    for method in METHODS.names():
        assert resolve({"preset": name, "method": method}).preset == name
        own = {k for k in found.fields_for(method, 1000) if not k.startswith("params.")}
        assert own <= set(FIELDS)


def test_the_papers_protocol_is_the_default() -> None:
    for method in METHODS.names():
        assert identity(resolve({"preset": "paper", "method": method})) == identity(resolve({"method": method}))


def test_an_unknown_preset_is_named_with_the_near_one() -> None:
    with pytest.raises(InputError, match="unknown preset 'papr'; did you mean 'paper'"):
        preset("papr")
    with pytest.raises(ConfigProblems, match="preset: unknown preset 'papr'; did you mean 'paper'"):
        resolve({"preset": "papr"})
    with pytest.raises(InputError, match="preset: unknown preset 'alm'"):
        sweep("{name: a, grid: {preset: [alm], seed: [0]}}")


# What public code has, by name of its repository: see the presets' sources.
@pytest.mark.parametrize(
    ("name", "method", "expected"),
    [
        ("survey", "er", {"head": "linear", "views": "original", "softmax": "all", "class_order": "shuffled"}),
        ("survey", "mir", {"head": "linear", "params.move_statistics": True, "replay_current": True}),
        ("survey", "aser", {"batchnorm": "joint", "params.k": 3, "params.candidates": 9}),
        ("scr", "scr", {"replay_batch_size": 100, "params.temperature": 0.1, "params.review": True,
                        "batchnorm": "views"}),
        ("aml", "er", {"augment": "crop_flip", "views": "augmented", "pixels": "signed", "head": "linear", "lr": 0.1}),
        ("aml", "derpp", {"lr": 0.01, "params.alpha": 0.25, "params.beta": 1.0, "class_order": "natural"}),
        ("aml", "iid", {"lr": 0.01, "head": "linear"}),
        ("aml", "er_ace", {"gamma": 10.0, "params.stream_classes": "batch", "head": "cosine"}),
        ("mir", "mir", {"replay_current": False, "pixels": "signed", "augment": "none", "params.candidates": 50}),
        ("mammoth", "derpp", {"lr": 0.03, "normalise": True, "params.alpha": 0.2, "params.beta": 0.5}),
        ("gmed", "gmed", {"batchnorm": "joint", "params.regulariser": "plus", "views": "original"}),
        ("dvc", "er_dvc", {"augment": "dvc", "views": "both", "params.dl": 2.0, "softmax": "all"}),
        ("wa", "er_wa", {"params.norm": "l1", "params.clip": True, "params.clamp": True, "softmax": "seen"}),
        ("resnet18_adam", "pcr", {"betas": [0.9, 0.999], "weight_decay": 0.0, "normalise": False, "augment": "paper",
                                  "class_order": "shuffled", "model": "resnet18", "replay_batch_size": 64}),
        ("ocm", "ocm", {"model": "resnet18", "softmax": "all", "params.halve": True, "optimiser": "adam"}),
    ],
)  # fmt: skip
def test_a_preset_says_what_its_source_does(name: str, method: str, expected: dict[str, Any]) -> None:
    flat = resolve({"preset": name, "method": method, "dataset": "cifar10"}).flat()
    assert {k: flat[k] for k in expected} == expected


def test_authors_is_for_each_baseline_the_preset_of_its_authors_and_for_others_the_papers() -> None:
    like = preset("authors").like
    for method in METHODS.names():
        raw = {"method": method, "dataset": "cifar10", "buffer": 500}
        ours, theirs = (resolve({**raw, "preset": p}) for p in ("authors", like.get(method, "paper")))
        assert identity(ours) == identity(theirs) and ours.preset == "authors"
    baselines = "agem aser derpp er er_ace er_dvc er_wa finetune gmed gss iid mir ocm scr ss_il"
    assert sorted(like) == baselines.split()  # a method that is added needs no preset


@pytest.mark.parametrize(
    ("buffer", "alpha", "beta"), [(100, 0.1, 0.5), (200, 0.1, 0.5), (499, 0.1, 0.5), (1000, 0.2, 0.5), (5120, 0.1, 1.0)]
)
def test_the_largest_memory_that_is_not_above_the_trials_decides(buffer: int, alpha: float, beta: float) -> None:
    assert resolve({"preset": "mammoth", "method": "derpp", "buffer": buffer}).params == {"alpha": alpha, "beta": beta}


def test_what_is_given_wins_over_the_preset() -> None:
    raw = {"preset": "aml", "method": "derpp", "lr": 0.2}
    for own in ({"params": {"alpha": 0.7}}, {"params.alpha": 0.7}):
        config = resolve(raw | own)
        assert (config.lr, config.params, config.augment) == (0.2, {"alpha": 0.7, "beta": 1.0}, "crop_flip")


@pytest.mark.parametrize("name", ["survey", "mir", "gmed"])
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"augment": "crop_flip"}, ("crop_flip", "both")),
        ({"views": "augmented"}, ("paper", "augmented")),
        ({"augment": "dvc", "views": "augmented"}, ("dvc", "augmented")),
        ({"augment": "paper", "views": "original"}, ("none", "original")),
        ({"augment": "none"}, ("none", "original")),
        ({}, ("none", "original")),
    ],
)
def test_an_augmentation_that_is_given_wins_over_a_preset_without_one(
    name: str, given: dict[str, Any], expected: tuple[str, str]
) -> None:
    raw = {"preset": name, "method": "er", **given}
    fixed = "{" + ", ".join(f"{k}: {v}" for k, v in raw.items()) + "}"
    (trial,) = sweep(f"{{name: a, fixed: {fixed}, grid: {{seed: [0]}}}}").trials.values()
    assert trial == resolve(raw) and (trial.augment, trial.views) == expected


def test_the_name_is_a_label_and_no_part_of_the_identity(root: Path) -> None:
    named = resolve({"preset": "survey", "method": "er", "fraction": 0.02, "buffer": 20})
    spelled_out = resolve({k: v for k, v in named.model_dump().items() if k != "preset"})
    assert spelled_out.preset is None and identity(named) == identity(spelled_out)
    assert resolve(named.model_dump()) == named
    first, second = (Learner(c, root=root, device="cpu") for c in (named, spelled_out))
    first.run_task()
    second.load_state_dict(first.state_dict())  # the same trial: it continues
    assert second.tasks_done == 1


def test_a_sweep_files_preset_differs_by_method_and_grid_and_adjust_win() -> None:
    trials = sweep(
        "{name: a, presets: [aml], fixed: {params.beta: 0.9}, grid: {method: [derpp], lr: [0.5], seed: [0]}, "
        "adjust: [{when: {method: derpp}, set: {params.alpha: 0.3}}]}"
    ).trials.values()
    assert [(t.lr, t.params, t.class_order) for t in trials] == [(0.5, {"alpha": 0.3, "beta": 0.9}, "natural")]
    trials = sweep("{name: a, presets: [aml], grid: {method: [er, derpp, iid], seed: [0]}}").trials.values()
    assert {t.method: (t.lr, t.head) for t in trials} == {
        "er": (0.1, "linear"), "derpp": (0.01, "linear"), "iid": (0.01, "linear")
    }  # fmt: skip


@pytest.mark.parametrize("file", ["presets: [paper]", "fixed: {preset: paper}", "fixed: {buffer: 1000}"])
def test_a_rule_may_give_some_trials_another_preset(file: str) -> None:
    rule = "{when: {method: derpp}, set: {preset: mammoth, lr: 0.5}}"
    grid = "{method: [er, derpp], augment: [none], seed: [0]}"
    found = sweep(f"{{name: a, {file}, grid: {grid}, adjust: [{rule}]}}")
    trial = next(t for t in found.trials.values() if t.method == "derpp")
    own = {"method": "derpp", "preset": "mammoth", "lr": 0.5, "augment": "none"}
    assert trial == resolve(own) and (trial.softmax, trial.normalise) == ("all", True)


def test_a_preset_speaks_of_the_memory_that_a_rule_or_a_search_gives() -> None:
    file = "name: a, fixed: {preset: mammoth, dataset: digits}, grid: {method: [derpp], seed: [0]}"
    found = sweep(f"{{{file}, adjust: [{{when: {{method: derpp}}, set: {{buffer: 6000}}}}]}}")
    assert [t.params for t in found.trials.values()] == [{"alpha": 0.1, "beta": 1.0}]
    found = sweep(
        f"{{{file}, search: {{samples: 1, tune_on: {{tasks: 1}}, space: {{buffer: {{integer: [100, 9000]}}}}}}}}"
    )
    ((_, given),) = combinations(found.spec)
    assert [t.params for t in tuning_trials(found, given, {"buffer": 6000}).values()] == [{"alpha": 0.1, "beta": 1.0}]


def test_the_papers_number_does_not_stand_beside_another_preset_that_a_rule_gives() -> None:
    row = "{preset: paper, method: er, value: 46.1}"
    file = f"name: a, presets: [paper], grid: {{method: [er], seed: [0]}}, report: {{paper: [{row}]}}"
    for rule, shown in (("lr: 0.03", True), ("preset: aml", False)):
        found = sweep(f"{{{file}, adjust: [{{when: {{method: er}}, set: {{{rule}}}}}]}}")
        (trial,) = found.trials.values()
        assert (row_of(found.spec, trial, "softmax") is not None) == shown


def test_a_grid_may_vary_the_preset_and_only_what_the_file_varies_splits_tables() -> None:
    found = sweep(
        "{name: a, fixed: {buffer: 50}, grid: {seed: [0]}, "
        "grids: [{preset: [paper], method: [er, derpp]}, {preset: [aml, mammoth], method: [derpp]}]}"
    )
    assert {(t.method, t.preset, t.lr) for t in found.trials.values()} == {
        ("er", "paper", 0.1), ("derpp", "paper", 0.1), ("derpp", "aml", 0.01), ("derpp", "mammoth", 0.03)
    }  # fmt: skip
    assert found.varying == ["preset", "method"]


def test_a_rule_sees_what_a_preset_says() -> None:
    found = sweep("{name: a, grid: {preset: [paper, aml], method: [er], seed: [0]}, exclude: [{class_order: natural}]}")
    assert [t.preset for t in found.trials.values()] == ["paper"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], {"params.alpha": 0.2, "params.beta": 0.5, "lr": 0.03}),
        (["--buffer", "200"], {"params.alpha": 0.1, "lr": 0.03}),
        (["--buffer", "1_000"], {"buffer": 1000, "params.alpha": 0.2}),
        (["--buffer", "6000.0"], {"buffer": 6000, "params.beta": 1.0}),
        (["--params", "alpha=0.9", "--lr", "0.5"], {"params.alpha": 0.9, "params.beta": 0.5, "lr": 0.5}),
    ],
)
def test_train_starts_from_a_preset(options: list[str], expected: dict[str, Any]) -> None:
    config = trial_config(parser().parse_args(["--preset", "mammoth", "--method", "derpp", *options]))
    assert {k: config.flat()[k] for k in expected} == expected


@pytest.mark.parametrize("buffer", ["9" * 5000, "many"])
def test_a_memory_that_is_no_number_is_one_message(buffer: str) -> None:
    with pytest.raises(InputError, match="1 problem\n  - buffer: "):
        trial_config(parser().parse_args(["--preset", "mammoth", "--method", "derpp", "--buffer", buffer]))


# What is shown.


def test_presets_are_listed_with_sources_and_shown_with_their_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(name in shown for name in PRESETS)
    assert main(["presets", "mammoth"]) == 0
    shown = capsys.readouterr().out
    assert "github.com/aimagelab/mammoth" in shown and "params.alpha: 0.2" in shown and "lr: 0.03" in shown
    assert run(main, ["presets", "mamoth"]) == 2
    assert "did you mean 'mammoth'" in capsys.readouterr().err
    page = presets_markdown()
    assert all(f"| [{n}](#{n}) | {n} |" in page for n in ("ocm", "scr"))  # the methods that the source has


@NAMES
def test_every_field_of_a_preset_is_on_the_page_as_a_sweep_file_would_have_it(name: str) -> None:
    section = presets_markdown().partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    blocks = [yaml.safe_load(b.partition("\n```")[0]) for b in section.split("```yaml\n")[1:]]
    found = preset(name)
    said = [json.loads(json.dumps(dict(f))) for f in (found.fields, *found.methods.values()) if f]
    said += [dict(f) for sizes in found.buffers.values() for f in sizes.values()]
    assert blocks == said
    assert all(f"- {method}: as in [{other}](#{other})" in section for method, other in found.like.items())
