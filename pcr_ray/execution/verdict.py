"""Can a trainable's result be used? Anybody may write one; what cannot be used fails its trial, not the sweep."""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pcr_ray.metrics import CLASSIFIERS
from pcr_ray.text import first_line

NO_TASKS = "the trainable's result has no list `tasks` with the metrics of each task; see trainables/online.py"
MATRICES = tuple(c.metric("accuracy_matrix") for c in CLASSIFIERS.values())
WANTED = ("config", "data_fingerprint", *MATRICES)
# What MLflow takes, so that no trial waits for ever to be delivered.
METRIC = re.compile(r"(?!.*(^|/)\.{1,2}(/|$))[\w.\- :]+(/[\w.\- :]+)*")
NAME_LIMIT, DIGEST_LIMIT = 250, 36  # characters


def plain(trainable: Any) -> Any:
    """The trainable, with results and errors that can be read wherever they arrive.

    An exception or a result that cannot be unpickled in the driver would end Tune's loop, and the sweep with it.
    """

    class Plain(trainable):
        def step(self) -> dict[str, Any]:
            with _readable_errors():
                result = super().step()
            return _plain_result(result)

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            with _readable_errors():
                return super().reset_config(new_config)

    return Plain


@contextlib.contextmanager
def _readable_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        try:
            copy.deepcopy(error)  # made anew as unpickling does it
        except Exception:
            text = f"{type(error).__name__}: {error}"
            raise RuntimeError(text).with_traceback(error.__traceback__) from None
        raise


def _plain_result(result: Any) -> dict[str, Any]:
    """As JSON has it, which the spool needs anyway; numbers of NumPy and torch become Python's."""
    try:
        read = json.loads(json.dumps(result, default=float))
        if not isinstance(read, dict):
            raise TypeError("it is not a dict")
    except (TypeError, ValueError, RuntimeError, RecursionError) as error:
        return _failed(f"its result cannot be used: {type(error).__name__}: {first_line(error)}")
    if read.get("done") and not read.get("complete") and not read.get("failure"):
        return _failed("the trainable says that it is `done`, not that it is `complete`; see trainables/__init__.py")
    return read


def _failed(reason: str) -> dict[str, Any]:
    return {"done": True, "complete": False, "failure": reason}


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
    if not isinstance(result.get("device"), str | None):
        return "the trainable's result cannot be used: `device` is not text"
    results = result.get("results")
    if result.get("complete") and results is not None and (what := _odd_results(results)):
        return f"the trainable's result cannot be used: `results` {what}"
    return None


def _odd_results(results: Any) -> str | None:
    missing = [k for k in WANTED if not isinstance(results, Mapping) or k not in results]
    if missing:
        return f"has no {', '.join(missing)}"
    config, digest = results["config"], results["data_fingerprint"]
    if not isinstance(config, Mapping) or not isinstance(config.get("dataset"), str):
        return "has a `config` without `dataset`"
    if not isinstance(digest, str) or not 0 < len(digest) <= DIGEST_LIMIT:
        return f"has a `data_fingerprint` that is not text of 1 to {DIGEST_LIMIT} characters"
    for name in MATRICES:
        rows = results[name] or []
        if not isinstance(rows, list) or not all(isinstance(r, list) and all(map(_is_number, r)) for r in rows):
            return f"has an `{name}` that is not a list of lists of numbers"
    return None


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _odd(metrics: Any, tasks: int | None) -> str | None:
    if not isinstance(metrics, Mapping) or type(metrics.get("task")) is not int or metrics["task"] < 1:
        return "an entry of `tasks` has no number `task`"
    if tasks is not None and metrics["task"] > tasks:
        return f"it reports task {metrics['task']}, and the trial has {tasks}"
    if "average_accuracy" not in metrics:
        return f"task {metrics['task']} has no `average_accuracy`"
    for name, value in metrics.items():
        if not METRIC.fullmatch(str(name)) or len(str(name)) > NAME_LIMIT:
            return f"`{name}` is not a name that MLflow takes: letters, digits and '_-. :' with '/' between parts"
        if not _is_number(value):
            return f"`{name}` of task {metrics['task']} is not a number"
    return None


def over(trial_id: str, result: Mapping[str, Any]) -> bool:
    """For Tune: whether to stop a trial after this result. One that never says `done` would run for ever."""
    trial = result.get("config", {}).get("case", {}).get("trial", {})
    return bool(result.get("complete")) or problem(result, trial.get("tasks")) is not None
