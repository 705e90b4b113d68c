"""Which code made a number: version, commit, and a fingerprint of the sources that can change it.

The fingerprint covers the learner's parts, the method's file and what it imports, the dataset's file and torch's
version. Comments and docstrings do not count. It is recorded beside a trial's numbers and is no part of its identity:
changed code is told, and trials are run again on request.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from pcr_ray import __version__, sources
from pcr_ray.config import TrialConfig
from pcr_ray.datasets import DATASETS
from pcr_ray.errors import InputError
from pcr_ray.identity import TRAINABLE
from pcr_ray.methods import METHODS

PACKAGE = Path(__file__).parent
UNKNOWN = "its code was not recorded"
LEARNER = "pcr_ray.learner"
# What the learner imports and no number depends on: how trials are described, named, stored and found.
NUMBERLESS = ("checkpoints", "config", "errors", "identity", "lazy", "registry", "sources", "text")
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
    sources.look_again()
    for cached in (_code, commit):
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
        file = sources.module_file(top)
        if file is None:
            raise InputError(f"--ship: '{top}' is not a package that can be found here")
        found.append(file.parent if file.name == "__init__.py" else file)
    return found


@lru_cache(maxsize=1024)
def _code(method: str, dataset: str, trainable: str) -> Code:
    roots = [LEARNER, METHODS.get(method).__module__, DATASETS.get(dataset).__module__]
    if trainable != TRAINABLE:
        roots.append(trainable.partition(":")[0])
    for kind, name, module in (("method", method, roots[1]), ("dataset", dataset, roots[2])):
        if module == "__main__" or sources.module_file(module) is None:
            raise InputError(
                f"{kind} '{name}' is defined in {module}, which workers cannot import: put it into a file of its "
                "own and name that with plugins"
            )
    try:
        files = sources.closure(roots, WITHOUT_EFFECT)
        found = {sources.shown(module, file): sources.digest(file) for module, file in files.items()}
    except SyntaxError as error:
        raise InputError(f"{error.filename} is part of a trial's code and cannot be read as Python: {error}") from None
    found["torch"] = metadata.version("torch").partition("+")[0]
    return Code(__version__, commit(), dict(sorted(found.items())))


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
