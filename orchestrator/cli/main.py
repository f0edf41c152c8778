"""``deyo-sweep``: puts the verbs together, and turns errors of the user's making into one clear message.

Each verb is a module of this package with ``register(app)``. Only what ``--help`` needs is imported here; a verb
imports what it uses when it runs, so that ``deyo-sweep --help`` answers at once.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, NoReturn

import typer

from orchestrator.signals import sigterm_interrupts

VERBS = [
    "plan",
    "prepare",
    "pretrain",
    "run",
    "submit",
    "status",
    "watch",
    "logs",
    "cancel",
    "retry",
    "explain",
    "table",
    "report",
    "query",
    "results",
    "fsck",
    "ui",
    "sync-mlflow",
    "doctor",
    "bench",
]

USAGE_ERROR = 2
INTERRUPTED = 130


def make_app(verbs: Sequence[str] = tuple(VERBS)) -> typer.Typer:
    """The command line with ``verbs``."""
    app = typer.Typer(
        name="deyo-sweep",
        help="Sweeps of test-time adaptation: plan, run, resume, and read the results.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @app.callback()
    def options(
        version: Annotated[
            bool, typer.Option("--version", help="Print the version and stop.", callback=_version, is_eager=True)
        ] = False,
    ) -> None:
        """Sweeps of test-time adaptation: plan, run, resume, and read the results."""

    for verb in verbs:
        import_module(f"orchestrator.cli.{verb.replace('-', '_')}").register(app)
    return app


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"deyo-sweep {version('deyo-sweep')}")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script: exits with 0, 1 (the sweep has failures), 2 (wrong usage, spec or data) or 130.

    SIGTERM is the same as Ctrl-C, also before and after the sweep itself, which answers both in order.
    """
    with sigterm_interrupts():
        code = run(list(sys.argv[1:] if arguments is None else arguments))
    _end(code)


def _end(code: int) -> NoReturn:
    """End the process with ``code`` once its threads and exit handlers are done, without the interpreter's own end.

    That end stops background threads wherever they are, and one that is inside a native library then takes the
    process down ("terminate called without an active exception") when all its work is done.
    """
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def run(arguments: list[str]) -> int:
    """Like ``main``, returning the exit code."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    verbs = [arguments[0]] if arguments and arguments[0] in VERBS else VERBS
    try:
        return make_app(verbs)(args=arguments, prog_name="deyo-sweep", standalone_mode=True) or 0
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else USAGE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if is_explained(error):
            typer.echo(f"error: {error}", err=True)
        elif isinstance(error, OSError) and error.errno in _OF_THE_MACHINE and error.filename is not None:
            typer.echo(f"error: {os.fsdecode(error.filename)}: {error.strerror}", err=True)
        else:
            raise
        return USAGE_ERROR


_OF_THE_MACHINE = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EEXIST,
        errno.ENAMETOOLONG,
    }
)
"""Errors of files whose reason lies in the machine or in a path that was given, not in this code."""


def is_explained(error: BaseException) -> bool:
    """Whether ``error`` is one of the project's own, whose message is all that the user needs."""
    explained = {
        "deyo.types": ("ConfigError", "DataError"),
        "orchestrator.store.errors": ("StoreError",),
        "orchestrator.probe": ("ClusterError",),
    }
    for name, classes in explained.items():
        module = sys.modules.get(name)  # an error of a module that was never loaded cannot have been raised
        if module and isinstance(error, tuple(getattr(module, c) for c in classes)):
            return True
    return False
