"""Choosing runs by their axes: ``--where method=deyo --where seed=0,1``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from deyo.types import ConfigError
from orchestrator.plan import with_retries
from orchestrator.suggest import suggest
from orchestrator.types import Plan, PlannedRun, RunStatus

AXES = (
    "run",
    "benchmark",
    "corruption",
    "severity",
    "scenario",
    "model",
    "method",
    "label",
    "seed",
    "pretrain_seed",
    "batch_size",
    "protocol",
    "precision",
    "failure",
)


def parse_where(conditions: Iterable[str]) -> dict[str, frozenset[str]]:
    """``AXIS=VALUE[,VALUE…]`` conditions, all of which must hold. Raises ``ConfigError``."""
    found: dict[str, frozenset[str]] = {}
    for text in conditions:
        axis, equals, values = text.partition("=")
        if not equals or not values:
            raise ConfigError(f"--where {text!r}: write AXIS=VALUE, for example method=deyo")
        if axis not in AXES:
            raise ConfigError(f"--where {text!r}: no axis {axis!r}; {suggest(axis, AXES)}")
        found[axis] = frozenset(value.strip() for value in values.split(","))
    return found


@dataclass(frozen=True)
class RetryFailed:
    """Makes a plan's failed runs, or those that ``where`` picks, new again.

    ``failure`` matches the class of the failure or its signature's class, as ``status`` shows it; ``run`` the
    first digits of the id.
    """

    where: Mapping[str, frozenset[str]]

    def __call__(self, plan: Plan) -> Plan:
        failed = [run for run in plan.runs if run.status is RunStatus.FAILED]
        if failed and not any(map(self.matches, failed)):
            asked = " and ".join(f"{axis}={','.join(sorted(values))}" for axis, values in self.where.items())
            have = "; ".join(
                f"{axis}: {', '.join(sorted({_value(r, axis) for r in failed})[:12])}" for axis in self.where
            )
            raise ConfigError(f"none of the {len(failed)} failed runs has {asked}; they have {have}")
        return with_retries(plan, self.matches)

    def matches(self, run: PlannedRun) -> bool:
        return all(self._matches(run, axis, values) for axis, values in self.where.items())

    def _matches(self, run: PlannedRun, axis: str, values: frozenset[str]) -> bool:
        if axis == "run":
            return any(run.run_id.startswith(value) for value in values)
        return _value(run, axis) in values


def _value(run: PlannedRun, axis: str) -> str:
    if axis == "run":
        return run.run_id
    if axis == "failure":  # a failed run's reason begins with the class of its failure
        return run.reason.split(":")[0]
    value = getattr(run.config, axis)
    return "" if value is None else str(value)
