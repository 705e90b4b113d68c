"""The keys of a sweep file, as a strict schema."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from pcr_ray.identity import TRAINABLE
from pcr_ray.metrics import CLASSIFIERS

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
FIGURES = ("lines", "stages", "balance", "proxies", "heat_map")  # see analysis/views
DETAILS = ["forgetting", "new_accuracy", "old_accuracy", "train_seconds", "peak_memory"]
GPU_SHARE = 0.25  # of `gpu: auto`: a Reduced ResNet18 trial leaves most of a GPU idle
STRICT = ConfigDict(extra="forbid", frozen=True, strict=True)


class Resources(BaseModel):
    """What one trial asks of the cluster. `resources: auto` in a file means the defaults."""

    model_config = STRICT
    cpu: float = Field(1, ge=0.01, le=10_000, description="CPUs, and CPU threads, per trial")
    gpu: float | None = Field(
        None, ge=0, le=10_000, description="GPUs per trial; a fraction lets trials share one; default: a share if any"
    )

    def __str__(self) -> str:
        gpu = "a share of a GPU where there is one" if self.gpu is None else f"{self.gpu:g} GPU"
        return f"{self.cpu:g} CPU" + (f", {gpu}" if self.gpu != 0 else "")


class Adjustment(BaseModel):
    """Other settings for some of the trials."""

    model_config = STRICT
    when: dict[str, Any] = Field(min_length=1, description="fields and a value, or a list of values, of each")
    set: dict[str, Any] = Field(description="what these trials have instead")


class ReportSpec(BaseModel):
    """What the study asks and how its answer is laid out."""

    model_config = STRICT
    question: str = Field("", max_length=2000)
    x: str = ""
    y: str | list[str] = Field("final_accuracy", description="a metric, or several: each has its tables and figure")
    series: str = "method"
    classifiers: list[str] = Field(default=list(CLASSIFIERS))
    ncm: list[str] | None = Field(None, description="methods whose nearest-mean classifier is shown; default: all")
    figures: list[str] = Field(default=["lines", "stages"], description="kinds of figures, of FIGURES")
    columns: list[str] = Field(default=DETAILS, description="metrics of the table with all details")
    baseline: str = Field("", description="the series that all are compared with; default: the leader at each x")
    paper: str | list[dict[str, Any]] = Field(default_factory=list)

    @property
    def metrics(self) -> list[str]:
        return [self.y] if isinstance(self.y, str) else self.y


class Space(BaseModel):
    """The values that a field may take in a search: one of these."""

    model_config = STRICT
    uniform: tuple[float, float] | None = None
    log: tuple[float, float] | None = Field(None, description="uniform in the logarithm, between two positive numbers")
    integer: tuple[int, int] | None = Field(None, description="whole numbers, both ends included")
    choice: list[Any] | None = None

    @field_validator("uniform", "log", "integer", mode="before")
    @classmethod
    def _pair(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = self.model_dump(exclude_none=True)
        if len(given) != 1:
            raise ValueError("give one of uniform, log, integer and choice")
        ((kind, values),) = given.items()
        if kind == "choice" and len(values) < 2:
            raise ValueError("a choice needs at least two values")
        if kind != "choice" and not (values[0] < values[1] and (kind != "log" or values[0] > 0)):
            raise ValueError(f"{kind} needs two numbers, the smaller one first" + (" and above 0" * (kind == "log")))
        return self


class TuneOn(BaseModel):
    """What a setting is judged by: never the seeds of the final trials, nor all tasks."""

    model_config = STRICT
    tasks: int = Field(ge=1, description="the first tasks of the stream")
    seeds: int = Field(1, ge=1, le=100, description="how many seeds, from the first that no final trial has")


class Tried(BaseModel):
    """One setting and its score; None: it failed."""

    model_config = STRICT
    set: dict[str, Any]
    value: float | None


class Chosen(Adjustment):
    """What a search found for some of the trials."""

    value: float
    tried: list[Tried]


class Search(BaseModel):
    """Fields whose values are found by trying, for each combination of `per` on its own."""

    model_config = STRICT
    algorithm: Literal["random", "optuna"] = "random"
    samples: int = Field(ge=1, le=10_000, description="settings tried per combination")
    metric: str = "final_accuracy"
    space: dict[str, Space] = Field(min_length=1)
    tune_on: TuneOn
    per: list[str] | None = Field(None, description="fields of the grid; default: all but the seed")
    seed: int = Field(0, ge=0, lt=2**32, description="of the search itself")
    chosen: list[Chosen] = Field(default_factory=list, description="its outcome; written when the search is over")


class SweepFile(BaseModel):
    """The keys of a sweep file."""

    model_config = STRICT
    name: str = Field(pattern=NAME)
    description: str = Field("", max_length=5000)
    trainable: str = TRAINABLE
    plugins: list[str] = Field(default_factory=list, description="files, folders, modules with methods and datasets")
    presets: list[str] = Field(default_factory=list)
    fixed: dict[str, Any] = Field(default_factory=dict)
    grid: dict[str, Any] = Field(default_factory=dict)
    grids: list[dict[str, Any]] = Field(default_factory=list)
    adjust: list[Adjustment] = Field(default_factory=list)
    exclude: list[dict[str, Any]] = Field(default_factory=list)
    search: Search | None = None
    resources: Resources = Field(default_factory=Resources)
    retries: int = Field(2, ge=0, le=1000)
    report: ReportSpec = Field(default_factory=ReportSpec)

    @field_validator("resources", mode="before")
    @classmethod
    def _auto(cls, value: Any) -> Any:
        if isinstance(value, str) and value != "auto":
            raise ValueError("expected 'auto' or a mapping with cpu and gpu")
        return Resources() if value == "auto" else value
