"""One check per node before anything starts: storage, data, code. Every problem of every node is in one message."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pcr_ray.config import TrialConfig
from pcr_ray.console import console
from pcr_ray.datasets import prepare
from pcr_ray.errors import NotNowError, PcrRayError, problems_error
from pcr_ray.execution.storage import marked, problem
from pcr_ray.execution.tuner import load_trainable
from pcr_ray.plugins import load_modules
from pcr_ray.provenance import changed, code_of
from pcr_ray.study.load import Study
from pcr_ray.study.schema import Resources
from pcr_ray.text import count, first_line

PATIENCE = 15.0  # seconds between lines about nodes that have not answered, because they prepare data


def check(study: Study, trials: Iterable[TrialConfig], storage: str, root: Path, resources: Resources) -> None:
    """Ask every node that can run trials; data are prepared there on the way, so that trials find them."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    trainable = study.spec.trainable
    kinds = {(t.method, t.dataset, t.folder, t.image_size): t for t in trials}.values()
    asked = [{"trial": t.model_dump(), "sources": dict(code_of(t, trainable).sources)} for t in kinds]
    nodes = {n["NodeID"]: _name(n) for n in ray.nodes() if n["Alive"] and _fits(n["Resources"], resources)}
    look = ray.remote(num_cpus=0, max_retries=0)(examine)
    problems: list[str] = []
    passing: list[str] = []
    with marked(storage) as mark:
        pending = {
            look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
                asked, trainable, study.plugins, storage, mark, root, study.place
            ): node
            for node in nodes
        }
        while pending:
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=PATIENCE)
            if not ready:
                slow = ", ".join(sorted(nodes[node] for node in pending.values()))
                console.print(f"waiting for {slow} to prepare data", soft_wrap=True, markup=False)
            for answer in ready:
                node = pending.pop(answer)
                try:
                    problems += [f"{nodes[node]}: {problem}" for problem in _answer(answer, node)]
                except NotNowError as error:
                    passing.append(f"{nodes[node]}: {error}")
    if problems or passing:
        bad = len({problem.partition(":")[0] for problem in problems + passing})
        told = problems_error(f"{bad} of {count(len(nodes), 'node')} cannot run this", sorted(problems + passing))
        raise told if problems else NotNowError(f"{told}\n  Nothing was run: run the same command again later.")


def _fits(node: dict[str, float], resources: Resources) -> bool:
    return node.get("CPU", 0) >= resources.cpu and node.get("GPU", 0) >= (resources.gpu or 0)


def _name(node: dict[str, Any]) -> str:
    """As an admin knows it: the name that it was started with, else its host's."""
    return str(node["NodeManagerHostname"] if node["NodeName"] == node["NodeManagerAddress"] else node["NodeName"])


def _answer(answer: Any, node: str) -> list[str]:
    import ray
    from ray.exceptions import OutOfMemoryError, WorkerCrashedError

    try:
        return ray.get(answer)
    except Exception as error:  # it did not even start there
        if not any(n["NodeID"] == node and n["Alive"] for n in ray.nodes()):
            return []  # gone meanwhile: no trial will run there
        if isinstance(error, (OutOfMemoryError, WorkerCrashedError)):
            raise NotNowError(f"the check was killed there: {first_line(error)}") from None
        missing = next((line.strip() for line in str(error).splitlines() if "No module named" in line), None)
        if missing:
            return [
                f"pcr_ray cannot be imported there ({missing}): install the same version on every node (an image, a "
                "shared venv), or add --ship"
            ]
        why = first_line(getattr(error, "cause", None) or error)
        return [f"the check could not run there ({why}): is it the same version? --ship sends this one"]


def examine(
    asked: list[dict[str, Any]], trainable: str, plugins: dict[str, list[str]], storage: str, mark: str, root: Path,
    beside: Path | None,
) -> list[str]:  # fmt: skip
    """Runs on a node: what is wrong there."""
    problems = [text] if (text := problem(storage, mark)) else []
    try:
        load_trainable(trainable)
        load_modules(plugins)
    except PcrRayError as error:
        problems.append(f"{error}; install it there, or add --ship")
    differences: set[str] = set()
    data: dict[str, None] = {}
    for item in asked:
        trial = TrialConfig.model_validate(item["trial"])
        try:
            differences |= set(changed(item["sources"], code_of(trial, trainable).sources))
            prepare(trial, root, beside)
        except PcrRayError as error:
            data[str(error)] = None
    if differences:
        problems.append(
            f"other code than here ({', '.join(sorted(differences)[:5])}): install the same version, or add --ship"
        )
    return problems + list(data)
