"""Methods and datasets of one's own: registered like ours, part of a trial's code, and there where trials run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pcr_ray
from pcr_ray import plugins
from pcr_ray.cli import main
from pcr_ray.console import run
from pcr_ray.datasets import DATASETS
from pcr_ray.errors import InputError
from pcr_ray.methods import METHODS
from pcr_ray.provenance import code_of, look_again
from pcr_ray.study import load as study_files
from pcr_ray.study.reader import read_yaml
from pcr_ray.submit import make_job
from tests.sweeping import REPOSITORY, TINY, children, environment, run_sweep, sweep_file

METHOD = '''"""Plain ER, its loss scaled.

1. Nothing else.
"""
from pcr_ray.lazy import F
from pcr_ray.methods import METHODS
from pcr_ray.methods.er import ER
from _scale import SCALE


@METHODS.register("{name}")
class Mine(ER):
    title = "Mine"
    idea = "ER with a scaled loss"

    def loss(self, batch, memory):
        return SCALE * super().loss(batch, memory)
'''


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Path]:
    """A file with a method, and a helper beside it; gone from the process afterwards."""
    before = set(sys.modules), list(sys.path)
    file = tmp_path / "mine" / "my_method.py"
    file.parent.mkdir()
    file.write_text(METHOD.format(name="mine"))
    (file.parent / "_scale.py").write_text("SCALE = 1.0\n")
    yield file
    for name in set(sys.modules) - before[0]:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            plugins._forget(name)
            del sys.modules[name]
    sys.path[:] = before[1]
    look_again()


def study(folder: Path, *named: str, method: str = "mine") -> study_files.Study:
    return study_files.load(sweep_file(folder, plugins=list(named), grid={"method": [method], "seed": [0]}))


def test_a_file_is_found_beside_the_sweep_file_and_its_method_is_like_ours(plugin: Path) -> None:
    found = study(plugin.parent.parent, "mine/my_method.py")
    (trial,) = found.trials.values()
    assert trial.method == "mine" and METHODS.get("mine").title == "Mine"
    assert found.plugins == {str(plugin.parent): ["my_method"]}
    again = study_files.parse(read_yaml(found.to_yaml()), "as it was stored", stored=True)
    assert list(again.trials) == list(found.trials)  # a report needs no sweep file, where the plugin is there


def test_a_folder_and_a_package_bring_all_their_files_but_helpers(plugin: Path, tmp_path: Path) -> None:
    (plugin.parent / "other.py").write_text(METHOD.format(name="other_mine"))
    package = tmp_path / "mypack"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_scale.py").write_text("SCALE = 3.0\n")
    text = METHOD.format(name="packed").replace("from _scale", "from ._scale")
    (package / "loss.py").write_text(text)
    found = plugins.load(["mine", "mypack"], tmp_path)
    assert found == {str(plugin.parent): ["my_method", "other"], str(tmp_path): ["mypack", "mypack.loss"]}
    names = {name for modules in found.values() for _, name in plugins.registered(modules)}
    assert names == {"mine", "other_mine", "packed"}
    assert sorted(p.name for p in plugins.files(found)) == ["_scale.py", "my_method.py", "mypack", "other.py"]
    (trial,) = study(tmp_path, "mypack", method="packed").trials.values()
    assert {"mypack/loss.py", "mypack/_scale.py", "pcr_ray/methods/er.py"} <= code_of(trial).sources.keys()


def test_what_a_plugin_does_is_part_of_the_code_and_what_it_says_is_not(plugin: Path) -> None:
    (trial,) = study(plugin.parent.parent, str(plugin)).trials.values()
    before = code_of(trial)
    assert {"my_method.py", "_scale.py", "pcr_ray/methods/er.py", "pcr_ray/learner.py"} <= before.sources.keys()
    plugin.write_text(plugin.read_text() + "# a remark\n")
    look_again()
    assert code_of(trial).fingerprint == before.fingerprint
    (plugin.parent / "_scale.py").write_text("SCALE = 2.0\n")
    look_again()
    assert code_of(trial).fingerprint != before.fingerprint


def test_an_edited_plugin_is_imported_again(plugin: Path) -> None:
    plugins.load([str(plugin)])
    plugin.write_text(METHOD.format(name="mine").replace('"Mine"', '"Mine, second"'))
    plugins.load([str(plugin)])
    assert METHODS.get("mine").title == "Mine, second"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (METHOD.format(name="er"), r"method 'er' is there already, in .*methods/er\.py: choose another name"),
        ("import no_such_thing\n", r"ModuleNotFoundError: No module named 'no_such_thing' .*my_method\.py, line 1"),
        ("x = (\n", r"cannot be imported: SyntaxError: .*my_method\.py, line 1"),
        ("import sys\nsys.exit(3)\n", r"cannot be imported: SystemExit: 3 .*my_method\.py, line 2"),
    ],
    ids=["taken", "import", "syntax", "exit"],
)  # fmt: skip
def test_a_plugin_that_cannot_be_used_is_refused(
    plugin: Path, content: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin.write_text(content)
    with pytest.raises(InputError, match=message):
        plugins.load([str(plugin)])
    file = sweep_file(plugin.parent, plugins=["my_method.py"], grid={"seed": [0]})
    assert run(main, ["sweep", str(file), "--dry-run"]) == 2
    assert f"{file}: plugin {plugin}: " in capsys.readouterr().err
    assert METHODS.get("er").__module__ == "pcr_ray.methods.er"


def test_a_plugin_that_is_not_there_or_hides_a_module_is_refused(plugin: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file or folder \(.*nowhere\.py\), and no such module"):
        plugins.load(["nowhere.py"], tmp_path)
    (plugin.parent / "yaml.py").touch()
    with pytest.raises(InputError, match=r"a module 'yaml' is already there \(.*yaml/__init__\.py\): rename yours"):
        plugins.load([str(plugin.parent / "yaml.py")])
    with pytest.raises(InputError, match=r"plugin ~nosuchuser/x\.py: there is no such user"):
        plugins.load(["~nosuchuser/x.py"])
    with pytest.raises(InputError, match=r"tiny\.yaml: plugin ~nosuchuser/x\.py: there is no such user"):
        study(tmp_path, "~nosuchuser/x.py")
    with pytest.raises(InputError, match="holds no Python files"):
        (tmp_path / "empty").mkdir()
        plugins.load(["empty"], tmp_path)


def test_a_method_of_a_notebook_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(METHODS, "_items", dict(METHODS._items))
    METHODS.register("cell")(type("Cell", (METHODS.get("er"),), {"__module__": "__main__"}))
    (trial,) = study(tmp_path, method="cell").trials.values()
    with pytest.raises(InputError, match="method 'cell' is defined in __main__, which workers cannot import"):
        code_of(trial)


def test_a_submitted_job_takes_its_plugins_along(plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from argparse import Namespace

    from pcr_ray.clusters._files import absolute_arguments

    monkeypatch.chdir(tmp_path)
    file = sweep_file(tmp_path, grid={"method": ["mine"], "seed": [0]})
    job = make_job(Namespace(file=file, set=[], plugins=["mine/my_method.py"]))
    assert sorted(p.name for p in job.plugins) == ["_scale.py", "my_method.py"]
    assert read_yaml(job.text)["plugins"] == ["my_method"]  # on the import path there
    assert absolute_arguments(job) == ["--plugins", str(plugin)]  # where the file itself is read


def test_installed_packages_name_their_plugins(tmp_path: Path) -> None:
    """In a process of its own, with a package that is installed as far as Python can tell."""
    (tmp_path / "theirs.py").write_text(METHOD.format(name="theirs").replace("from _scale import SCALE", "SCALE = 1"))
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pcr_ray.plugins]\nsome = theirs\n")
    command = [sys.executable, "-m", "pcr_ray", "methods", "theirs"]
    env = environment(tmp_path) | {"PYTHONPATH": f"{REPOSITORY}:{tmp_path}"}
    shown = subprocess.run(command, env=env, capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert "Plain ER, its loss scaled." in shown.stdout
    (tmp_path / "theirs.py").write_text("import gone\n")
    broken = subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert broken.returncode == 2 and "Traceback" not in broken.stderr
    assert "plugin 'some' of the installed package theirs cannot be used: No module named 'gone'" in broken.stderr


DATASET = '''"""Two kinds of noise."""
import numpy as np
from pcr_ray.datasets import DATASETS, Dataset, Images


@DATASETS.register("noise")
class Noise(Dataset):
    title, how_to_get = "Noise", "Made up."
    classes, tasks, image_size = 4, 2, 16
    train_images, test_images = 80, 20

    def native(self, root):
        rng = np.random.default_rng(0)
        def some(n):
            labels = np.arange(n) % 4
            images = rng.integers(0, 60, (n, 16, 16, 3)) + 60 * labels[:, None, None, None]
            return Images(images.astype(np.uint8), labels)
        return some(80), some(20), ["a", "b", "c", "d"]
'''


@pytest.mark.slow
def test_a_sweep_runs_methods_and_datasets_of_plugins_in_its_workers(plugin: Path, root: Path) -> None:
    folder = plugin.parent.parent
    (plugin.parent / "noise.py").write_text(DATASET)
    fixed = {k: v for k, v in TINY.items() if k not in ("dataset", "tasks", "fraction")}
    sweep_file(folder, plugins=["mine/noise.py"], fixed=fixed, grid={"dataset": ["noise"], "method": ["mine", "er"]})
    done = run_sweep(folder, root, "--plugins", "mine/my_method.py")
    assert done.returncode == 0, done.stdout + done.stderr
    runs = children(f"sqlite:///{folder / 'mlflow.db'}")
    assert {(r.data.params["method"], r.data.params["dataset"], r.info.status) for r in runs.values()} == {
        ("mine", "noise", "FINISHED"), ("er", "noise", "FINISHED"),
    }  # fmt: skip
    mine, er = (next(r for r in runs.values() if r.data.params["method"] == m) for m in ("mine", "er"))
    assert mine.data.metrics["final_accuracy"] == er.data.metrics["final_accuracy"]  # the scale is 1: the same method
    (plugin.parent / "_scale.py").write_text("SCALE = 2.0\n")
    plan = run_sweep(folder, root, "--plugins", "mine/my_method.py", "--dry-run")
    assert "2 done (1 of them with other code: _scale.py), 0 to run" in plan.stdout
    report = subprocess.run(
        [sys.executable, "-m", "pcr_ray.report", "tiny", "--plugins", "mine"], cwd=folder, env=environment(folder),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert report.returncode == 0 and "Mine" in report.stdout, report.stderr


def test_a_plugins_own_mistake_is_not_called_a_bug_of_the_package(
    plugin: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.write_text(METHOD.format(name="mine").replace("return SCALE", "return SCALES"))
    words = ["train", "--method", "mine", "--fraction", "0.05", "--stop-after", "1", "--plugins", str(plugin)]
    assert run(main, words) == 1
    said = capsys.readouterr().err
    assert "NameError" in said and said.endswith(f"{plugin}, line 17, which is no part of pcr_ray\n")
    monkeypatch.setattr("pcr_ray.train.TrialConfig", None)  # now the mistake is ours
    assert run(main, words) == 1
    assert capsys.readouterr().err.endswith("this is a bug of pcr_ray\n")


def test_from_python(plugin: Path, tmp_path: Path) -> None:
    file = sweep_file(tmp_path, grid={"method": ["er"], "seed": [0]})
    found = pcr_ray.load(file, plugins=[plugin], grid={"method": ["mine"]}, name="other")
    assert found.name == "other" and [t.method for t in found.trials.values()] == ["mine"]
    assert "noise" not in DATASETS
