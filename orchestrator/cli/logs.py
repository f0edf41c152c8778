"""``deyo-sweep logs``: what runs printed, every attempt of them, killed ones too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.asked import answer_of, show, sweep_without_results

if TYPE_CHECKING:
    from orchestrator.results import Results
    from orchestrator.store.logs import AttemptInfo

Run = Annotated[str | None, typer.Argument(help="A run's id or its first digits; left out: all failed runs.")]
Tail = Annotated[
    int | None, typer.Option("--tail", metavar="LINES", min=1, help="Only the last lines of each attempt.")
]


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("logs")(logs)


def logs(
    sweep: options.SpecOrSweep,
    run: Run = None,
    overrides: options.Set = [],  # noqa: B006  (typer copies it)
    smoke: options.Smoke = False,
    results: options.Results = options.DEFAULT_RESULTS,
    address: options.Address = None,
    allow_insecure: options.AllowInsecure = False,
    tail: Tail = None,
) -> None:
    """Print what the attempts at a run printed, and how each ended.

    With --address http://HOST:8265 the cluster's head is asked for the logs of a sweep that was submitted to it.
    """
    if address:
        words = [*([run] if run else []), *(["--tail", str(tail)] if tail else [])]
        name = sweep_without_results(sweep, overrides, smoke)
        text = answer_of(address, name, ["logs", name, *words], allow_insecure=allow_insecure, results=results)
        show(text)
        return
    from orchestrator import open_results

    opened = open_results(results, options.sweep_name(sweep, results, overrides, smoke=smoke))
    run_ids = _matching(opened, run) if run is not None else sorted(opened.failures())
    if not run_ids:
        typer.echo("no failed runs; name a run to see its log")
    for run_id in run_ids:
        for attempt in opened.attempts(run_id):
            typer.echo(_head(attempt))
            text = opened.log(run_id, attempt.attempt)
            lines = text.splitlines()[-tail:] if tail else text.splitlines()
            typer.echo("\n".join(lines) if lines else "(nothing was printed)")


def _matching(opened: Results, text: str) -> list[str]:
    from deyo.types import ConfigError

    plan = opened.plan()
    known = {r.run_id for r in plan.runs} if plan else set()
    known |= set(opened.failures()) | set(opened.runs(columns=["run_id"])["run_id"].to_pylist())
    found = sorted(run_id for run_id in known if run_id.startswith(text))
    if len(found) != 1:
        what = f"{len(found)} runs begin" if found else "no run begins"
        raise ConfigError(f"{what} with {text!r}; for example {', '.join(found[:5] or sorted(known)[:5])}")
    return found


def _head(attempt: AttemptInfo) -> str:
    from orchestrator.types import FailureClass

    end = attempt.state
    if attempt.failure:
        why = attempt.failure.message.splitlines()[0][:200]
        retried = attempt.failure.kind is FailureClass.CANCELLED  # its message begins with the kind that was met
        end = f"{end}, {why}" if retried else f"{end}, {attempt.failure.kind.value}: {why}"
    path = f", {attempt.log_path}" if attempt.log_path else ""
    return f"=== {attempt.run_id} attempt {attempt.attempt} ({attempt.started_at}): {end}{path}"
