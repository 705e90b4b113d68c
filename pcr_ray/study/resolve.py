"""From what a user wrote to a complete trial, with every problem reported at once.

`resolve` fills in what depends on the dataset and the method and drops what cannot matter (the buffer of a method
without memory), so that the same trial always has the same configuration.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from pcr_ray.config import FIELDS, TrialConfig, field_hint, map_side
from pcr_ray.datasets import DATASETS
from pcr_ray.errors import problems_error
from pcr_ray.methods import METHODS
from pcr_ray.study.presets import PRESETS, preset_fields
from pcr_ray.text import did_you_mean


class Problem(NamedTuple):
    """A field and what is wrong with it."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class ConfigProblems(Exception):
    """Raised by `resolve` with everything that is wrong with one trial."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


def resolve(raw: Mapping[str, Any], *, strict: bool = True) -> TrialConfig:
    """The complete configuration for what a user wrote; raises `ConfigProblems`.

    `strict=False` also reads numbers from text, for command lines; parameters of methods have their types by then.
    """
    raw, params = _split_params(raw)
    name = str(raw.get("preset"))
    theirs, their_params = _split_params(preset_fields(name, raw))
    raw, params = {**theirs, **raw}, {**their_params, **params} if isinstance(params, Mapping) else params
    problems = []
    if raw.get("preset") is not None and name not in PRESETS:
        problems.append(Problem("preset", f"unknown preset '{name}'{did_you_mean(name, list(PRESETS))}"))
    problems += [Problem(key, f"unknown field{field_hint(key)}") for key in raw if key not in FIELDS]
    known = {k: v for k, v in raw.items() if k in FIELDS} | {"params": params}
    try:
        config = TrialConfig.model_validate(known, strict=strict)
    except ValidationError as error:
        problems += list(explain(error))
        # Go on without the bad fields, so that what is wrong with the others is said too.
        bad = {item["loc"][0] for item in error.errors()}
        config = TrialConfig.model_validate({k: v for k, v in known.items() if k not in bad}, strict=strict)
    values = config.model_dump()
    problems += _settle_dataset(values)
    problems += _settle_tasks(values)
    problems += _settle_method(values)
    unused = "betas" if values["optimiser"] == "sgd" else "momentum"
    values[unused] = TrialConfig.model_fields[unused].default
    if problems:
        raise ConfigProblems(problems)
    return config.model_copy(update=values)  # all of it is validated by now


def resolve_or_exit(raw: Mapping[str, Any], what: str, *, strict: bool = True) -> TrialConfig:
    """`resolve` with the problems as one `InputError`."""
    try:
        return resolve(raw, strict=strict)
    except ConfigProblems as error:
        raise problems_error(what, [str(p) for p in error.problems]) from None


def _split_params(raw: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Dotted `params.x` keys are the same as `params: {x: ...}`."""
    raw = {str(k): v for k, v in raw.items()}  # YAML also knows keys that are numbers, dates or null
    fields = {k: v for k, v in raw.items() if k != "params" and not k.startswith("params.")}
    dotted = {k.removeprefix("params."): v for k, v in raw.items() if k.startswith("params.")}
    params = raw.get("params", {})
    return fields, ({**params, **dotted} if isinstance(params, Mapping) else params)


def _settle_dataset(values: dict[str, Any]) -> list[Problem]:
    """Fill in what the dataset decides; complain about what does not fit it."""
    if values["dataset"] not in DATASETS:
        return [Problem("dataset", f"unknown dataset '{values['dataset']}'"
                        f"{did_you_mean(values['dataset'], DATASETS.names())}")]  # fmt: skip
    dataset = DATASETS.get(values["dataset"])
    problems = []
    size = values["image_size"] if dataset.user_folder else dataset.image_size
    if size and values["pool"] and values["pool"] >= map_side(size):
        values["pool"] = None  # the whole map
    if dataset.user_folder:
        for field in ("folder", "image_size", "tasks"):
            if values[field] is None:
                problems.append(Problem(field, "dataset 'folder' needs it: set it to " + {
                    "folder": "the folder that holds train/<class>/ and test/<class>/",
                    "image_size": "the side length images are resized to, such as 32",
                    "tasks": "the number of tasks the classes are split into"}[field]))  # fmt: skip
        return problems
    for field in ("folder", "image_size"):
        if values[field] is not None:
            problems.append(Problem(field, f"belongs to dataset 'folder', not '{values['dataset']}'"))
    if values["tasks"] is None:
        values["tasks"] = dataset.tasks
    if values["tasks"] > dataset.classes:
        problems.append(Problem(
            "tasks", f"{values['tasks']} tasks, but '{dataset.name}' has {dataset.classes} classes"))  # fmt: skip
    return problems


def _settle_tasks(values: dict[str, Any]) -> list[Problem]:
    tasks, last = values["tasks"], values["stop_after"]
    if tasks and last and last > tasks:
        return [Problem("stop_after", f"{last}, but there are {tasks} tasks")]
    if last == tasks:
        values["stop_after"] = None  # all of them
    return []


def _settle_method(values: dict[str, Any]) -> list[Problem]:
    """Fill in what the method decides; complain about what does not fit it."""
    if values["method"] not in METHODS:
        return [Problem("method", f"unknown method '{values['method']}'"
                        f"{did_you_mean(values['method'], METHODS.names())}")]  # fmt: skip
    method = METHODS.get(values["method"])
    problems = []
    known = list(method.Params.model_fields)
    for key in values["params"]:
        if key not in known:
            hint = did_you_mean(key, known) if known else "; it has none"
            problems.append(Problem(f"params.{key}", f"not a parameter of method '{method.name}'{hint}"))
    given = method.Params.by_dataset.get(values["dataset"], {})
    given = given | {k: v for k, v in values["params"].items() if k in known}
    try:
        values["params"] = method.Params.model_validate(given).model_dump()
    except ValidationError as error:
        problems += list(explain(error, prefix="params."))
    for field in ("buffer", "replay_batch_size"):
        if values[field] == 0 and method.uses_memory:
            problems.append(Problem(field, f"0, but method '{method.name}' replays from memory: set it to 1 or more"))
    if values["head"] == "auto":
        values["head"] = method.head
    elif values["head"] not in method.heads:
        problems.append(Problem("head", f"method '{method.name}' needs head {' or '.join(method.heads)}"))
    if values["batchnorm"] == "auto":
        values["batchnorm"] = method.batchnorm
    if values["head"] == "linear":
        values["gamma"] = None
    elif values["gamma"] is None:
        problems.append(Problem("gamma", "the cosine head needs a scale; the paper's is 11.11"))
    if values["augment"] == "none" and values["views"] != "original":
        values["views"] = "original"
    values.update(method.inert)
    if values["views"] == "original":
        values["augment"] = "none"
    if values["batchnorm"] == "views" and values["views"] != "both":
        values["batchnorm"] = "joint"  # there is one view
    if values["normalise"]:
        values["pixels"] = "unit"
    return problems


def explain(error: ValidationError, prefix: str = "", keys: Mapping[str, list[str]] | None = None) -> Iterable[Problem]:
    """pydantic's errors in our words, with the trap of YAML's numbers named; `keys` are those of nested mappings."""
    for item in error.errors():
        value = item["input"]
        if item["loc"][-1] == "str" and isinstance(value, Mapping | list):
            continue  # text or a mapping would do: what is wrong with the mapping is said too
        branch = re.compile(r"[A-Z]|list\[")  # the name of a type that pydantic tried is no part of the place
        field = prefix + ".".join(str(p) for p in item["loc"] if not branch.match(str(p)))
        message = item["msg"][:1].lower() + item["msg"][1:]
        if item["type"] == "extra_forbidden":
            known = (keys or {}).get(str(item["loc"][0]))
            yield Problem(field, "unknown key" + (did_you_mean(str(item["loc"][-1]), known) if known else ""))
            continue
        if item["type"] == "value_error":
            message = message.removeprefix("value error, ")
        if item["type"] == "string_pattern_mismatch":
            message = "use letters, digits, '.', '_' and '-', a letter or digit first, at most 100"
        if item["type"] != "missing":
            message += f", got {value!r}"
        if item["type"] in ("float_type", "int_type") and isinstance(value, str) and (number := _number(value)):
            message += " (remove the quotes)" if number == value else f" (YAML reads {value} as text: write {number})"
        yield Problem(field, message)


def _number(text: str) -> str | None:
    """A number's text as YAML reads it back; None where it is none or not finite."""
    try:
        value = float(text)
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    if value.is_integer() and abs(value) < 1e16:
        return str(int(value))
    text = repr(value)
    return text if "." in text else text.replace("e", ".0e")  # 1e-05 would be text again
