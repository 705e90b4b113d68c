"""The keys of a sweep file, as a strict schema."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from pcr_ray.identity import TRAINABLE
from pcr_ray.metrics import CLASSIFIERS

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
FIGURES = ("lines", "stages", "balance", "proxies", "heat_map")  # see analysis/views
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
    y: str = "final_accuracy"
    series: str = "method"
    classifiers: list[str] = Field(default=list(CLASSIFIERS))
    ncm: list[str] | None = Field(None, description="methods whose nearest-mean classifier is shown; default: all")
    figures: list[str] = Field(default=["lines", "stages"], description="kinds of figures, of FIGURES")
    baseline: str = Field("", description="the series that all are compared with; default: the leader at each x")
    paper: str | list[dict[str, Any]] = Field(default_factory=list)


class SweepFile(BaseModel):
    """The keys of a sweep file."""

    model_config = STRICT
    name: str = Field(pattern=NAME)
    description: str = Field("", max_length=5000)
    trainable: str = TRAINABLE
    presets: list[str] = Field(default_factory=list)
    fixed: dict[str, Any] = Field(default_factory=dict)
    grid: dict[str, Any] = Field(default_factory=dict)
    grids: list[dict[str, Any]] = Field(default_factory=list)
    adjust: list[Adjustment] = Field(default_factory=list)
    exclude: list[dict[str, Any]] = Field(default_factory=list)
    resources: Resources = Field(default_factory=Resources)
    retries: int = Field(2, ge=0, le=1000)
    report: ReportSpec = Field(default_factory=ReportSpec)

    @field_validator("resources", mode="before")
    @classmethod
    def _auto(cls, value: Any) -> Any:
        if isinstance(value, str) and value != "auto":
            raise ValueError("expected 'auto' or a mapping with cpu and gpu")
        return Resources() if value == "auto" else value
