"""Table layouts by name: the paper's tables, and what suits any sweep.

A new layout is one file with a ``LAYOUT`` and one line here. Order matters: without ``--layout`` the first that
suits the sweep is taken.
"""

from __future__ import annotations

import difflib
import importlib

from deyo.types import ConfigError
from orchestrator.tables.data import SweepData
from orchestrator.tables.layouts.base import Layout

LAYOUTS = {
    "ablation": "orchestrator.tables.layouts.ablation",
    "aurc": "orchestrator.tables.layouts.aurc",
    "proposition": "orchestrator.tables.layouts.proposition",
    "multiple-augmentations": "orchestrator.tables.layouts.multiple_augmentations",
    "sensitivity": "orchestrator.tables.layouts.sensitivity",
    "pretraining": "orchestrator.tables.layouts.pretraining",
    "efficiency": "orchestrator.tables.layouts.efficiency",
    "biased": "orchestrator.tables.layouts.biased",
    "mixed": "orchestrator.tables.layouts.mixed",
    "imagenet-r": "orchestrator.tables.layouts.imagenet_r",
    "imagenet-c": "orchestrator.tables.layouts.imagenet_c",
    "grid": "orchestrator.tables.layouts.grid",
}


def layout(name: str) -> Layout:
    """The layout ``name``. Raises ``ConfigError`` with the nearest names."""
    if name not in LAYOUTS:
        near = difflib.get_close_matches(name, LAYOUTS, 2)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ConfigError(f"no layout '{name}'; layouts are {', '.join(LAYOUTS)}{hint}")
    return importlib.import_module(LAYOUTS[name]).LAYOUT


def default_layout(data: SweepData) -> Layout:
    """The first layout that suits the sweep's axes."""
    return next(found for found in map(layout, LAYOUTS) if found.suits(data))
