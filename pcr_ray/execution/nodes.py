"""One check per node before anything starts: storage, data, code. Every problem of every node is in one message."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pcr_ray.config import TrialConfig
from pcr_ray.console import console
from pcr_ray.datasets import prepare
from pcr_ray.errors import PcrRayError, problems_error
from pcr_ray.execution.tuner import load_trainable
from pcr_ray.provenance import changed, code_of
from pcr_ray.study.schema import Resources
from pcr_ray.text import count, first_line

PATIENCE = 15.0  # seconds between lines about nodes that have not answered, because they prepare data


def check(trials: Iterable[TrialConfig], trainable: str, storage: str, root: Path, resources: Resources) -> None:
    """Ask every node that can run trials; data are prepared there on the way, so that trials find them."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    kinds = {(t.method, t.dataset, t.folder, t.image_size): t for t in trials}.values()
    asked = [{"trial": t.model_dump(), "sources": dict(code_of(t, trainable).sources)} for t in kinds]
    nodes = [n for n in ray.nodes() if n["Alive"] and n["Resources"].get("CPU", 0) >= resources.cpu]
    look = ray.remote(num_cpus=0, max_retries=0)(examine)
    problems: list[str] = []
    with _marker(storage) as marker:
        pending = {
            look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(n["NodeID"], soft=False)).remote(
                asked, trainable, marker, str(root)
            ): n["NodeManagerHostname"]
            for n in nodes
        }
        names = dict(pending)
        while pending:
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=PATIENCE)
            if not ready:
                console.print(f"waiting for {', '.join(sorted(pending.values()))} to prepare data", soft_wrap=True)
            for answer in ready:
                problems += [f"{names[answer]}: {problem}" for problem in _answer(answer)]
                del pending[answer]
    if problems:
        raise problems_error(f"{count(len(nodes), 'node')} of the cluster cannot run this", sorted(problems))


def _answer(answer: Any) -> list[str]:
    import ray

    try:
        return ray.get(answer)
    except Exception as error:  # it did not even start there
        text = str(error)
        if "ModuleNotFoundError" in text or "No module named" in text:
            missing = next((line for line in text.splitlines() if "No module named" in line), "").strip()
            return [
                f"pcr_ray cannot be imported there ({missing or 'no such module'}): install the same version on every "
                "node (an image, a shared venv), or add --ship"
            ]
        return [f"the check could not run there: {first_line(error)}"]


class _marker:
    """A file in the storage that every node must see; None where the storage is a URI."""

    def __init__(self, storage: str) -> None:
        self.path = None if "://" in storage else Path(storage) / f".seen-{uuid.uuid4().hex[:12]}"

    def __enter__(self) -> str | None:
        if self.path:
            self.path.touch()
        return str(self.path) if self.path else None

    def __exit__(self, *_: object) -> None:
        if self.path:
            self.path.unlink(missing_ok=True)


def examine(asked: list[dict[str, Any]], trainable: str, marker: str | None, root: str) -> list[str]:
    """Runs on a node: what is wrong there."""
    problems = _storage_problems(marker)
    try:
        load_trainable(trainable)
    except PcrRayError as error:
        problems.append(f"{error}; install it there, or add --ship")
    differences: set[str] = set()
    data: dict[str, None] = {}
    for item in asked:
        trial = TrialConfig.model_validate(item["trial"])
        try:
            differences |= set(changed(item["sources"], code_of(trial, trainable).sources))
            prepare(trial, Path(root))
        except PcrRayError as error:
            data[str(error)] = None
    if differences:
        problems.append(
            f"other code than here ({', '.join(sorted(differences)[:5])}): install the same version, or add --ship"
        )
    return problems + list(data)


def _storage_problems(marker: str | None) -> list[str]:
    if marker is None:
        return []
    storage = Path(marker).parent
    if not Path(marker).exists():
        return [
            f"the storage {storage} is not shared with it: trials could not continue there; name a path that all "
            "nodes share, or a URI such as s3://bucket/path, with --storage"
        ]
    try:
        with tempfile.TemporaryFile(dir=storage):
            return []
    except OSError as error:
        return [f"the storage {storage} cannot be written to there ({os.strerror(error.errno or 0)})"]
