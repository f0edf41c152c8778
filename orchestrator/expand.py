"""A validated spec to the list of its runs: the product of each grid, settings resolved, duplicates merged."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from deyo.types import ConfigError, DataError
from orchestrator.catalog import Catalog, Question
from orchestrator.identity import config_id
from orchestrator.specfile import Document, Key
from orchestrator.specmodel import Grid, SweepSpec
from orchestrator.suggest import suggest
from orchestrator.types import RunConfig
from orchestrator.variants import Variant, check_axes, choices, product_of, resolve, settings_of, variants_of

MAX_RUNS = 250_000
SPANNING = ("mixed", "continual")
"""Scenarios whose one stream spans all corruptions: there, corruption is no axis."""
DEFAULT_SEVERITY = 5


@dataclass(frozen=True, kw_only=True)
class Expanded:
    """A run of the spec; ``duplicates`` others equalled it, under the labels ``aliases``."""

    config: RunConfig
    config_id: str
    duplicates: int = 0
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Place:
    """One benchmark and scenario of a grid, with their options: where streams come from."""

    benchmark: str
    benchmark_options: Mapping[str, Any]
    scenario: str
    scenario_options: Mapping[str, Any]
    conditions: Sequence[tuple[str | None, int | None, tuple[str, ...]]]
    batch_sizes: Sequence[int]


def expand(spec: SweepSpec, catalog: Catalog | None = None) -> list[RunConfig]:
    """Every run of ``spec`` once, in spec order, with all settings resolved.

    Raises ``ConfigError`` that says file, line, key and the nearest allowed values, before anything is expanded
    if the product is larger than ``MAX_RUNS``.
    """
    return [e.config for e in expansion(spec, catalog)]


def expansion(spec: SweepSpec, catalog: Catalog | None = None) -> list[Expanded]:
    """Like ``expand``, with what was merged."""
    catalog = catalog or Catalog()
    _check_size(spec)
    _check_shared(spec, catalog)
    merged: dict[str, Expanded] = {}
    for index, grid in enumerate(spec.runs):
        for config in _grid_runs(spec, grid, ("runs", index), catalog):
            identity = config_id(config)
            first = merged.get(identity)
            merged[identity] = _merge(first, config) if first else Expanded(config=config, config_id=identity)
    return list(merged.values())


def _merge(first: Expanded, other: RunConfig) -> Expanded:
    known = (first.config.label, *first.aliases)
    return replace(
        first,
        config=replace(first.config, record_samples=first.config.record_samples or other.record_samples),
        duplicates=first.duplicates + 1,
        aliases=first.aliases if other.label in known else (*first.aliases, other.label),
    )


def _grid_runs(spec: SweepSpec, grid: Grid, key: Key, catalog: Catalog) -> Iterator[RunConfig]:
    variants = [v for i, m in enumerate(grid.methods) for v in variants_of(spec, grid, m, (*key, "methods", i))]
    for v in {v.method: v for v in variants}.values():
        with _located(spec.document, v.key):
            catalog.check_method(v.method)
    _check_labels(variants, spec.document)
    for place in _places(grid, key, catalog, spec.document):
        for (m, model), protocol, precision, variant in itertools.product(
            enumerate(grid.models), grid.protocol or spec.protocol, grid.precision or spec.precision, variants
        ):
            with _located(spec.document, (*key, "models", m)):
                pretrained = _check_network(model, place, catalog)
                classes = catalog.num_classes(
                    place.benchmark, place.benchmark_options, model, spec.data.get(place.benchmark)
                )
            seeds = grid.seeds or spec.seeds
            pretrain_seeds = (grid.pretrain_seeds or spec.pretrain_seeds) if pretrained else [None]
            for batch_size in place.batch_sizes:
                question = Question(
                    method=variant.method,
                    overrides=variant.overrides,
                    model=model,
                    batch_size=batch_size,
                    num_classes=classes,
                    benchmark=place.benchmark,
                    scenario=place.scenario,
                    protocol=protocol,
                )
                settings = resolve(question, variant, catalog, spec.document)
                for (corruption, severity, span), pretrain_seed, seed in itertools.product(
                    place.conditions, pretrain_seeds, seeds
                ):
                    yield RunConfig(
                        benchmark=place.benchmark,
                        scenario=place.scenario,
                        model=model,
                        method=variant.method,
                        label=variant.label,
                        settings=settings,
                        seed=seed,
                        batch_size=batch_size,
                        corruption=corruption,
                        severity=severity,
                        corruptions=span,
                        benchmark_options=place.benchmark_options,
                        scenario_options=place.scenario_options,
                        pretrain_seed=pretrain_seed,
                        protocol=protocol,
                        precision=precision,
                        max_images=grid.max_images if grid.max_images is not None else spec.max_images,
                        record_samples=spec.samples if grid.samples is None else grid.samples,
                    )


def _check_labels(variants: Sequence[Variant], document: Document) -> None:
    """Two methods of a grid under one label would fall into one cell of every table."""
    known: dict[str, Variant] = {}
    for variant in variants:
        first = known.setdefault(variant.label, variant)
        if (first.method, first.overrides) != (variant.method, variant.overrides):
            raise document.error(
                variant.key,
                f"label {variant.label!r} already stands for another entry of this grid; "
                "tables could not tell them apart. Write another `label:`, or leave it out",
            )


def _places(grid: Grid, key: Key, catalog: Catalog, document: Document) -> Iterator[_Place]:
    for (b, benchmark), (s, scenario) in itertools.product(enumerate(grid.benchmark), enumerate(grid.scenario)):
        for options, scenario_options in itertools.product(
            product_of(grid.benchmark_options), product_of(grid.scenario_options)
        ):
            with _located(document, (*key, "benchmark_options") if options else (*key, "benchmark", b)):
                info = catalog.benchmark(benchmark, options)
            with _located(document, (*key, "scenario", s)):
                _check_scenario(scenario, info)
            with _located(document, (*key, "scenario_options")):
                resolved = catalog.scenario_options(scenario, scenario_options)
            yield _Place(
                benchmark=benchmark,
                benchmark_options=dict(info.options),
                scenario=scenario,
                scenario_options=resolved,
                conditions=_conditions(grid, key, scenario, info, document, catalog.tuning_corruptions()),
                batch_sizes=_batch_sizes(grid, key, scenario, info, document),
            )


def _check_scenario(scenario: str, info: Any) -> None:
    if scenario not in info.scenarios:
        raise ConfigError(f"{info.name} has no scenario {scenario!r}; {suggest(scenario, info.scenarios)}")


def _conditions(
    grid: Grid, key: Key, scenario: str, info: Any, document: Document, tuning: Sequence[str]
) -> list[tuple[str | None, int | None, tuple[str, ...]]]:
    """(corruption, severity, spanned corruptions) of each stream; ``tuning`` corruptions only if named."""
    if not info.corruptions:
        for name in ("corruptions", "severities"):
            if getattr(grid, name) is not None:
                raise document.error((*key, name), f"{info.name} has no such axis; leave {name} out")
        return [(None, None, ())]
    _check_conditions(grid, key, info, document)
    default = DEFAULT_SEVERITY if DEFAULT_SEVERITY in info.severities else max(info.severities)
    severities = grid.severities or [default]
    corruptions = grid.corruptions or [c for c in info.corruptions if c not in tuning]
    if scenario not in SPANNING:
        return list(itertools.product(corruptions, severities, [()]))
    spanned = tuple(dict.fromkeys(corruptions))
    if scenario == "mixed":  # the order in which images are pooled is not an axis: the benchmark's own
        spanned = tuple(sorted(spanned, key=info.corruptions.index))
    return [(None, severity, spanned) for severity in severities]


def _check_conditions(grid: Grid, key: Key, info: Any, document: Document) -> None:
    for i, name in enumerate(grid.corruptions or ()):
        if name not in info.corruptions:
            problem = f"{name!r} is no corruption of {info.name}; {suggest(name, info.corruptions)}"
            raise document.error((*key, "corruptions", i), problem)
    for i, level in enumerate(grid.severities or ()):
        if level not in info.severities:
            allowed = ", ".join(map(str, info.severities))
            raise document.error((*key, "severities", i), f"{info.name} has no severity {level}; allowed: {allowed}")


def _batch_sizes(grid: Grid, key: Key, scenario: str, info: Any, document: Document) -> list[int]:
    if scenario != "batch-size-1":
        return grid.batch_size or [info.default_batch_size]
    for i, size in enumerate(grid.batch_size or ()):
        if size != 1:
            raise document.error(
                (*key, "batch_size", i),
                f"{size} contradicts the scenario batch-size-1; leave batch_size out, or write another scenario",
            )
    return [1]


def _check_network(model: str, place: _Place, catalog: Catalog) -> bool:
    """Whether the project pretrains ``model`` for this benchmark; ConfigError if the two do not fit."""
    info = catalog.network(model)
    if catalog.has_recipe(model, place.benchmark):
        return True
    if info.trained_on is not None:
        raise ConfigError(f"{model} has no published weights and no pretraining recipe for {place.benchmark}")
    classes = catalog.benchmark(place.benchmark, place.benchmark_options).num_classes
    if info.num_classes is not None and classes is not None and info.num_classes < classes:
        raise ConfigError(f"{model} tells {info.num_classes} classes apart, {place.benchmark} has {classes}")
    return False


def _check_size(spec: SweepSpec) -> None:
    """Refuse products beyond ``MAX_RUNS`` by arithmetic alone."""
    total = 0
    for index, grid in enumerate(spec.runs):
        for name in ("benchmark_options", "scenario_options"):
            check_axes(getattr(grid, name), ("runs", index, name), spec.document)
        for m, entry in enumerate(grid.methods):
            check_axes(settings_of(spec, grid, entry), ("runs", index, "methods", m), spec.document)
        total += _grid_size(spec, grid)
        if total > MAX_RUNS:
            raise spec.document.error(
                ("runs", index),
                f"the spec asks for {total:,} runs or more; the limit is {MAX_RUNS:,}. Split it into several sweeps",
            )


def _grid_size(spec: SweepSpec, grid: Grid) -> int:
    """At least the runs that ``grid`` expands to (default corruptions and pretraining seeds count once)."""
    lists: list[Sequence[Any] | None] = [
        grid.benchmark,
        grid.scenario,
        grid.severities,
        grid.models,
        grid.batch_size,
        grid.seeds or spec.seeds,
        grid.protocol or spec.protocol,
        grid.precision or spec.precision,
    ]
    if not set(grid.scenario) & set(SPANNING):
        lists.append(grid.corruptions)
    variants = sum(choices(settings_of(spec, grid, entry)) for entry in grid.methods)
    options = choices(grid.benchmark_options) * choices(grid.scenario_options)
    return math.prod(len(x) for x in lists if x is not None) * variants * options


def _check_shared(spec: SweepSpec, catalog: Catalog) -> None:
    """Names that stand outside the grids: settings of methods, data of benchmarks."""
    for place, settings in [
        ((), spec.settings),
        *((("runs", i), g.settings) for i, g in enumerate(spec.runs)),
    ]:
        for method in settings:
            with _located(spec.document, (*place, "settings", method)):
                catalog.check_method(method)
    names = catalog.benchmark_names() if spec.data else []
    for name in spec.data:
        if name not in names:
            raise spec.document.error(("data", name), f"no such benchmark; {suggest(name, names)}")
        if catalog.benchmark(name, {}).bundled:
            raise spec.document.error(("data", name), "its images come with the package; it reads no folder")


@contextmanager
def _located(document: Document, key: Key) -> Iterator[None]:
    """Put where it was written before an error of the engine."""
    try:
        yield
    except (ConfigError, DataError) as error:
        raise type(error)(f"{document.where(key)}: {error}") from None
