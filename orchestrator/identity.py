"""Run identity: a hash of everything that decides a run's numbers.

``config_id`` covers the resolved config alone; ``run_id`` adds the weights that the run starts from, the version of the
engine's arithmetic and, of a user's own folder of images, which images it holds. Labels, paths of data, devices and the
number of workers are in neither.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from orchestrator.types import RunConfig

DIGITS = 16


def identity_fields(config: RunConfig) -> dict[str, Any]:
    """The fields of ``config`` that decide its numbers, in canonical form.

    A network read from a file goes by its file's name; its weights enter ``run_id`` by their sha256, so the folder
    does not matter.
    """
    return {
        "benchmark": config.benchmark,
        "benchmark_options": canonical(config.benchmark_options),
        "scenario": config.scenario,
        "scenario_options": canonical(config.scenario_options),
        "corruption": config.corruption,
        "severity": config.severity,
        "corruptions": list(config.corruptions),
        "model": model_name(config.model),
        "pretrain_seed": config.pretrain_seed,
        "method": config.method,
        "settings": canonical(config.settings),
        "seed": config.seed,
        "batch_size": config.batch_size,
        "protocol": config.protocol,
        "precision": config.precision,
        "max_images": config.max_images,
    }


def config_id(config: RunConfig) -> str:
    """16 hex digits over ``identity_fields``: the same for equal configs whatever the weights."""
    return _digest(identity_fields(config))


def run_id(
    config: RunConfig,
    *,
    weights_id: str | None = None,
    numerics_version: int | None = None,
    data_id: str | None = None,
) -> str:
    """16 hex digits: ``config_id``, the weights, the engine's numerics version and ``data_id`` (``Catalog.data_id``).

    A run that records samples has an id of its own: one without them cannot stand in for it.
    Weights and version that are not given are asked of the engine (``deyo.networks.weights_id``, ``deyo.numerics``).
    """
    if weights_id is None or numerics_version is None:
        from orchestrator.catalog import Catalog

        catalog = Catalog()
        weights_id = weights_id or catalog.weights_id(config.model, config.benchmark)
        numerics_version = numerics_version or catalog.stamps()["numerics_version"]
    return combined_id(config_id(config), weights_id, numerics_version, samples=config.record_samples, data_id=data_id)


def combined_id(
    config: str,
    weights_id: str,
    numerics_version: int,
    *,
    samples: bool = False,
    code_digest: str | None = None,
    data_id: str | None = None,
) -> str:
    """``run_id`` from a ``config_id`` at hand; with a ``code_digest`` any change of engine code changes it."""
    extra = [*(["samples"] if samples else []), *([code_digest] if code_digest else [])]
    extra += [f"data {data_id}"] if data_id else []
    return _digest([config, weights_id, numerics_version, *extra])


def canonical(value: Any) -> Any:
    """JSON values in one form: keys as text, 1.0 as 1, -0.0 as 0, tuples as lists."""
    if isinstance(value, Mapping):
        return {str(k): canonical(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [canonical(v) for v in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def model_name(model: str) -> str:
    """``file:/anywhere/net.safetensors`` as ``file:net.safetensors``; other names as they are."""
    scheme, _, path = model.partition(":")
    return f"file:{PurePath(path).name}" if scheme == "file" else model


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
