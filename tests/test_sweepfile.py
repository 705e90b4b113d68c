"""Sweep files: what they expand to, and that every problem of a file is said at once with its place."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pcr_ray.cli import main
from pcr_ray.config import ALIASES, FIELDS, NOTES
from pcr_ray.console import run
from pcr_ray.errors import InputError
from pcr_ray.study import load as sweepfile
from pcr_ray.study.reader import read_yaml
from tests.sweeping import run_sweep

SHIPPED = sorted((Path(__file__).parent.parent / "sweeps").glob("*.yaml"))


def parse(text: str, *overrides: str) -> sweepfile.Sweep:
    return sweepfile.parse(yaml.safe_load(text), "a file", list(overrides))


def problems(text: str, *overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        parse(text, *overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


BASE = "{name: a, fixed: {dataset: digits}, grid: {method: [pcr, er], buffer: [50, 100], seed: {range: [0, 3]}}}"


@pytest.mark.parametrize("file", SHIPPED, ids=lambda f: f.stem)
def test_every_shipped_sweep_is_valid_and_named_like_its_file(file: Path) -> None:
    sweep = sweepfile.load(file)
    assert sweep.trials and sweep.name == file.stem and sweep.spec.report.question


def test_a_grid_is_every_combination_and_range_excludes_its_end() -> None:
    sweep = parse(BASE)
    seen = {(t.method, t.buffer, t.seed) for t in sweep.trials.values()}
    assert seen == {(m, b, s) for m in ("pcr", "er") for b in (50, 100) for s in (0, 1, 2)}
    assert sweep.varying == ["method", "buffer", "seed"]


def test_several_grids_are_united_and_share_the_common_grid() -> None:
    sweep = parse(
        "{name: a, grid: {seed: [0, 1]}, grids: [{dataset: [cifar10], buffer: [100]}, "
        "{dataset: [cifar100], buffer: [500, 1000]}]}"
    )
    seen = {(t.dataset, t.buffer, t.seed) for t in sweep.trials.values()}
    assert seen == {(d, b, s) for d, b in (("cifar10", 100), ("cifar100", 500), ("cifar100", 1000)) for s in (0, 1)}


def test_presets_come_first_fixed_overrides_them_and_exclude_drops() -> None:
    sweep = parse(
        "{name: a, presets: [paper], fixed: {lr: 0.5}, grid: {method: [pcr, er], seed: [0, 1]}, "
        "exclude: [{method: er, seed: [1, 2]}]}"
    )
    assert {t.lr for t in sweep.trials.values()} == {0.5}
    assert {(t.method, t.seed) for t in sweep.trials.values()} == {("pcr", 0), ("pcr", 1), ("er", 0)}


def test_all_problems_of_a_file_are_in_one_message_with_their_places() -> None:
    text = problems(
        """
        name: a
        gird: {seed: [1]}
        fixed: {datset: digits, lr: 1e-3}
        grid: {methd: [pcr], buffer: [0], batch_size: [], seed: 3, tasks: [11]}
        resources: many
        report: {x: bufer}
        """
    )
    for part in (
        "gird: unknown key; did you mean 'grid'?",
        "fixed.datset: unknown key; did you mean 'dataset'?",
        "grid.methd: unknown key; did you mean 'method'?",
        "grid.batch_size: an empty list",
        "grid.seed: expected a list",
        "fixed.lr: input should be a valid number, got '1e-3' (YAML reads 1e-3 as text: write 0.001)",
        "grid.buffer: 0, but method 'pcr' replays from memory",
        "grid.tasks: 11 tasks, but 'digits' has 10 classes",
        "resources: expected 'auto' or a mapping with cpu and gpu, got 'many'",
        "report.x: unknown field 'bufer'; did you mean 'buffer'?",
    ):
        assert part in text, f"{part!r} is not in:\n{text}"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{name: a, grid: {seed: [0, 0]}}", "twice"),
        ("{name: a, grids: [{seed: [0]}, {seed: [0, 1]}]}", "duplicates"),
        ("{name: a, fixed: {seed: 1}, grid: {seed: [0]}}", "also in 'fixed'"),
        ("{name: a, grid: {seed: {range: [3, 3]}}}", "is empty"),
        ("{name: a, grid: {seed: {range: [0, x]}}}", "two whole numbers"),
        ("{name: a, grid: {seed: [true]}}", "valid integer"),
        ("{name: a, grid: {seed: [0.5]}}", "valid integer"),
        ("{name: a, grid: {dataset: [{eval: 1+1}], seed: [0]}}", "valid string"),
        ("{name: a, grid: {}}", "grid: empty"),
        ("{name: ../a, grid: {seed: [0]}}", "name"),
        ("{name: a, grid: {seed: [0]}, exclude: [{seed: 0}]}", "nothing is left"),
        ("{name: a, grid: {seed: {range: [0, 90000]}, buffer: [1, 2]}}", "more than 100,000 trials"),
        ("{name: a, grid: {seed: [0]}, presets: [papr]}", "did you mean 'paper'?"),
        (
            "{name: a, grid: {seed: [0]}, resources: {cpu: 0}}",
            "1 problem\n  - resources.cpu: input should be",
        ),
        ("{grid: {seed: [0]}, fixed: []}", "name: field required\n"),
        ("{name: a/b, grid: {seed: [0]}}", "name: use letters, digits"),
        ("{name: a, grid: {method: [derpp, er], params.alpha: [0.1]}}", "give each method with it an entry in grids"),
        ("{name: a, grid: {seed: [0]}, report: {paper: nowhere.csv}}", "nowhere.csv does not exist (looked for beside"),
        ("{name: a, grid: {seed: [0], params: [{alpha: 1}]}}", "write params.NAME"),
        ("{name: a, grid: {seed: [0]}, report: {y: final_acuracy}}", "did you mean 'final_accuracy'?"),
        ("{name: a, grid: {seed: [0]}, report: {paper: [{metod: pcr, value: 1}]}}", "did you mean 'method'?"),
        ("{name: a, grid: {seed: [0]}, report: {paper: [{value: abc}]}}", "'value' is not a number"),
        ("{name: a, grid: {seed: [0]}, report: {paper: [{value: 1, ci: null}]}}", "'ci' is not a number"),
        ("{name: a, grid: {seed: [0]}, report: {classifiers: [ncm, ncm]}}", "each once"),
        ("{name: a, grid: {seed: [0]}, report: {serie: method}}", "report.serie: unknown key; did you mean 'series'?"),
        (
            "{name: a, grid: {sed: [0]}, retries: many}",
            "retries: input should be a valid integer, got 'many'\n  - grid.sed",
        ),
        ("{name: a, grid: {seed: [0]}, resources: {cpu: 1.0e-320}}", "greater than or equal"),
        ("{name: a, grid: {seed: [0]}, resources: {cpu: .inf}}", "less than or equal"),
        ("[1, 2]", "expected a mapping with 'name' and 'grid', got a list"),
        ("", "expected a mapping with 'name' and 'grid', got nothing"),
        ("a b", "expected a mapping with 'name' and 'grid', got text"),
        ("3", "expected a mapping with 'name' and 'grid', got 3"),
    ],
)
def test_what_cannot_be_run_is_refused(text: str, part: str) -> None:
    assert part in problems(text)


def test_combinations_that_a_method_cannot_tell_apart_run_once() -> None:
    sweep = parse("{name: a, grid: {method: [pcr, finetune], buffer: [50, 100], seed: [0]}}")
    assert len(sweep.trials) == 3 and sweep.collapsed == 1


def test_overrides_set_dotted_keys_and_move_fields_between_fixed_and_grid() -> None:
    sweep = parse(BASE, "grid.seed=[7]", "fixed.method=er", "fixed.lr=1e-3", "report.x=buffer", "retries=0")
    assert {(t.method, t.seed, t.lr) for t in sweep.trials.values()} == {("er", 7, 0.001)}
    assert sweep.spec.report.x == "buffer" and sweep.spec.retries == 0
    assert "key=value" in problems(BASE, "grid.seed")


ADJUSTED = """{name: a, grid: {method: [pcr, ocm], seed: [0, 1]},
               adjust: [{when: {method: ocm}, set: {optimiser: adam, lr: 0.001}},
                        {when: {seed: [1]}, set: {lr: 0.2}}]}"""


def test_adjustments_give_some_trials_other_settings_and_the_last_one_wins() -> None:
    sweep = parse(ADJUSTED)
    seen = {(t.method, t.seed, t.optimiser, t.lr) for t in sweep.trials.values()}
    assert seen == {("pcr", 0, "sgd", 0.1), ("pcr", 1, "sgd", 0.2), ("ocm", 0, "adam", 0.001), ("ocm", 1, "adam", 0.2)}
    assert sweep.varying == ["method", "seed"], "a report compares methods, each as adjusted"
    assert {t.lr for t in parse(ADJUSTED, "fixed.lr=0.5").trials.values()} == {0.5}
    again = sweepfile.parse(yaml.safe_load(sweep.to_yaml()), "again")
    assert list(again.trials) == list(sweep.trials)


def test_an_adjustment_that_cannot_be_meant_is_refused() -> None:
    text = problems(
        """{name: a, grid: {method: [pcr, ocm], seed: [0, 1]}, exclude: [{method: err}],
            adjust: [{when: {method: omc}, set: {lr: 1.0}}, {when: {method: pcr}, set: {seed: 3, ler: 1}},
                     {when: {method: ocm}, set: {lr: -1.0}}]}"""
    )
    for part in (
        "exclude[0]: no trial of the file has {'method': 'err'}",
        "adjust[0].when: no trial of the file has {'method': 'omc'}",
        "adjust[1].set.seed: also in 'grid'",
        "adjust[1].set.ler: unknown key; did you mean 'lr'?",
        "adjust[2].set.lr: input should be greater than 0",
    ):
        assert part in text, f"{part!r} is not in:\n{text}"


def test_a_misspelt_rule_is_found_whatever_is_overridden_unless_it_is_replaced() -> None:
    text = "{name: a, grid: {method: [pcr, ocm]}, adjust: [{when: {method: omc}, set: {lr: 1.0}}]}"
    assert "{'method': 'omc'}" in problems(text, "fixed.buffer=100")
    assert len(parse(text, "adjust=[]").trials) == 2


def test_rules_know_defaults_ranges_and_fields_that_are_lists() -> None:
    text = "{name: a, fixed: {betas: [0.9, 0.99]}, grid: {method: [pcr], seed: {range: [0, 4]}}, exclude: [%s]}"
    for rule, seeds in (
        ("{seed: {range: [0, 3]}}", {3}),
        ("{lr: 0.1, seed: 2}", {0, 1, 3}),  # a default, not written in the file
        ("{betas: [0.9, 0.99], seed: [0, 1]}", {2, 3}),
    ):
        assert {t.seed for t in parse(text % rule).trials.values()} == seeds


def test_a_parameter_is_one_field_however_it_is_written() -> None:
    text = "{name: a, fixed: {method: derpp, %s}, grid: {seed: [0, 1]}, adjust: [{when: {seed: 1}, set: {%s}}]}"
    for fixed in ("params: {alpha: 0.3, beta: 0.7}", "params.alpha: 0.3, params.beta: 0.7"):
        for changed in ("params: {alpha: 0.9}", "params.alpha: 0.9"):
            trials = {t.seed: t.params for t in parse(text % (fixed, changed)).trials.values()}
            assert trials == {0: {"alpha": 0.3, "beta": 0.7}, 1: {"alpha": 0.9, "beta": 0.7}}
            trials = parse(text % (fixed, changed), "fixed.params={alpha: 0.6}").trials.values()
            assert [t.params["alpha"] for t in trials] == [0.6, 0.6]
    assert "adjust[0].set.params.foo" in problems(text % ("params.alpha: 0.3", "params: {foo: 1}"))


def test_a_sweep_written_out_with_its_overrides_applied_can_be_read_again() -> None:
    for overrides in (["grid.method=[pcr, er]"], ["fixed.dataset=digits"]):
        sweep = sweepfile.load(SHIPPED[0].parent / "table1.yaml", overrides)
        again = sweepfile.parse(yaml.safe_load(sweep.to_yaml()), "again", stored=True)
        assert list(again.trials) == list(sweep.trials)


def test_a_rule_that_an_override_leaves_without_use_does_no_harm() -> None:
    sweep = parse(ADJUSTED, "grid.method=[er]")
    assert {(t.method, t.seed, t.lr) for t in sweep.trials.values()} == {("er", 0, 0.1), ("er", 1, 0.2)}


def test_grids_that_an_override_makes_alike_run_once() -> None:
    text = "{name: a, grids: [{dataset: [cifar10], buffer: [100, 200]}, {dataset: [cifar100], buffer: [200, 300]}]}"
    sweep = parse(text, "fixed.dataset=digits")
    assert {(t.dataset, t.buffer) for t in sweep.trials.values()} == {("digits", b) for b in (100, 200, 300)}
    assert sweep.collapsed == 1


@pytest.mark.parametrize(
    ("text", "override", "part"),
    [
        ("{name: a, grid: {seed: [0]}, adjust: 5}", "grid.seed=[1]", "adjust: input should be a valid list"),
        ("{name: a, grid: {seed: [0]}, grids: 5}", "fixed.lr=1.0", "grids: input should be a valid list"),
        (BASE, "fixed.lr=2020-13-45", "not valid YAML"),
        (BASE, "fixed.lr=!!int x", "not valid YAML"),
        (BASE, "grid.seed=[0,", "found '<stream end>', line 1\n    [0,\n       ^"),
        (BASE, "fixed.lr=" + 3000 * "[", "not valid YAML"),
        (ADJUSTED, "adjust.0.set.lr=1.0", "'adjust' is a list; set it as a whole"),
        ("{name: a, fixed: [1], grid: {seed: [0]}}", "fixed.lr=1.0", "'fixed' is a list"),
    ],
)
def test_an_override_that_cannot_be_applied_is_refused(text: str, override: str, part: str) -> None:
    assert part in problems(text, override)


@pytest.mark.parametrize("text", ["description: 2020-13-45", "a: !!float x", 3000 * "["])
def test_what_yaml_cannot_read_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(InputError, match="not valid YAML"):
        sweepfile.load(tmp_path / "a.yaml")


def test_a_key_that_is_there_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("name: a\ngrid:\n  lr: [0.1]\n  seed: [0]\n  lr: [0.01]\n")
    with pytest.raises(InputError, match="key 'lr' twice in one mapping, line 5"):
        sweepfile.load(file)
    file.write_text("x: &x {lr: 0.1, seed: 1}\ny: {z: &z {<<: *x, lr: 0.2}}\nw: {<<: *z}\n")  # merging is no slip
    assert read_yaml(file.read_text())["w"] == {"lr": 0.2, "seed": 1}


def test_python_in_a_file_is_refused_not_run(tmp_path: Path) -> None:
    file = tmp_path / "evil.yaml"
    file.write_text(f"name: !!python/object/apply:os.system ['touch {tmp_path}/ran']\ngrid: {{seed: [0]}}\n")
    with pytest.raises(InputError, match="not valid YAML"):
        sweepfile.load(file)
    assert not (tmp_path / "ran").exists()


def test_a_missing_file_is_named_with_its_nearest_neighbour(tmp_path: Path) -> None:
    (tmp_path / "batchsize.yaml").write_text(BASE)
    with pytest.raises(InputError, match="did you mean 'batchsize'"):
        sweepfile.load(tmp_path / "batchsiz.yaml")


def test_a_sweep_s_name_suggests_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweeps").mkdir()
    Path("sweeps/study.yaml").write_text(BASE)
    Path("other.yaml").write_text(BASE)
    for typed, meant in (("study", "sweeps/study.yaml"), ("study.yaml", "sweeps/study.yaml"), ("other", "other.yaml")):
        with pytest.raises(InputError, match=f"{typed} does not exist; did you mean '{meant}'"):
            sweepfile.load(typed)


def test_a_sweep_written_out_and_read_again_has_the_same_trials() -> None:
    for sweep in (parse(BASE, "grid.seed=[1]"), sweepfile.load(SHIPPED[0])):
        again = sweepfile.parse(yaml.safe_load(sweep.to_yaml()), "again")
        assert list(again.trials) == list(sweep.trials) and again.spec.report == sweep.spec.report


def test_a_dry_run_shows_the_plan_and_leaves_nothing_behind(tmp_path: Path, root: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(BASE)
    result = run_sweep(tmp_path, root, "--dry-run")
    assert result.returncode == 0, result.stderr
    assert "12 trials over method, buffer, seed" in result.stdout and "12 to run" in result.stdout
    assert "forecast" in result.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.yaml"]


@pytest.mark.parametrize("option", ["--out", "--storage"])
def test_a_dry_run_refuses_folders_that_the_run_could_not_write(
    option: str, tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(BASE)
    common = ["sweep", str(file), "--dry-run", "--data-root", str(root), "--out", str(tmp_path / "out")]
    common += ["--tracking-uri", f"sqlite:///{tmp_path}/none.db", "--storage", str(tmp_path / "out/a/storage")]
    assert run(main, [*common, option, str(tmp_path / "new/place")]) == 0
    assert run(main, [*common, option, str(file / "below")]) == 2, "a file is no folder"
    assert f"error: {option} {file}" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.yaml"]


def test_a_bad_file_ends_with_exit_code_2_and_no_traceback(tmp_path: Path, root: Path) -> None:
    (tmp_path / "tiny.yaml").write_text("{name: a, grid: {sed: [0]}}")
    result = run_sweep(tmp_path, root)
    assert result.returncode == 2 and "did you mean 'seed'" in result.stderr
    assert "Traceback" not in result.stderr and [p.name for p in tmp_path.iterdir()] == ["tiny.yaml"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{name: a, lr: 0.1, grid: {seed: [0]}}", "lr: a field of a trial: put it under fixed, or under grid"),
        ("{name: a, learning_rate: 0.1, grid: {seed: [0]}}", "learning_rate: a field of a trial, here called lr: put"),
        ("{name: a, fixed: {optimizer: sgd}, grid: {seed: [0]}}", "optimizer: unknown key; here it is 'optimiser'"),
        ("{name: a, grid: {seed: [0], Batch-Size: [5]}}", "grid.Batch-Size: unknown key; here it is 'batch_size'"),
        ("{name: a, grid: {seed: [0], epochs: [5]}}", "grid.epochs: unknown key; each image of the stream is seen"),
    ],
)  # fmt: skip
def test_what_a_field_is_called_elsewhere_or_where_it_belongs_is_said(content: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        parse(content)
    assert message in str(raised.value)


def test_every_alias_means_a_field_and_hides_none() -> None:
    assert set(ALIASES.values()) <= set(FIELDS) and not (ALIASES.keys() | NOTES.keys()) & set(FIELDS)


def test_a_yaml_error_has_its_line_and_a_caret_below_it(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("name: a\ngrid:\n  seed: [0, 1\n  lr: [0.1]\n")
    with pytest.raises(InputError) as raised:
        sweepfile.load(file)
    first, line, caret = str(raised.value).splitlines()
    assert str(file) in first and first.endswith("line 4")
    assert line.strip() == "lr: [0.1]" and line[caret.index("^")] == ":"


def test_a_refused_run_leaves_nothing_behind(tmp_path: Path, root: Path) -> None:
    fixed = {"dataset": "folder", "folder": "nowhere", "image_size": 16, "tasks": 2}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({"name": "a", "fixed": fixed, "grid": {"seed": [0]}}))
    for more in ([], ["--dry-run"], ["--set", "trainable=no.such:Thing"], ["--set", "resources={cpu: 9999}"]):
        result = run_sweep(tmp_path, root, *more)
        assert result.returncode == 2, result.stdout + result.stderr
        assert [p.name for p in tmp_path.iterdir()] == ["tiny.yaml"], more
