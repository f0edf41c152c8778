"""One call from names to a method ready to step: for notebooks and examples."""

from __future__ import annotations

from typing import Any

import torch

from deyo.methods import create_method, resolve_settings
from deyo.types import Benchmark, Method, MethodContext, Network


def build_method(
    name: str,
    network: Network,
    *,
    benchmark: Benchmark | None = None,
    scenario: str = "mild",
    seed: int = 0,
    batch_size: int = 64,
    protocol: str = "official",
    precision: str = "tf32",
    device: str | torch.device = "cpu",
    **settings: Any,
) -> Method:
    """One run (R = 1) of method ``name`` with the protocol's defaults for this benchmark and ``settings`` over them.

    EATA takes its Fisher matrix from ``benchmark.source_images()``. Raises ConfigError for unknown names.
    """
    columns = None if benchmark is None else benchmark.class_columns
    resolved = resolve_settings(
        name,
        settings,
        info=network.info,
        batch_size=batch_size,
        num_classes=network.num_classes if columns is None else len(columns),
        benchmark="" if benchmark is None else benchmark.name,
        scenario=scenario,
        protocol=protocol,
    )
    needs_source = benchmark is not None and getattr(resolved, "fisher_strength", 0)
    context = MethodContext(
        network=network,
        seeds=[seed],
        batch_size=batch_size,
        device=torch.device(device),
        precision=precision,
        class_columns=columns,
        entropy_classes=getattr(benchmark, "entropy_classes", None),
        source=benchmark.source_images() if needs_source else None,
    )
    return create_method(name, context, [resolved])
