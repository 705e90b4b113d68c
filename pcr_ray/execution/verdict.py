"""Can a trainable's result be used? Anybody may write one; what cannot be used fails its trial, not the sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pcr_ray.metrics import CLASSIFIERS

NO_TASKS = "the trainable's result has no list `tasks` with the metrics of each task; see trainables/online.py"
WANTED = ("config", "data_fingerprint", *(c.metric("accuracy_matrix") for c in CLASSIFIERS.values()))


def problem(result: Mapping[str, Any], tasks: int | None) -> str | None:
    """Why a result of a trial of so many tasks cannot be used, or what the trial says it failed of."""
    if result.get("failure"):
        return str(result["failure"])
    reported = result.get("tasks")
    if not isinstance(reported, list) or not reported:
        return NO_TASKS
    for metrics in reported:
        if what := _odd(metrics, tasks):
            return f"the trainable's result cannot be used: {what}; see trainables/online.py"
    results = result.get("results")
    if result.get("complete") and results is not None:
        missing = [k for k in WANTED if not isinstance(results, Mapping) or k not in results]
        if missing:
            return f"the trainable's result cannot be used: `results` has no {', '.join(missing)}"
    return None


def _odd(metrics: Any, tasks: int | None) -> str | None:
    if not isinstance(metrics, Mapping) or type(metrics.get("task")) is not int or metrics["task"] < 1:
        return "an entry of `tasks` has no number `task`"
    if tasks is not None and metrics["task"] > tasks:
        return f"it reports task {metrics['task']}, and the trial has {tasks}"
    if "average_accuracy" not in metrics:
        return f"task {metrics['task']} has no `average_accuracy`"
    for name, value in metrics.items():
        try:
            float(value)
        except (TypeError, ValueError):
            return f"`{name}` of task {metrics['task']} is not a number"
    return None


def over(trial_id: str, result: Mapping[str, Any]) -> bool:
    """For Tune: whether to stop a trial after this result. One that never says `done` would run for ever."""
    trial = result.get("config", {}).get("case", {}).get("trial", {})
    return bool(result.get("complete")) or problem(result, trial.get("tasks")) is not None
