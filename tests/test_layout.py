"""The layout: imports point down, rooms keep to themselves, and the README shows the tree as it is."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent

# From the bottom up. A module may import what stands lower, and its own line without going in circles.
LAYERS = [
    "__init__ config console errors lazy registry sources text",
    "datasets device",
    "augment checkpoints memory metrics models seeds stream",
    "methods",
    "identity learner plugins provenance",
    "study",
    "tracking",
    "analysis clusters execution",
    "api contract",
    "__main__ bench check cli completion fetch listing new report status submit sweep train ui",
]
PLACE = {room: level for level, rooms in enumerate(LAYERS) for room in rooms.split()}
APART = {"analysis", "clusters", "execution"}  # of one layer, and none of them imports another


def modules() -> dict[str, Path]:
    files = [f for folder in ("pcr_ray", "trainables") for f in (REPOSITORY / folder).rglob("*.py")]
    return {".".join(f.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): f for f in files}


MODULES = modules()


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """Everything inside, functions included, but what is there for type checkers only."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield other
                yield from executed(other)
        else:
            yield child
            yield from executed(child)


def imports(module: str) -> set[str]:
    """The modules that this one imports, of the project with their full name, others by their package."""
    found: set[str] = set()
    for node in executed(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: relative imports hide the graph"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            ours = name if name in MODULES else name.rpartition(".")[0]
            found.add(ours if ours in MODULES else name.split(".")[0])
    return found - {module}


GRAPH = {module: imports(module) for module in MODULES}
GRAPH["pcr_ray"] = set()  # it re-exports the interface of `api` when somebody asks for it


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def ours(module: str) -> bool:
    return module == "pcr_ray" or module.startswith("pcr_ray.")


def test_every_module_has_its_place() -> None:
    rooms = {room(m) for m in MODULES if ours(m)}
    assert rooms <= PLACE.keys()
    assert len(MODULES) > 60


@pytest.mark.parametrize("module", [m for m in MODULES if ours(m) and m != "pcr_ray"])
def test_imports_point_down(module: str) -> None:
    mine = room(module)
    for other in GRAPH[module]:
        if ours(other) and room(other) != mine:
            assert PLACE[room(other)] <= PLACE[mine], f"{module} imports {other}, which stands above it"
            assert not {mine, room(other)} <= APART, f"{module} imports {other}: rooms of one layer stay apart"


def test_no_circles() -> None:
    state: dict[str, str] = {}

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert state.get(module) != "open", f"a circle: {' -> '.join((*path, module))}"
        if module in state or module not in GRAPH:
            return
        state[module] = "open"
        for other in sorted(GRAPH[module]):
            visit(other, (*path, module))
        state[module] = "closed"

    for module in GRAPH:
        visit(module, ())


def test_ray_and_mlflow_have_one_room_each_and_nothing_knows_the_trainables() -> None:
    who = {name: {room(m) for m in MODULES if ours(m) and name in GRAPH[m]} for name in ("ray", "mlflow")}
    assert who["ray"] <= {"execution", "clusters"} and who["mlflow"] == {"tracking"}
    assert not [m for m in MODULES if ours(m) and any(o.startswith("trainables") for o in GRAPH[m])]
    for module in (m for m in MODULES if m.startswith("trainables.")):
        for other in filter(ours, GRAPH[module]):
            assert PLACE[room(other)] <= PLACE["learner"], f"{module} imports {other}"


def test_what_is_asked_needs_neither_torch_nor_ray_nor_mlflow() -> None:
    """Every module of the room, and all that it imports, in a process of its own."""
    names = sorted(m for m in MODULES if m.startswith("pcr_ray.study"))
    code = f"""
import importlib, sys
for name in {names!r}:
    importlib.import_module(name)
from pcr_ray.methods import METHODS
from pcr_ray.datasets import DATASETS
assert len(METHODS.names()) > 15 and len(DATASETS.names()) > 3
print([m for m in ("torch", "torchvision", "ray", "mlflow", "pandas", "sklearn") if m in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0), (["--version"], 0), (["sweep", "--help"], 0), (["train", "--help"], 0), (["methods"], 0),
        (["sweep", "sweeps/nowhere.yaml"], 2), (["sweep", "README.md"], 2), (["sweep", "sweeps/paper/table1.csv"], 2),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)  # fmt: skip
def test_quick_answers_import_nothing_heavy(arguments: list[str], code: int) -> None:
    """torch, ray and MLflow take seconds each."""
    script = f"""
import sys
from pcr_ray.console import run
from pcr_ray.cli import main
try:
    code = run(main, {arguments!r})
except SystemExit as end:
    code = end.code
heavy = [m for m in ("torch", "ray", "mlflow", "pandas", "matplotlib") if m in sys.modules]
print("\\n", code, heavy)
"""
    run = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1].strip() == f"{code} []", run.stdout + run.stderr


def test_a_dry_run_that_needs_no_calibration_imports_no_torch(tmp_path: Path) -> None:
    """The trials of the record are all done; MLflow is asked, torch and ray are not."""
    from pcr_ray.study.load import load
    from pcr_ray.tracking.store import Store
    from tests.recorded import deliver

    file = tmp_path / "study.yaml"
    file.write_text("{name: study, fixed: {dataset: digits, tasks: 2}, grid: {method: [pcr], seed: [0]}}")
    store = Store(f"sqlite:///{tmp_path / 'mlflow.db'}")
    deliver(store, load(file), tmp_path)
    script = f"""
import sys
from pcr_ray.sweep import main
code = main([{str(file)!r}, "--dry-run", "--tracking-uri", {store.uri!r}, "--data-root", {str(tmp_path)!r}])
print(code, [m for m in ("torch", "ray", "matplotlib") if m in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "0 []", run.stdout
    assert "1 done, 0 to run" in run.stdout


def test_importing_changes_no_environment() -> None:
    code = f"""
import importlib, os
before = dict(os.environ)
for name in {sorted(m for m in MODULES if m != "pcr_ray.__main__")!r}:
    importlib.import_module(name)
changed = sorted(k for k in set(before) | set(os.environ) if before.get(k) != os.environ.get(k))
print([k for k in changed if k.startswith(("MLFLOW", "PCR", "TUNE", "PYTHON", "RAY_AIR"))])
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_the_readme_shows_the_tree_as_it_is() -> None:
    section = (REPOSITORY / "README.md").read_text().split("## Layout")[1].split("```")[1]
    named = set(re.findall(r"[a-z_]+(?:\.py|/)", section))
    top = REPOSITORY / "pcr_ray"
    there = {f.name for f in top.glob("*.py") if not f.name.startswith("__")}
    there |= {f"{f.name}/" for f in top.iterdir() if (f / "__init__.py").exists()}
    there |= {f"{name}/" for name in ("pcr_ray", "trainables", "sweeps", "deploy", "benchmarks", "tests", "docs")}
    assert there - named == set(), "in the tree and not in the README"
    paths = [*top.rglob("*"), *REPOSITORY.glob("*/"), *REPOSITORY.glob("[a-z]*/*")]
    real = {f"{p.name}/" if p.is_dir() else p.name for p in paths}
    assert named - real == set(), "in the README and not in the tree"
