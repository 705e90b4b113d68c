"""One trial's configuration: strict schema, presets, defaults filled in, identity. No ray, no torch.

`resolve` is the only way to a `TrialConfig`. It fills in what depends on the dataset and the
method, drops what cannot matter (the buffer of a method without memory), and reports every
problem at once.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pcr_ray.errors import InputError, problems_error
from pcr_ray.registry import did_you_mean

GAMMA = 1 / 0.09  # the paper's temperature 0.09, as the scale of the cosine head

MOST = 10**9  # images: a slip of the finger ends here, not in an overflow somewhere inside

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class TrialConfig(BaseModel):
    """Everything that decides a trial's numbers, and nothing else (no device, no paths of data roots)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    dataset: str = Field("digits", description="a dataset of `pcr-ray datasets`")
    folder: str | None = Field(
        None, description="dataset 'folder' only: the image folder, absolute or below the data root"
    )
    # From 9 on the last feature map has more than one pixel: BatchNorm can then learn from a single image.
    image_size: Annotated[int, Field(ge=9, le=512)] | None = Field(
        None, description="dataset 'folder' only: side length that images are resized to"
    )
    tasks: Annotated[int, Field(ge=1)] | None = Field(
        None, description="number of tasks the classes are split into; default: the dataset's usual number"
    )
    fraction: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="train on this part of each class's images, for quick looks"
    )
    class_order: Literal["shuffled", "natural"] = Field(
        "shuffled", description="classes shuffled by the seed, or in the dataset's own order"
    )
    method: str = Field("pcr", description="a method of `pcr-ray methods`")
    params: dict[str, Any] = Field(default_factory=dict, description="the method's own parameters")
    buffer: Annotated[int, Field(ge=0, le=MOST)] = Field(1000, description="images in the replay memory")
    batch_size: Annotated[int, Field(ge=1, le=MOST)] = Field(10, description="images taken from the stream per step")
    replay_batch_size: Annotated[int, Field(ge=0, le=MOST)] = Field(
        10, description="images replayed from memory per step"
    )
    replay_per_class: Annotated[int, Field(ge=1, le=MOST)] | None = Field(
        None, description="replay at most this many images times the number of classes seen; default: no such limit"
    )
    replay_current: bool = Field(True, description="whether replay may draw images of the current task")
    model: Literal["reduced_resnet18", "resnet18"] = Field(
        "reduced_resnet18", description="backbone: 20 or 64 filters in the first stage"
    )
    head: Literal["auto", "cosine", "linear"] = Field(
        "auto", description="classifier; auto: what the method's equations have"
    )
    gamma: Positive | None = Field(GAMMA, description="scale of the cosine head, 1 / temperature")
    optimiser: Literal["sgd", "adam"] = Field("sgd", description="optimiser")
    lr: Positive = Field(0.1, description="learning rate")
    momentum: Beta = Field(0.0, description="momentum of SGD")
    betas: Annotated[list[Beta], Field(min_length=2, max_length=2)] = Field([0.9, 0.999], description="betas of Adam")
    weight_decay: NonNegative = Field(0.0, description="weight decay")
    augment: Literal["paper", "ocm", "none"] = Field("paper", description="augmentation pipeline")
    views: Literal["both", "augmented", "original"] = Field(
        "both", description="train on originals and augmented copies, or on one of them"
    )
    batchnorm: Literal["auto", "joint", "separate"] = Field(
        "auto",
        description="stream and memory in one forward or in two; auto: as in the method's published system",
    )
    normalise: bool = Field(False, description="subtract the training set's mean and divide by its deviation")
    proxy_gradients: bool = Field(
        False, description="also record the cumulative gradient magnitude of every class proxy"
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="seed of all randomness")

    @property
    def identity(self) -> str:
        """Hash of the full, default-filled config: the same trial has it in every sweep, everywhere."""
        text = json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def flat(self) -> dict[str, Any]:
        """One level of keys, method parameters as `params.name`."""
        fields = self.model_dump()
        params = fields.pop("params")
        return fields | {f"params.{k}": v for k, v in sorted(params.items())}


FIELDS = list(TrialConfig.model_fields)

PRESETS: dict[str, dict[str, Any]] = {
    # The PCR paper's protocol. These are the defaults, named so that a sweep can say what it means.
    "paper": {
        "batch_size": 10,
        "replay_batch_size": 10,
        "class_order": "shuffled",
        "model": "reduced_resnet18",
        "optimiser": "sgd",
        "lr": 0.1,
        "augment": "paper",
        "views": "both",
        "batchnorm": "auto",
        "head": "auto",
        "normalise": False,
    },
    # The setting of the PCR paper's second accuracy table, taken over from OCM.
    "ocm": {
        # Named in the text of the PCR paper:
        "model": "resnet18",  # 64 filters
        "optimiser": "adam",
        "lr": 0.001,
        "replay_batch_size": 64,
        # Not named there; as in the public code of OCM:
        "batch_size": 10,
        "betas": [0.9, 0.99],
        "weight_decay": 1e-4,
        "normalise": True,
        "class_order": "natural",
        "replay_per_class": 7,
        "augment": "ocm",
    },
}


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
    problems = [Problem(key, f"unknown field{did_you_mean(key, FIELDS)}") for key in raw if key not in FIELDS]
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


def preset(name: str) -> dict[str, Any]:
    if name not in PRESETS:
        raise InputError(f"unknown preset '{name}'{did_you_mean(name, list(PRESETS))}")
    return PRESETS[name]


def _split_params(raw: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Dotted `params.x` keys are the same as `params: {x: ...}`."""
    raw = {str(k): v for k, v in raw.items()}  # YAML also knows keys that are numbers, dates or null
    fields = {k: v for k, v in raw.items() if k != "params" and not k.startswith("params.")}
    dotted = {k.removeprefix("params."): v for k, v in raw.items() if k.startswith("params.")}
    params = raw.get("params", {})
    return fields, ({**params, **dotted} if isinstance(params, Mapping) else params)


def _settle_dataset(values: dict[str, Any]) -> list[Problem]:
    """Fill in what the dataset decides; complain about what does not fit it."""
    from pcr_ray.datasets import DATASETS

    if values["dataset"] not in DATASETS:
        return [Problem("dataset", f"unknown dataset '{values['dataset']}'"
                        f"{did_you_mean(values['dataset'], DATASETS.names())}")]  # fmt: skip
    dataset = DATASETS.get(values["dataset"])
    problems = []
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


def _settle_method(values: dict[str, Any]) -> list[Problem]:
    """Fill in what the method decides; complain about what does not fit it."""
    from pcr_ray.methods import METHODS

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
    return problems


def explain(error: ValidationError, prefix: str = "") -> Iterable[Problem]:
    """pydantic's errors in our words, with the trap of YAML's numbers named."""
    for item in error.errors():
        value = item["input"]
        if item["loc"][-1] == "str" and isinstance(value, Mapping | list):
            continue  # text or a mapping would do: what is wrong with the mapping is said too
        branch = re.compile(r"[A-Z]|list\[")  # the name of a type that pydantic tried is no part of the place
        field = prefix + ".".join(str(p) for p in item["loc"] if not branch.match(str(p)))
        message = item["msg"][:1].lower() + item["msg"][1:]
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
    if value.is_integer():
        return str(int(value))
    text = repr(value)
    return text if "." in text else text.replace("e", ".0e")  # 1e-05 would be text again
