"""What the engine knows of benchmarks, networks, methods and scenarios, asked once for each distinct question.

The engine is imported when first asked, so that a spec's shape is checked (and its errors shown) without torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deyo.types import ConfigError, DataError, NetworkInfo
from orchestrator.analyses import (
    NO_NETWORK,
    SYNTHETIC,
    analysis_settings,
    check_place,
    is_analysis,
    no_network_info,
    synthetic_info,
)

UNREADABLE = "unreadable"


@dataclass(frozen=True, kw_only=True)
class Question:
    """A method's settings as asked for, and all that their resolution depends on."""

    method: str
    overrides: Mapping[str, Any]
    model: str
    batch_size: int
    num_classes: int
    benchmark: str
    scenario: str
    protocol: str

    def key(self) -> tuple[Any, ...]:
        """A hashable form."""
        return tuple(_key(v) if isinstance(v, Mapping) else v for v in vars(self).values())


class Catalog:
    """Cached answers of the engine. Errors (``ConfigError``) are not cached: they end the expansion."""

    def __init__(self) -> None:
        self._answers: dict[tuple[Any, ...], Any] = {}

    def benchmark(self, name: str, options: Mapping[str, Any]) -> Any:
        """``BenchmarkInfo`` of ``name`` with ``options``."""

        def ask() -> Any:
            from deyo.benchmarks import benchmark_info

            return synthetic_info(options) if name == SYNTHETIC else benchmark_info(name, **options)

        return self._once(("benchmark", name, _key(options)), ask)

    def benchmark_names(self) -> list[str]:
        from deyo.benchmarks import benchmark_names

        return self._once(("benchmarks",), benchmark_names)

    def tuning_corruptions(self) -> tuple[str, ...]:
        """Corruptions that are for tuning alone, and so no part of a sweep that names none."""
        from deyo.corruptions import EXTRA_CORRUPTIONS

        return EXTRA_CORRUPTIONS

    def network(self, name: str) -> NetworkInfo:
        def ask() -> NetworkInfo:
            from deyo.networks import network_info

            return no_network_info() if name == NO_NETWORK else network_info(name)

        return self._once(("network", name), ask)

    def has_recipe(self, model: str, benchmark: str) -> bool:
        """Whether the project pretrains ``model`` itself for ``benchmark``."""

        def ask() -> bool:
            from deyo.pretrain import recipe_for

            return model != NO_NETWORK and recipe_for(model, benchmark) is not None

        return self._once(("recipe", model, benchmark), ask)

    def can_pretrain(self, benchmark: str) -> bool:
        """Whether the benchmark has images to pretrain on; True for one of an installed package, which may."""

        def ask() -> bool:
            from deyo.benchmarks.base import BaseBenchmark
            from deyo.benchmarks.registry import benchmark_class

            found = benchmark_class(benchmark)
            return getattr(found, "train_images", None) is not BaseBenchmark.train_images

        return self._once(("trains", benchmark), ask)

    def weights_id(self, model: str, benchmark: str) -> str:
        """What identifies the weights that a run starts from (``deyo.networks.weights_id``)."""

        def ask() -> str:
            from deyo.networks import weights_id

            return NO_NETWORK if model == NO_NETWORK else weights_id(model, benchmark)

        return self._once(("weights", model, benchmark), ask)

    def data_id(self, benchmark: str, options: Mapping[str, Any], root: str | None) -> str | None:
        """What identifies the images of a benchmark whose name does not say which they are; None for the others.

        ``UNREADABLE`` where they cannot be listed, which the preflight explains.
        """

        def ask() -> str | None:
            from deyo.benchmarks import open_benchmark
            from deyo.benchmarks.registry import benchmark_class

            if benchmark == SYNTHETIC or not hasattr(benchmark_class(benchmark), "data_id"):
                return None
            try:
                return open_benchmark(benchmark, root=root, **options).data_id()  # type: ignore[attr-defined]
            except (DataError, OSError):
                return UNREADABLE

        return self._once(("data", benchmark, _key(options), root), ask)

    def weights_here(self, model: str) -> str | None:
        """Where this machine has the published weights of ``model``; None if they would be fetched."""
        from deyo.networks.registry import definition

        weights = definition(model).weights
        if not hasattr(weights, "file_names"):
            return "in a file"
        return next((str(path) for path in _weight_files(weights) if path.exists()), None)

    def scenario_options(self, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """``options`` of scenario ``name`` with defaults filled in."""

        def ask() -> dict[str, Any]:
            from deyo.streams import scenario_options

            return dict(scenario_options(name, options))

        return self._once(("scenario", name, _key(options)), ask)

    def settings(self, question: Question) -> dict[str, Any]:
        """Every field of the method's settings, as JSON values."""

        def ask() -> dict[str, Any]:
            from deyo.methods import resolve_settings, settings_to_json

            check_place(question.method, question.benchmark, question.model)
            if is_analysis(question.method):
                return analysis_settings(question.method, question.overrides, self._situation(question))
            resolved = resolve_settings(
                question.method,
                question.overrides,
                info=self.network(question.model),
                batch_size=question.batch_size,
                num_classes=question.num_classes,
                benchmark=question.benchmark,
                scenario=question.scenario,
                protocol=question.protocol,
            )
            return settings_to_json(resolved)

        return self._once(("settings", *question.key()), ask)

    def _situation(self, question: Question) -> Any:
        from deyo.protocols import Situation

        return Situation(
            info=self.network(question.model),
            batch_size=question.batch_size,
            num_classes=question.num_classes,
            benchmark=question.benchmark,
            scenario=question.scenario,
            protocol=question.protocol,
        )

    def check_method(self, name: str) -> None:
        """Raises ``ConfigError`` if there is no method, nor analysis, of this name."""

        def ask() -> Any:
            from deyo.methods import settings_class

            return name if is_analysis(name) else settings_class(name)

        self._once(("method", name), ask)

    def num_classes(self, benchmark: str, options: Mapping[str, Any], model: str, root: str | None) -> int:
        """Classes that predictions are over: the benchmark's, or the network's where only the data can tell."""
        info = self.benchmark(benchmark, options)
        if info.num_classes is not None:
            return info.num_classes
        known = self.network(model).num_classes
        if known is not None:
            return known

        def ask() -> int:
            from deyo.benchmarks import open_benchmark

            return open_benchmark(benchmark, root=root, **options).num_classes

        return self._once(("classes", benchmark, _key(options), root), ask)

    def stamps(self) -> dict[str, Any]:
        """The engine's own version stamps."""
        from deyo.numerics import NUMERICS_VERSION, code_digest

        return {"numerics_version": NUMERICS_VERSION, "code_digest": code_digest()}

    def _once(self, key: tuple[Any, ...], ask: Callable[[], Any]) -> Any:
        if key not in self._answers:
            self._answers[key] = ask()
        return self._answers[key]


def _weight_files(weights: Any) -> Iterator[Path]:
    """The places of a hub's file: the user's folder, then the caches of torchvision and of the Hugging Face hub."""
    from deyo.networks.hub import weights_folder

    if folder := weights_folder():
        yield from (folder / name for name in weights.file_names())
    if weights.library == "torchvision":
        import torch

        yield Path(torch.hub.get_dir()) / "checkpoints" / weights.file_names()[0]
    else:
        from huggingface_hub.constants import HF_HUB_CACHE

        yield Path(HF_HUB_CACHE) / f"models--timm--{weights.name}.{weights.tag}"


def _key(options: Mapping[str, Any]) -> str:
    try:
        return json.dumps(options, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError):
        raise ConfigError(f"options must be plain values, found {options!r}") from None
