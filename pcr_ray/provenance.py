"""Which code made a number: version, commit, and a fingerprint of the sources that can change it.

The fingerprint covers the learner's parts, the method's file and what it imports, the dataset's file and torch's
version. Comments and docstrings do not count. It is recorded beside a trial's numbers and is no part of its identity:
changed code is told, and trials are run again on request.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from pcr_ray import __version__
from pcr_ray.config import TrialConfig
from pcr_ray.datasets import DATASETS
from pcr_ray.errors import InputError
from pcr_ray.identity import TRAINABLE
from pcr_ray.methods import METHODS

PACKAGE = Path(__file__).parent
UNKNOWN = "its code was not recorded"
LEARNER = "pcr_ray.learner"
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# What the learner imports and no number depends on: how trials are described, named, stored and found.
NUMBERLESS = ("checkpoints", "config", "errors", "identity", "lazy", "registry", "text")
WITHOUT_EFFECT = {"pcr_ray", *(f"pcr_ray.{name}" for name in NUMBERLESS)}


@dataclass(frozen=True)
class Code:
    """What made a trial's numbers; `sources` are files (and torch) with a hash or version of each."""

    version: str
    commit: str | None
    sources: Mapping[str, str]

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(dict(self.sources), sort_keys=True).encode()).hexdigest()[:12]


def code_of(config: TrialConfig, trainable: str = TRAINABLE) -> Code:
    """The code that runs such a trial here and now."""
    return _code(config.method, config.dataset, trainable)


def look_again() -> None:
    """Forget what was read: in a notebook files change between two runs of one process."""
    for cached in (_code, _imports, _digest, commit):
        cached.cache_clear()


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The sources that differ, in order."""
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))


def differences(recorded: Mapping[str, str] | None, trial: TrialConfig, trainable: str = TRAINABLE) -> list[str]:
    """What of the code that a trial was recorded with is different now."""
    return [UNKNOWN] if recorded is None else changed(recorded, code_of(trial, trainable).sources)


def packages(trainable: str = TRAINABLE) -> list[Path]:
    """The packages (or the file) that a worker needs to run such a trial: ours, and the trainable's own."""
    found = []
    for top in dict.fromkeys(["pcr_ray", trainable.partition(":")[0].split(".")[0]]):
        file = _file(top)
        if file is None:
            raise InputError(f"--ship: '{top}' is not a package that can be found here")
        found.append(file.parent if file.name == "__init__.py" else file)
    return found


@lru_cache(maxsize=1024)
def _code(method: str, dataset: str, trainable: str) -> Code:
    roots = [LEARNER, METHODS.get(method).__module__, DATASETS.get(dataset).__module__]
    if trainable != TRAINABLE:
        roots.append(trainable.partition(":")[0])
    sources = {_shown(file): _digest(file) for file in _closure(roots)}
    sources["torch"] = metadata.version("torch").partition("+")[0]
    return Code(__version__, commit(), dict(sorted(sources.items())))


def _closure(roots: Iterable[str]) -> list[Path]:
    """The files of these modules and of all that they import from the same packages."""
    found: dict[str, Path] = {}
    todo = list(roots)
    while todo:
        name = todo.pop()
        file = _file(name)
        if name in found or name in WITHOUT_EFFECT or file is None:
            continue
        found[name] = file
        package = name.split(".")[0]
        todo += [other for other in _imports(file) if other.split(".")[0] == package]
    return list(found.values())


@lru_cache(maxsize=1024)
def _file(module: str) -> Path | None:
    """Found without importing anything; None for what is no module, such as the name in `from module import name`."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        return None
    place = Path(spec.origin).parent.joinpath(*rest) if rest else Path(spec.origin).with_suffix("")
    return next((f for f in (place.with_suffix(".py"), place / "__init__.py") if f.is_file()), None)


@lru_cache(maxsize=1024)
def _imports(file: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


@lru_cache(maxsize=1024)
def _digest(file: Path) -> str:
    """Of what the file does: without comments, layout and docstrings."""
    tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node):
            node.body = node.body[1:]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:8]


def _shown(file: Path) -> str:
    """As a person looks for it: from the package's folder on, or a file's own name elsewhere."""
    return str(file.relative_to(PACKAGE.parent)) if file.is_relative_to(PACKAGE.parent) else file.name


@lru_cache(maxsize=1)
def commit() -> str | None:
    """Of the checkout that the package runs from, with `-dirty` where a tracked file was changed."""
    git = ["git", "-C", str(PACKAGE)]
    try:
        subprocess.run([*git, "ls-files", "--error-unmatch", "__init__.py"], capture_output=True, check=True, timeout=5)
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=5)
        state = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("-dirty" if state.stdout.strip() else "")
