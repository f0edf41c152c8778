"""Flags that several verbs share: the same words, defaults and help everywhere."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deyo.types import ConfigError

if TYPE_CHECKING:
    from orchestrator.specmodel import SweepSpec

DEFAULT_RESULTS = "./results"

Spec = Annotated[str, typer.Argument(help="A sweep spec (YAML file).", show_default=False)]
SpecOrSweep = Annotated[
    str, typer.Argument(metavar="SWEEP", help="A sweep's name under --results, or its spec (YAML file).")
]
Set = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key of the spec, as in seeds=[0] or 'runs[0].methods=[deyo]'. Repeatable.",
    ),
]
Smoke = Annotated[bool, typer.Option("--smoke", help="The spec's reduced form: few images, one seed.")]
Results = Annotated[
    str,
    typer.Option(
        "--results",
        metavar="PATH",
        help="Where results are kept (path, s3://, gs://).",
        callback=lambda path: _a_folder(path),
    ),
]
Address = Annotated[
    str | None,
    typer.Option("--address", metavar="ADDR", help="A Ray cluster: HOST:6379, or http://HOST:8265 for Ray Jobs."),
]
InProcess = Annotated[
    bool, typer.Option("--in-process", help="Run in this process, without Ray: slower, easy to debug.")
]
AllowInsecure = Annotated[
    bool, typer.Option("--allow-insecure", help="Join a cluster on a network that has no authentication.")
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave unreadable images out, counted in the results, instead of failing.")
]
Preflight = Annotated[bool, typer.Option(help="Check data, weights, disk and resources before anything starts.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no table; failures are still told.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def is_spec_file(text: str) -> bool:
    """Whether ``text`` names a YAML file rather than a sweep."""
    return text.endswith((".yaml", ".yml")) or Path(text).is_file()


def load(spec: str, overrides: list[str], smoke: bool) -> SweepSpec:
    """The spec in file ``spec``; ``ConfigError`` names the spec files nearby if there is none."""
    from orchestrator.spec import load_spec

    if not Path(spec).is_file():
        near = sorted(str(p) for folder in (Path(), Path("experiments")) for p in folder.glob("*.yaml") if p.is_file())
        listed = f"; here are: {', '.join(near[:12])}" if near else ""
        what = f"{spec!r} is a folder, no spec file" if Path(spec).is_dir() else f"no spec file {spec!r}"
        raise ConfigError(f"{what}{listed}")
    return load_spec(spec, overrides, smoke=smoke)


def sweep_name(text: str, results: str, overrides: list[str] | None = None, *, smoke: bool = False) -> str:
    """The sweep that ``text`` means: the name in a spec file, or a sweep under ``results``."""
    if is_spec_file(text):
        return load(text, overrides or [], smoke).name
    is_plain = text not in ("", ".", "..") and Path(text).name == text
    if "://" not in results and not (is_plain and (Path(results) / text).is_dir()):
        from orchestrator.results import sweeps
        from orchestrator.suggest import suggest

        names = sorted(sweeps(results)) if Path(results).is_dir() else []
        hint = suggest(text, names) if names else "there is none yet. Another root: --results PATH"
        raise ConfigError(f"no sweep {text!r} under {results}; {hint}")
    return text


def writable(path: Path) -> Path:
    """``path``, named by --output, with the folder that it is to lie in made. Raises ``ConfigError``."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--output {path}: cannot be written ({error.strerror})") from None
    return path


def _a_folder(results: str) -> str:
    from orchestrator.folders import blocking_file

    if "://" not in results and (file := blocking_file(Path(results))) is not None:
        raise ConfigError(f"--results {results}: {file} is a file; results are kept in a folder")
    return results
