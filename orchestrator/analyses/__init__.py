"""Analyses as runs: what the paper does beyond adapting, scheduled, stored and reported like any other run.

In a spec an analysis stands among ``methods``:

    methods: [{name: score, settings: {statistics: [running, batch], transform: [patch, pixel]}}]

``score`` watches the network without adapting it and keeps each sample's entropy and PLPD (``samples: true``): risk
and coverage, entropy quartiles, areas. ``grad-cam``, ``transforms`` and ``proposition`` keep what their picture needs
in the column ``analysis`` of the run's row. The analyses themselves are functions of ``deyo.analysis``.

Importing this module loads no torch: it names the analyses, and says what they need.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from deyo.types import ConfigError

if TYPE_CHECKING:
    from orchestrator.analyses.base import Analysis

SYNTHETIC = "synthetic"
"""The benchmark of analyses that make their own data."""
NO_NETWORK = "none"
"""The network of analyses that look at none."""


@dataclass(frozen=True)
class Registered:
    """Where an analysis lives, and whether it looks at a benchmark's images and a network."""

    place: str
    needs_data: bool = True
    needs_network: bool = True


ANALYSES = {
    "score": Registered("orchestrator.analyses.score:Score"),
    "grad-cam": Registered("orchestrator.analyses.grad_cam:GradCamAnalysis"),
    "transforms": Registered("orchestrator.analyses.transforms:Transforms", needs_network=False),
    "proposition": Registered("orchestrator.analyses.proposition:Proposition", needs_data=False, needs_network=False),
}


def is_analysis(method: str) -> bool:
    """Whether the method of a run is an analysis: nothing is adapted."""
    return method in ANALYSES


def load_analysis(name: str) -> type[Analysis]:
    """The class behind a name of ``ANALYSES``."""
    module, _, attribute = ANALYSES[name].place.partition(":")
    return getattr(import_module(module), attribute)


def check_place(method: str, benchmark: str, model: str) -> None:
    """Raises ``ConfigError`` unless the method can run on this benchmark and network."""
    needs = ANALYSES.get(method, Registered(""))
    if needs.needs_data == (benchmark == SYNTHETIC):
        wanted = "a benchmark with images" if needs.needs_data else f"`benchmark: {SYNTHETIC}`: it makes its own data"
        raise ConfigError(f"{method} needs {wanted}, found {benchmark!r}")
    if needs.needs_network == (model == NO_NETWORK):
        wanted = "a network" if needs.needs_network else f"`models: [{NO_NETWORK}]`: it looks at no network"
        raise ConfigError(f"{method} needs {wanted}, found {model!r}")


def synthetic_info(options: Any) -> Any:
    """``BenchmarkInfo`` of ``SYNTHETIC``. Raises ``ConfigError`` for options: it has none."""
    from deyo.benchmarks.info import BenchmarkInfo, resolve_options

    resolve_options(SYNTHETIC, options, {})
    return BenchmarkInfo(name=SYNTHETIC, num_classes=2, image_size=1, scenarios=("mild",), generated=True)


def no_network_info() -> Any:
    """``NetworkInfo`` of ``NO_NETWORK``."""
    from deyo.types import NetworkInfo

    return NetworkInfo(name=NO_NETWORK, family="none", norm="none", num_classes=None, image_size=None)


def settings_from_json(name: str, values: Any) -> Any:
    """The settings object that ``analysis_settings`` described."""
    from deyo import settings

    return settings.build(load_analysis(name).Settings, values, where=name)


def analysis_settings(name: str, overrides: Any, situation: Any) -> dict[str, Any]:
    """Every field of an analysis's settings as JSON values. Raises ``ConfigError`` for what it does not take."""
    from deyo import settings

    found = load_analysis(name)
    return settings.to_json(settings.build(found.Settings, {**found.defaults(situation), **overrides}, where=name))
