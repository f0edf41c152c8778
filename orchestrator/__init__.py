"""deyo-sweep's orchestrator: spec, plan, schedule, workers, store, tracking, tables."""

from __future__ import annotations

from typing import Any

__all__ = ["open_results"]


def __getattr__(name: str) -> Any:
    """``open_results``, imported when it is asked for: workers need neither the store nor Parquet."""
    if name == "open_results":
        from orchestrator.results import open_results

        return open_results
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
