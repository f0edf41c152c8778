"""Small real runs: the bundled scans, a small network pretrained for a few steps, plans made from specs."""

from __future__ import annotations

from pathlib import Path

from orchestrator.plan import make_plan
from orchestrator.spec import parse_spec
from orchestrator.specmodel import SweepSpec
from orchestrator.types import Plan, Store

GRID = """\
name: tiny
seeds: {seeds}
max_images: {images}
mlflow: false
runs:
  - benchmark: digits-c
    scenario: {scenario}
    corruptions: {corruptions}
    severities: [5]
    models: ["small-resnet-gn+steps=5"]
    methods: {methods}
    batch_size: {batch}
"""


def tiny_spec(
    seeds: list[int] | None = None,
    images: int = 64,
    methods: str = "[no-adapt, tent]",
    corruptions: str = "[contrast]",
    scenario: str = "mild",
    batch: int = 16,
    extra: str = "",
) -> SweepSpec:
    text = GRID.format(
        seeds=seeds or [0], images=images, methods=methods, corruptions=corruptions, scenario=scenario, batch=batch
    )
    return parse_spec(text + extra)


def write_spec(folder: Path, **fields: object) -> Path:
    defaults = {
        "seeds": [0],
        "images": 64,
        "methods": "[no-adapt, tent]",
        "corruptions": "[contrast]",
        "scenario": "mild",
        "batch": 16,
    }
    extra = str(fields.pop("extra", ""))
    path = folder / "tiny.yaml"
    path.write_text(GRID.format(**{**defaults, **fields}) + extra)
    return path


def tiny_plan(store: Store | None = None, **fields: object) -> Plan:
    return make_plan(tiny_spec(**fields), store)
