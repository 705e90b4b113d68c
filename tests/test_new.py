"""`pcr-ray new` writes what `pcr-ray check` accepts; `check FILE` finds what a method or dataset does wrong."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from pcr_ray import new, plugins
from pcr_ray.cli import main
from pcr_ray.console import run
from pcr_ray.contract import DATASET_CHECKS, METHOD_CHECKS, Broken
from tests.sweeping import environment


def pcr_ray(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pcr_ray", *words]
    return subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False)


def test_what_is_written_passes_the_check_and_trains(tmp_path: Path) -> None:
    assert pcr_ray(tmp_path, "new", "method", "my_method").returncode == 0
    assert pcr_ray(tmp_path, "new", "dataset", "my_data").returncode == 0
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = pcr_ray(tmp_path, "check", "my_method.py", "my_data.py", "--data-root", "data")
    assert done.returncode == 0, done.stdout + done.stderr
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 60  # 14 s on one core, however busy
    *lines, last = done.stdout.splitlines()
    total = len(METHOD_CHECKS) + len(DATASET_CHECKS)
    assert [line.split()[0] for line in lines] == ["ok"] * total and last == f"0 of {total} checks failed"
    trial = pcr_ray(
        tmp_path, "train", "--plugins", "my_method.py", "--plugins", "my_data.py", "--method", "my_method",
        "--dataset", "my_data", "--params", "alpha=0.5", "--buffer", "20", "--data-root", "data",
    )  # fmt: skip
    assert trial.returncode == 0 and "final accuracy" in trial.stdout, trial.stdout + trial.stderr


BIT_FOR_BIT = "repeats itself, and continues from a checkpoint bit for bit"
FAULTS = [  # text -> its replacement, the check that has to notice, what it says
    ("return total", "return total * float(total > 0)", "no step waits for the device", "a step waits for the device"),
    (
        "total = views[0].images.new_zeros(())", "total = 0 * __import__('torch').rand(())", BIT_FOR_BIT,
        "it draws from torch's global generator",
    ),
    (  # a count that no checkpoint keeps
        "return total", "self.calls = getattr(self, 'calls', 0) + 1\n        return total / self.calls", BIT_FOR_BIT,
        "a second run, continued from a checkpoint, differs in",
    ),
    (
        'idea = "cross-entropy on the stream and, weighted, on replay"', 'idea = ""', "says what it is",
        "`idea` has to",
    ),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_a_fault_is_found_by_the_check_that_looks_for_it(number: int, tmp_path: Path, root: Path) -> None:
    fault, instead, check, message = FAULTS[number]
    name = f"broken_{number}"
    text = new.text_of("method", name)
    assert fault in text
    (tmp_path / f"{name}.py").write_text(text.replace(fault, instead))
    plugins.load([str(tmp_path / f"{name}.py")])
    try:
        with pytest.raises(Broken, match=message):
            METHOD_CHECKS[check](name, root)
    finally:
        plugins._forget(name)
        sys.path.remove(str(tmp_path))


def test_an_error_is_a_line_with_its_place(tmp_path: Path) -> None:
    text = new.text_of("method", "broken").replace("self.params.alpha)", "self.parms.alpha)")
    (tmp_path / "broken.py").write_text(text)
    line = 1 + text[: text.index("self.parms.alpha")].count("\n")
    done = pcr_ray(tmp_path, "check", "broken.py")
    failed = [line for line in done.stdout.splitlines() if line.startswith("failed")]
    assert done.returncode == 1 and len(failed) == len(METHOD_CHECKS) - 1 and "Traceback" not in done.stderr
    assert all(f"no attribute 'parms' (broken.py, line {line})" in text for text in failed), done.stdout


def test_a_dataset_with_faults_is_told_which(tmp_path: Path) -> None:
    text = new.text_of("dataset", "broken").replace("default_rng(0)", "default_rng()")
    (tmp_path / "broken.py").write_text(text.replace("400, 100", "400, 120").replace("4, 2, 16", "4, 3, 16"))
    done = pcr_ray(tmp_path, "check", "broken.py", "--data-root", "data")
    assert done.returncode == 1
    assert "4 classes do not fall into 3 tasks" in done.stdout and "read twice, the images differ" in done.stdout


def test_nothing_is_written_over_and_bad_names_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("x")
    refused = {
        ("method", "mine"): "mine.py exists already",
        ("method", "er"): "method 'er' is there already",
        ("dataset", "json"): "Python has a module 'json' already",
        ("method", "My-Method"): "use small letters",
        ("method", "fine", "--out", "fine.txt"): "not the name of a Python file",
    }
    for words, message in refused.items():
        assert run(main, ["new", *words]) == 2
        assert message in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["mine.py"] and (tmp_path / "mine.py").read_text() == "x"


def test_a_file_that_registers_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nothing.py").write_text("x = 1\n")
    done = pcr_ray(tmp_path, "check", "nothing.py")
    assert done.returncode == 2 and "registers no method and no dataset; pcr-ray new" in done.stderr
