"""Reading a sweep for tables and reports: its results, its plan, its failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deyo.types import ConfigError, DataError
from orchestrator.tables.data import SweepData, from_runs

SAMPLE_COLUMNS = ("run_id", "position", "label", "group", "prediction", "entropy", "plpd")

if TYPE_CHECKING:
    from orchestrator.results import Results
    from orchestrator.types import PlannedRun


def load(
    target: str, root: str = "./results", overrides: Sequence[str] = (), *, smoke: bool = False
) -> tuple[SweepData, Results]:
    """The sweep ``target``, a sweep's name under the results root or the path of its spec (with ``--set``
    ``overrides``), and its open results.

    What is missing is measured against the spec where its file is given, else against the plan that the sweep last
    ran with. Raises ``ConfigError`` if there is no such sweep.
    """
    from orchestrator import open_results
    from orchestrator.cli.options import is_spec_file, sweep_name

    if overrides and not is_spec_file(target):
        raise ConfigError(f"--set changes a spec, and '{target}' is a sweep's name: give the path of its YAML file")
    name = sweep_name(target, root, list(overrides), smoke=smoke)
    results = open_results(root, name)
    data = from_runs(
        results.runs(),
        sweep=name,
        planned=_planned(target, overrides, smoke, results) if is_spec_file(target) else _kept(results),
        failures=results.failures(),
        samples=lambda run_ids: results.samples(run_ids, columns=SAMPLE_COLUMNS),
    )
    return data, results


def _kept(results: Results) -> Sequence[PlannedRun] | None:
    plan = results.plan()
    return None if plan is None else plan.runs


def _planned(target: str, overrides: Sequence[str], smoke: bool, results: Results) -> Sequence[PlannedRun] | None:
    """The runs of the spec as it is now; of the kept plan where weights or images that identities rest on are gone."""
    from orchestrator.catalog import UNREADABLE
    from orchestrator.cli.options import load as load_spec
    from orchestrator.plan import make_plan

    try:
        runs = make_plan(load_spec(target, list(overrides), smoke)).runs
    except DataError:
        return _kept(results)
    return _kept(results) if any(run.stamps.get("data_id") == UNREADABLE for run in runs) else runs
