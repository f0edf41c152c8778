"""Reading a sweep for tables and reports: its results, its plan, its failures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deyo.types import ConfigError
from orchestrator.tables.data import SweepData, from_runs

COLUMNS_LEFT_OUT = ("schema_version",)


def load(target: str, results: str = "results", overrides: Sequence[str] = ()) -> SweepData:
    """The sweep ``target``, a sweep's name under the results root or the path of its spec (with ``--set``
    ``overrides``). Raises ``ConfigError`` if there is no such sweep.
    """
    return read(target, results, overrides)[0]


def read(target: str, root: str = "results", overrides: Sequence[str] = ()) -> tuple[SweepData, Any]:
    """``load``, and the open ``Results`` for what a report needs beyond runs."""
    from orchestrator import open_results

    spec = _spec(target, overrides)
    name = target if spec is None else spec.name
    results = open_results(root, name)
    plan = results.plan() if spec is None else _plan(spec)
    data = from_runs(
        results.runs(),
        sweep=name,
        planned=None if plan is None else plan.runs,
        failures=results.failures(),
    )
    return data, results


def _spec(target: str, overrides: Sequence[str]) -> Any | None:
    path = Path(target)
    if path.suffix not in (".yaml", ".yml"):
        if overrides:
            raise ConfigError(f"--set changes a spec; '{target}' is a sweep's name: give the path of its YAML file")
        return None
    from orchestrator.spec import load_spec

    return load_spec(path, list(overrides))


def _plan(spec: Any) -> Any:
    from orchestrator.plan import make_plan

    return make_plan(spec, None)
