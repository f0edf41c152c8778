"""``deyo-sweep retry``: run failed runs again, all of them or some."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.run import carry_out, place
from orchestrator.cli.submit import submit_job

Failed = Annotated[bool, typer.Option("--failed", help="Required: say that failed runs are to be run again.")]
Where = Annotated[
    list[str],
    typer.Option("--where", metavar="AXIS=VALUE", help="Only these, as in method=deyo or failure=data. Repeatable."),
]


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("retry")(retry)


def retry(
    sweep: options.SpecOrSweep,
    failed: Failed = False,
    where: Where = [],  # noqa: B006  (typer copies it)
    overrides: options.Set = [],  # noqa: B006
    smoke: options.Smoke = False,
    results: options.Results = options.DEFAULT_RESULTS,
    address: options.Address = None,
    allow_insecure: options.AllowInsecure = False,
    in_process: options.InProcess = False,
    skip_bad: options.SkipBad = False,
    preflight: options.Preflight = True,
    quiet: options.Quiet = False,
) -> None:
    """Run a sweep's failed runs again, and whatever else is missing of it; earlier attempts and logs are kept.

    With --address http://HOST:8265 through Ray Jobs, like `submit`.
    """
    from deyo.types import ConfigError
    from orchestrator.filters import RetryFailed, parse_where

    if not failed:
        raise ConfigError(f"say which runs: `deyo-sweep retry {sweep} --failed` (all), or with --where method=deyo")
    if options.is_spec_file(sweep):
        spec = options.load(sweep, overrides, smoke)
    else:
        from orchestrator.cli.stored import stored_spec

        spec = stored_spec(results, options.sweep_name(sweep, results))
    filters = parse_where(where)
    if address and address.startswith(("http://", "https://")):
        submit_job(spec, address, results, allow_insecure, skip_bad, retry=where)
        return
    there = place(address, allow_insecure, in_process)
    carry_out(spec, results, there, skip_bad=skip_bad, preflight=preflight, quiet=quiet, change=RetryFailed(filters))
