"""Planning in a process of its own, so that the driver stays small.

Resolving settings loads the engine, and with it torch: some 500 MB that the driver would hold for the whole sweep
without using them.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING

from orchestrator.plan import make_plan
from orchestrator.specmodel import SweepSpec
from orchestrator.store import ParquetStore
from orchestrator.types import Plan

if TYPE_CHECKING:
    from orchestrator.preflight import Check


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan, which of its methods are written over R runs, and the preflight's checks."""

    plan: Plan
    lockstep: Mapping[str, bool]
    checks: tuple[Check, ...] = ()


def plan_here(
    spec: SweepSpec, results: str, change: Callable[[Plan], Plan], preflight: bool, address: str | None
) -> Planned:
    """The plan after ``change`` (``retry``), and the checks if asked for and there is something to run."""
    from orchestrator.driver import lockstep_of
    from orchestrator.preflight import preflight as look

    plan = change(make_plan(spec, ParquetStore(results, spec.name), results=results))
    names = {run.config.method for run in plan.todo}
    checks = tuple(look(spec, plan, results=results, address=address)) if preflight and plan.todo else ()
    return Planned(plan=plan, lockstep={name: lockstep_of(name) for name in names}, checks=checks)


def plan_apart(
    spec: SweepSpec, results: str, change: Callable[[Plan], Plan], preflight: bool, address: str | None
) -> Planned:
    """``plan_here`` in a child process; ``change`` must be picklable. Its exceptions are raised here."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_leave_signals) as pool:
        return pool.submit(plan_here, spec, results, change, preflight, address).result()


def unchanged(plan: Plan) -> Plan:
    return plan


def _leave_signals() -> None:
    """Ctrl-C is the parent's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
