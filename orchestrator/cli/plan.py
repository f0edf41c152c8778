"""``deyo-sweep plan``: what would run, and why, without running anything."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import options

if TYPE_CHECKING:
    from orchestrator.cost import CostModel
    from orchestrator.preflight import Check
    from orchestrator.specmodel import SweepSpec
    from orchestrator.types import Plan, PlannedRun, Store


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("plan")(plan)


def plan(
    spec: options.Spec,
    overrides: options.Set = [],  # noqa: B006  (typer copies it)
    smoke: options.Smoke = False,
    results: options.Results = options.DEFAULT_RESULTS,
    address: options.Address = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Show one run resolved: its id, or the first digits.")
    ] = None,
    runs: Annotated[bool, typer.Option("--runs", help="List every run with its status and reason.")] = False,
    preflight: Annotated[bool, typer.Option(help="Check data, weights, MLflow, disk and resources as well.")] = True,
    as_json: options.Json = False,
) -> None:
    """Say what would run: new, done, failed and stale runs with reasons, the cost, and whether all is there.

    Exits with 1 if a check failed.
    """
    loaded = options.load(spec, overrides, smoke)
    store = open_store(results, loaded.name)
    planned = make(loaded, store, results)
    costs = cost_model(results, loaded.name, planned.todo)
    if run is not None:
        _show_run(find_run(planned, run), costs, as_json)
        return
    checks = _preflight(loaded, planned, results, address) if preflight else []
    if as_json:
        typer.echo(json.dumps(_as_json(planned, costs, checks), indent=1))
    else:
        _print_plan(planned, costs, checks, every_run=runs)
    if any(check.ok is False for check in checks):
        raise typer.Exit(1)


def open_store(results: str, sweep: str) -> Store | None:
    """The sweep's store, or None where nothing was stored yet (nothing is created)."""
    from pathlib import Path

    if "://" not in results and not (Path(results) / sweep).is_dir():
        return None
    from orchestrator.store import ParquetStore

    return ParquetStore(results, sweep)


def make(spec: SweepSpec, store: Store | None, results: str) -> Plan:
    """The plan of ``spec`` against its own store and the other sweeps under ``results``."""
    from pathlib import Path

    from orchestrator.plan import make_plan

    there = "://" in results or Path(results).is_dir()
    return make_plan(spec, store, results=results if there else None)


def cost_model(results: str, sweep: str, todo: Sequence[PlannedRun]) -> CostModel:
    """Speeds from the finished runs under ``results``, the sweep's own first.

    Where nothing is known of any run, those of this machine's kind.
    """
    from orchestrator.cost import CostModel

    costs = CostModel.of(results, sweep)
    if not costs.learnt_here and not any(costs.lookup(run.config) for run in todo):
        import torch

        costs.device = costs.device if torch.cuda.is_available() else "cpu"
    return costs


def find_run(planned: Plan, text: str) -> PlannedRun:
    """The run whose id begins with ``text``."""
    from deyo.types import ConfigError

    found = [r for r in planned.runs if r.run_id.startswith(text)]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(r.run_id for r in (found or planned.runs)[:5])
    what = f"{len(found)} runs begin with" if found else "no run of the plan begins with"
    raise ConfigError(f"{what} {text!r}; for example {listed} (`deyo-sweep plan SPEC --runs` lists them)")


def _preflight(spec: SweepSpec, planned: Plan, results: str, address: str | None) -> list[Check]:
    from orchestrator.preflight import preflight

    return preflight(spec, planned, results=results, address=address)


def _print_plan(planned: Plan, costs: CostModel, checks: list[Check], *, every_run: bool) -> None:
    counts = Counter(r.status.value for r in planned.runs)
    shown = ", ".join(f"{counts[s]} {s}" for s in ("new", "done", "failed", "stale"))
    merged = f"; {planned.merged_duplicates} duplicates merged" if planned.merged_duplicates else ""
    typer.echo(f"{planned.sweep}: {len(planned.runs)} runs: {shown}{merged}")
    typer.echo(f"{len(planned.todo)} to run: {costs.estimate(planned.todo).text()}")
    if every_run:
        for r in planned.runs:
            typer.echo(f"  {r.run_id}  {r.status.value:6}  {describe(r)}  ({r.reason})")
    else:
        _print_groups(planned)
    for check in checks:
        mark = {True: "ok  ", False: "FAIL", None: "note"}[check.ok]
        typer.echo(f"{mark} {check.name}: {check.detail}")
    if counts["failed"]:
        typer.echo("failed runs wait for `deyo-sweep retry SPEC --failed`")


def _print_groups(planned: Plan) -> None:
    """One line for each place, network and label; and the commonest reasons of what is not new."""
    groups: dict[tuple[str, str, str, str], Counter[str]] = {}
    for r in planned.runs:
        c = r.config
        groups.setdefault((c.benchmark, c.scenario, c.model, c.label), Counter())[r.status.value] += 1
    rows = [(*key, ", ".join(f"{n} {status}" for status, n in count.items())) for key, count in groups.items()]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        typer.echo("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)).rstrip())
    reasons: dict[tuple[str, str], list[str]] = {}
    for r in planned.runs:
        if r.status.value != "new":
            reason = _general(r.reason)
            reasons.setdefault((r.status.value, re.sub(r"\d+", "N", reason)), []).append(reason)
    for (status, _), alike in sorted(reasons.items(), key=lambda item: -len(item[1]))[:8]:
        typer.echo(f"  {len(alike)} {status}: {alike[0]}")


def _general(reason: str) -> str:
    """A reason without what is the run's own (ids, attempts, logs and times), so that equal ones add up."""
    reason = re.sub(r"; log: \S+$", "", reason)
    reason = re.sub(r"; last done as [0-9a-f]{16} at \S+", "", reason)
    return re.sub(r", attempt \d+, [^;]*", "", reason)


def describe(run: PlannedRun) -> str:
    """A run in one line."""
    c = run.config
    where = "/".join(str(x) for x in (c.benchmark, c.corruption, c.severity) if x is not None)
    seeds = f"seed {c.seed}" + (f", pretrained {c.pretrain_seed}" if c.pretrain_seed is not None else "")
    return f"{where} {c.scenario} {c.model} {c.label} batch {c.batch_size} {seeds}"


def _show_run(run: PlannedRun, costs: CostModel, as_json: bool) -> None:
    details = _details(run, costs)
    if as_json:
        typer.echo(json.dumps(details, indent=1))
        return
    typer.echo(f"{run.run_id}: {run.status.value} ({run.reason})")
    for name, value in details["config"].items():
        if name != "settings":
            typer.echo(f"  {name}: {value}")
    typer.echo("  settings:")
    for name, value in details["config"]["settings"].items():
        typer.echo(f"    {name}: {value}")
    typer.echo("  identity:")
    for name, value in run.stamps.items():
        typer.echo(f"    {name}: {value}")
    seconds = details["seconds"]
    typer.echo(f"  cost: {'unknown' if seconds is None else f'about {seconds:.0f} s on {costs.device}'}")


def _details(run: PlannedRun, costs: CostModel) -> dict[str, Any]:
    from orchestrator.specfile import plain

    return {
        "run_id": run.run_id,
        "status": run.status.value,
        "reason": run.reason,
        "duplicates": run.duplicates,
        "aliases": list(run.aliases),
        "config": plain(vars(run.config)),
        "stamps": dict(run.stamps),
        "seconds": costs.seconds(run.config),
    }


def _as_json(planned: Plan, costs: CostModel, checks: list[Check]) -> dict[str, Any]:
    estimate = costs.estimate(planned.todo)
    return {
        "sweep": planned.sweep,
        "counts": dict(Counter(r.status.value for r in planned.runs)),
        "merged_duplicates": planned.merged_duplicates,
        "estimate": {
            "hours": estimate.hours,
            "device": estimate.device,
            "runs": estimate.runs,
            "unknown_runs": sum(estimate.unknown.values()),
            "guessed_hours": estimate.guessed,
            "text": estimate.text(),
        },
        "checks": [asdict(check) for check in checks],
        "runs": [_details(run, costs) for run in planned.runs],
    }
