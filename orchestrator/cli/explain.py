"""``deyo-sweep explain``: what a run's identity is made of, and why it is or is not taken as done."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.asked import answer_of, show, spec_there

if TYPE_CHECKING:
    from orchestrator.specmodel import SweepSpec
    from orchestrator.types import Plan, PlannedRun


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("explain")(explain)


def explain(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or its first digits.", show_default=False)],
    spec: Annotated[
        str | None,
        typer.Argument(metavar="[SPEC]", help="The spec it belongs to; by default the sweeps under --results."),
    ] = None,
    overrides: options.Set = [],  # noqa: B006  (typer copies it)
    smoke: options.Smoke = False,
    results: options.Results = options.DEFAULT_RESULTS,
    address: options.Address = None,
    allow_insecure: options.AllowInsecure = False,
    as_json: options.Json = False,
) -> None:
    """Say what a run's identity is made of, and why it is or is not taken as done.

    With --address http://HOST:8265 the cluster's head is asked about a spec that was submitted to it.
    """
    if address:
        _ask(run, spec, overrides, smoke, address, allow_insecure, results, as_json)
        return
    from orchestrator import explain as explaining
    from orchestrator import open_results
    from orchestrator.cli.plan import open_store
    from orchestrator.plan import History

    plans = [_plan(options.load(spec, overrides, smoke), results)] if spec else _stored_plans(results)
    sweep, found = _find(plans, run, results)
    store = open_store(results, sweep)
    rows = open_results(results, sweep).runs().to_pylist() if store else []
    explanation = explaining.explain(found, History.of(store), rows)
    if as_json:
        typer.echo(json.dumps(_as_json(explanation), indent=1))
    else:
        typer.echo(explaining.text(explanation))


def _ask(
    run: str,
    sweep: str | None,
    overrides: list[str],
    smoke: bool,
    address: str,
    allow_insecure: bool,
    results: str,
    as_json: bool,
) -> None:
    from deyo.types import ConfigError

    if sweep is None:
        raise ConfigError("--address needs the sweep as well: deyo-sweep explain RUN SPEC --address http://HOST:8265")
    name, there, spec = spec_there(sweep, overrides, smoke)
    words = ["explain", run, *([there] if spec else []), *(["--json"] if as_json else [])]  # a name is no spec there
    text = answer_of(address, name, words, allow_insecure=allow_insecure, results=results, spec=spec)
    show(text)


def _plan(spec: SweepSpec, results: str) -> Plan:
    from orchestrator.cli.plan import make, open_store

    return make(spec, open_store(results, spec.name), results)


def _stored_plans(results: str) -> list[Plan]:
    """Today's plan of each sweep under ``results``, from the spec that it was last run with."""
    from deyo.types import ConfigError
    from orchestrator.cli.stored import stored_spec, sweeps_under

    plans = []
    for sweep in sweeps_under(results):
        try:
            plans.append(_plan(stored_spec(results, sweep), results))
        except ConfigError as error:
            typer.echo(f"note: {sweep} is left out: {error}", err=True)
    return plans


def _find(plans: list[Plan], text: str, results: str) -> tuple[str, PlannedRun]:
    """The planned run whose id, or whose older id in the store, begins with ``text``."""
    from deyo.types import ConfigError
    from orchestrator.cli.plan import open_store

    for plan in plans:
        matching = [run for run in plan.runs if run.run_id.startswith(text)]
        if len(matching) > 1:
            raise ConfigError(
                f"{len(matching)} runs begin with {text!r}: {matching[0].run_id}, {matching[1].run_id}, …"
            )
        if matching:
            return plan.sweep, matching[0]
    for plan in plans:
        store = open_store(results, plan.sweep)
        older = [i for i in store.committed().values() if i.run_id.startswith(text)] if store else []
        for run in plan.runs:
            if older and run.stamps["config_id"] == older[0].stamps.get("config_id"):
                return plan.sweep, run
    names = ", ".join(plan.sweep for plan in plans) or f"nothing under {results}"
    raise ConfigError(f"no run begins with {text!r}; looked in {names}. `deyo-sweep plan SPEC --runs` lists the runs")


def _as_json(explanation: object) -> dict[str, object]:
    from dataclasses import asdict

    from orchestrator.specfile import plain

    return plain(asdict(explanation))  # type: ignore[call-overload]
