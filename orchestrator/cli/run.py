"""``deyo-sweep run``: run what is missing of a spec, here or on a cluster, and print the table."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

import typer

from orchestrator.cli import options

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.outcome import SweepOutcome
    from orchestrator.session import Place
    from orchestrator.specmodel import SweepSpec
    from orchestrator.types import Plan


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("run")(run)


def run(
    spec: options.Spec,
    overrides: options.Set = [],  # noqa: B006  (typer copies it)
    smoke: options.Smoke = False,
    results: options.Results = options.DEFAULT_RESULTS,
    address: options.Address = None,
    allow_insecure: options.AllowInsecure = False,
    in_process: options.InProcess = False,
    skip_bad: options.SkipBad = False,
    preflight: options.Preflight = True,
    quiet: options.Quiet = False,
) -> None:
    """Run what is missing of a sweep, show how it goes, and print its table.

    Ctrl-C once stops in order, twice at once; the same command goes on where it was. Exits with 0 if every run
    is done, 1 if some failed or are left, 130 if it was interrupted.
    """
    loaded = options.load(spec, overrides, smoke)
    where = place(address, allow_insecure, in_process)
    carry_out(loaded, results, where, skip_bad=skip_bad, preflight=preflight, quiet=quiet)


def carry_out(
    spec: SweepSpec,
    results: str,
    where: Place,
    *,
    skip_bad: bool,
    preflight: bool,
    quiet: bool,
    change: Callable[[Plan], Plan] | None = None,
) -> None:
    """Run what is missing of ``spec``, after ``change`` to its plan, to the last lines and the exit code."""
    from orchestrator.planning import unchanged
    from orchestrator.progress import make_progress
    from orchestrator.session import run_spec

    if not quiet:
        _import_tables()
    outcome = run_spec(
        spec,
        results=results,
        place=where,
        progress=make_progress(quiet=quiet),
        skip_bad=skip_bad,
        change=change or unchanged,
        preflight=preflight,
    )
    finish(outcome, results, quiet=quiet)


def place(address: str | None, allow_insecure: bool, in_process: bool = False) -> Place:
    """Where to run, from the flags."""
    from deyo.types import ConfigError
    from orchestrator.session import Place

    if address and address.startswith(("http://", "https://")):
        raise ConfigError(f"{address} is a dashboard: use `deyo-sweep submit SPEC --address {address}`, or HOST:6379")
    if address == "auto":
        from orchestrator.cluster import address_of_job

        address = address_of_job()
    if address and in_process:
        raise ConfigError("--in-process runs without a cluster: leave --address out")
    return Place(address=address, in_process=in_process, allow_insecure=allow_insecure)


def finish(outcome: SweepOutcome, results: str, *, quiet: bool) -> None:
    """The last lines of a sweep; raises ``typer.Exit`` with its code."""
    from orchestrator.outcome import FailureBoard
    from orchestrator.store.tree import join

    if not quiet and outcome.done:
        _print_table(outcome.sweep, results)
    if outcome.failures:
        typer.echo(f"{len(outcome.failures)} run{'s' * (len(outcome.failures) != 1)} failed:", err=True)
        board = FailureBoard()
        for run_id, failure in outcome.failures.items():
            board.count(run_id, failure)
        for line in board.lines():
            typer.echo(f"  {line}", err=True)
    waiting = len(outcome.failures) + outcome.earlier_failures
    if waiting:
        waits = f"{waiting} failed runs wait" if waiting > 1 else "1 failed run waits"
        typer.echo(f"{waits} for `deyo-sweep retry {outcome.sweep} --failed`", err=True)
    if outcome.message:
        typer.echo(outcome.message, err=True)
    if not quiet:
        typer.echo(summary(outcome))
        tables, ui = join(results, outcome.sweep, "tables"), f"deyo-sweep ui {outcome.sweep} --results {quote(results)}"
        typer.echo(f"Parquet: {tables}   MLflow: {ui}")
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)


def summary(outcome: SweepOutcome) -> str:
    """One line: what was done now, what was there, what is left."""
    from orchestrator.progress import duration

    if not outcome.seconds:
        return f"{outcome.sweep}: 0 to run, {outcome.done} of {outcome.total} runs were done before"
    before = outcome.done - outcome.committed
    earlier = f" ({before} were done before)" if before else ""
    left = f", {outcome.pending} left" if outcome.pending else ""
    took = duration(outcome.seconds)
    return f"{outcome.sweep}: {outcome.done} of {outcome.total} runs done{earlier}{left} in {took}"


def _import_tables() -> None:
    """Load what the table at the end needs: code that is edited during a sweep must not change how it ends."""
    from importlib import import_module
    from pkgutil import walk_packages

    from orchestrator import tables

    found = [module.name for module in walk_packages(tables.__path__, f"{tables.__name__}.")]
    for name in ["orchestrator.results", *found]:
        import_module(name)


def _print_table(sweep: str, results: str) -> None:
    """The sweep's table, or one line on why there is none: the runs are committed, whatever becomes of it."""
    import shutil
    import sys

    from deyo.types import ConfigError

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 100
    try:
        from orchestrator.tables.differences import compared
        from orchestrator.tables.load import load
        from orchestrator.tables.render import render

        typer.echo(render(compared(load(sweep, results)[0]), "text", width=width, color=sys.stdout.isatty()))
    except ConfigError as error:  # nothing to show yet, or a sweep that mixes what no table may mix
        typer.echo(f"no table: {error}", err=True)
    except BrokenPipeError:
        raise
    except Exception as error:
        command = f"deyo-sweep table {sweep} --results {quote(results)}"
        said = " ".join(f"{type(error).__name__}: {error}".split())
        typer.echo(f"no table ({said}); `{command}` prints it", err=True)
