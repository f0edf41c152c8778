"""The shape of a sweep spec: pydantic models that forbid unknown keys.

Only the shape is checked here. Names of benchmarks, networks and methods and their settings are checked when the
spec is expanded (``orchestrator.expand``), because that asks the engine.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, field_validator

from orchestrator.specfile import Document
from orchestrator.suggest import look_alikes

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TAKEN = re.compile(r"reports|mlflow\.db.*", re.IGNORECASE)
"""What lies beside the sweeps under a results root."""
_SECRET = re.compile(r"^[a-z0-9+]+://[^/@]*@", re.IGNORECASE)


def _identifier(value: str) -> str:
    """A name that becomes a folder, an experiment and a URL: ASCII letters, digits, dot, dash, underscore."""
    if not _NAME.fullmatch(value) or ".." in value:
        odd = look_alikes(value)
        raise ValueError(
            "a name has 1 to 100 of the characters a-z A-Z 0-9 . _ - and begins with a letter or digit"
            + (f"; this one contains {odd}" if odd else "")
        )
    if _TAKEN.fullmatch(value):
        raise ValueError("has another use under a results root, where each sweep is a folder; choose another name")
    return value


def _label(value: str) -> str:
    """A label in tables: printable text of any script."""
    if not value.strip() or len(value) > 100 or not value.isprintable():
        raise ValueError("a label has 1 to 100 printable characters")
    return value


def _listed(value: Any) -> Any:
    """A single value where a list may stand."""
    return value if isinstance(value, list) or value is None else [value]


def _variant(value: Any) -> Any:
    """``deyo`` is short for ``{name: deyo}``."""
    return {"name": value} if isinstance(value, str) else value


def _switch(value: Any) -> Any:
    """``mlflow: false`` is short for ``mlflow: {enabled: false}``."""
    return {"enabled": value} if isinstance(value, bool) else value


Text = Annotated[str, Field(min_length=1, max_length=200)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Names = Annotated[list[Text], Field(min_length=1, max_length=1000)]
Seeds = Annotated[list[Seed], Field(min_length=1, max_length=5_000)]
OneOrMoreNames = Annotated[Names, BeforeValidator(_listed)]
BatchSizes = Annotated[
    list[Annotated[int, Field(ge=1, le=65_536)]],
    Field(min_length=1, max_length=100),
    BeforeValidator(_listed),
]
Protocols = Annotated[list[Literal["official", "paper"]], Field(min_length=1, max_length=2), BeforeValidator(_listed)]
Precisions = Annotated[
    list[Literal["float32", "tf32", "bf16", "float64"]],
    Field(min_length=1, max_length=4),
    BeforeValidator(_listed),
]
Images = Annotated[int, Field(ge=1, le=10**9)]
Options = dict[Text, Any]
MethodSettings = dict[Text, Options]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class MethodEntry(_Model):
    """A method of a grid, or a family of variants: every list among its settings is one more axis."""

    name: Text
    label: str | None = None
    settings: Options = Field(default_factory=dict)

    _check_label = field_validator("label")(lambda value: None if value is None else _label(value))


class Grid(_Model):
    """One grid: the product of its lists. What is left out takes the spec's value, or the default."""

    benchmark: OneOrMoreNames
    benchmark_options: Options = Field(default_factory=dict)
    scenario: OneOrMoreNames = Field(default_factory=lambda: ["mild"])
    scenario_options: Options = Field(default_factory=dict)
    corruptions: Names | None = None
    severities: Annotated[list[Annotated[int, Field(ge=1, le=5)]], Field(min_length=1)] | None = None
    models: Names
    methods: Annotated[list[Annotated[MethodEntry, BeforeValidator(_variant)]], Field(min_length=1, max_length=1000)]
    settings: MethodSettings = Field(default_factory=dict)
    batch_size: BatchSizes | None = None
    seeds: Seeds | None = None
    pretrain_seeds: Seeds | None = None
    protocol: Protocols | None = None
    precision: Precisions | None = None
    max_images: Images | None = None
    samples: bool | None = None


class Mlflow(_Model):
    """Where runs are tracked: an MLflow URI, "auto" (MLFLOW_TRACKING_URI, else SQLite beside the results) or "none".

    Credentials come from MLFLOW_TRACKING_USERNAME, _PASSWORD and _TOKEN alone.
    """

    enabled: bool = True
    tracking_uri: Text | None = None
    experiment: Text | None = None
    granularity: Literal["auto", "run", "group"] = "auto"

    @field_validator("tracking_uri")
    @classmethod
    def _no_secret(cls, value: str | None) -> str | None:
        if value is not None and _SECRET.match(value):
            raise ValueError(
                "a password does not belong in a spec; set MLFLOW_TRACKING_URI in the environment instead "
                "(or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD for an http server)"
            )
        if value not in (None, "auto", "none") and ("://" not in value or value.startswith("file:")):
            raise ValueError(
                "MLflow no longer writes to plain folders; write `tracking_uri: sqlite:///results/mlflow.db`"
            )
        return value


class Resources(_Model):
    """What the sweep may use. Left out: every GPU there is, or the CPU cores where there is none."""

    gpus: Annotated[int, Field(ge=0, le=100_000)] | None = None
    gpu_type: Text | None = None
    gpu_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    workers: Annotated[int, Field(ge=1, le=100_000)] | None = None
    cpus_per_worker: Annotated[float, Field(gt=0, le=1024)] = 1.0
    memory_gb: Annotated[float, Field(gt=0, le=10_000)] | None = None
    group_size: Annotated[int, Field(ge=1, le=4096)] | None = None
    timeout_minutes: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0


class SweepSpec(_Model):
    """A sweep: grids of runs, and what they share.

    ``reuse: false`` repeats runs that another sweep of the same results root has done. ``stale_after``: done runs
    are run again after a change of the engine's numerics version, or of any of its code.
    """

    name: str
    seeds: Seeds = Field(default_factory=lambda: [0])
    runs: Annotated[list[Grid], Field(min_length=1, max_length=1000)]
    settings: MethodSettings = Field(default_factory=dict)
    pretrain_seeds: Seeds = Field(default_factory=lambda: [0])
    protocol: Protocols = Field(default_factory=lambda: ["official"])
    precision: Precisions = Field(default_factory=lambda: ["tf32"])
    max_images: Images | None = None
    samples: bool = False
    reuse: bool = True
    stale_after: Literal["numerics", "code"] = "numerics"
    data: dict[Text, Text] = Field(default_factory=dict)
    mlflow: Annotated[Mlflow, BeforeValidator(_switch)] = Field(default_factory=Mlflow)
    resources: Resources = Field(default_factory=Resources)
    smoke: Options = Field(default_factory=dict)

    _document: Document = PrivateAttr(default_factory=lambda: Document(path="spec", tree={}))

    _check_name = field_validator("name")(_identifier)

    @property
    def document(self) -> Document:
        """Where the spec came from: for errors, and for the copy that the store keeps."""
        return self._document
