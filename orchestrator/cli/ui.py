"""``deyo-sweep ui``: MLflow's UI on the tracking store in use."""

from __future__ import annotations

import json
import signal
import sys
import threading
import urllib.parse
import urllib.request
import webbrowser
from typing import Annotated

import typer

from orchestrator.cli import options

_LAYOUT = "?workflowType=machine_learning"  # MLflow's pages for runs and charts, not those for prompts and traces


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("ui", help="Open MLflow's UI on the runs of a sweep (on 127.0.0.1, until Ctrl-C).")(ui)


def ui(
    sweep: Annotated[
        str | None, typer.Argument(metavar="[SWEEP]", help="A sweep's name or its spec; without it, all experiments.")
    ] = None,
    results: options.Results = options.DEFAULT_RESULTS,
    uri: Annotated[str | None, typer.Option("--uri", help="Another tracking store than the sweep's.")] = None,
    port: Annotated[int, typer.Option("--port", help="Port on 127.0.0.1; another free one if it is taken.")] = 5000,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open a browser too.")] = True,
) -> None:
    """A tracking server's own UI is only pointed to; for a database (the embedded SQLite) a server is started."""
    from orchestrator.tracking.inuse import store_in_use
    from orchestrator.tracking.options import is_server, redact
    from orchestrator.tracking.preflight import check_tracking

    name = None if sweep is None else options.sweep_name(sweep, results)
    used = store_in_use(results, name, uri=uri)
    experiment = used.options.experiment or name
    if is_server(used.uri):
        problem = check_tracking(used.uri)
        if problem:
            typer.echo(f"error: {problem}", err=True)
            raise typer.Exit(2)
        _show(redact(used.uri), used.uri, experiment, open_browser)
        return
    _serve(used.uri, results, experiment, port, open_browser)


def _serve(uri: str, results: str, experiment: str | None, port: int, open_browser: bool) -> None:
    from orchestrator.tracking import local
    from orchestrator.tracking.options import redact
    from orchestrator.tracking.server import free_port, serve

    _require_database(uri, results)
    with local.log_file(results, "ui") as log:
        typer.echo(f"starting MLflow on {redact(uri)} (log: {local.log_path(results, 'ui')}) ...", err=True)
        with serve(uri, port=free_port(port), artifacts=local.artifacts_uri(results, "ui"), log=log) as url:
            _show(url, url, experiment, open_browser)
            typer.echo("Ctrl-C ends it", err=True)
            _wait_for_signal()


def _require_database(uri: str, results: str) -> None:
    from deyo.types import ConfigError
    from orchestrator.tracking.options import sqlite_path

    path = sqlite_path(uri)
    if path is not None and not path.exists():
        raise ConfigError(
            f"no MLflow database at {path}: run a sweep first, `deyo-sweep sync-mlflow SWEEP --results {results}` "
            "makes it from the results, or name another store with --uri"
        )


def _show(shown: str, url: str, experiment: str | None, open_browser: bool) -> None:
    page = f"/#/experiments{_LAYOUT}"
    number = _experiment_id(url, experiment) if experiment else None
    if number:
        page = f"/#/experiments/{number}/runs{_LAYOUT}"
    elif experiment:
        typer.echo(f"MLflow has no experiment {experiment!r} yet", err=True)
    typer.echo(f"MLflow UI: {shown}{page}")
    sys.stdout.flush()
    if open_browser and sys.stdout.isatty():
        webbrowser.open(f"{shown}{page}")


def _experiment_id(url: str, experiment: str) -> str | None:
    query = urllib.parse.urlencode({"experiment_name": experiment})
    try:
        with urllib.request.urlopen(f"{url}/api/2.0/mlflow/experiments/get-by-name?{query}", timeout=30) as answer:
            return str(json.load(answer)["experiment"]["experiment_id"])
    except (OSError, ValueError, KeyError):
        return None


def _wait_for_signal() -> None:
    """Until Ctrl-C or SIGTERM."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    while not ended.wait(0.5):
        pass
