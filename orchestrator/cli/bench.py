"""``deyo-sweep bench``: the benchmarks of ``experiments/benchmarks``, each in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PACKAGE = "experiments.benchmarks"
MEASURES = {
    "engine": "one step: method × network × batch × runs side by side × precision, beside the published step",
    "feeding": "JPEG files to arrays, arrays to the device, the published DataLoader beside",
    "augmentation": "AugMix and RandAugment views, MEMO and SENTRY",
    "corruptions": "each corruption, beside the package imagecorruptions-imaug",
    "sweep": "a whole sweep from JPEG files, on one device or several, beside a bare loop",
    "accuracy": "accuracies of the default profile and bf16 against plain float32",
    "estimate": "the cost that `plan` foretells against what the sweep takes",
    "overhead": "what orchestration costs a run: 100 to 10,000 trivial runs",
    "scheduling": "scheduler and driver with up to 1,000 simulated GPUs",
    "store": "the result store at size",
    "publishing": "what MLflow costs a sweep",
    "reporting": "what records and reporting cost a step",
}
"""Name (a module of ``PACKAGE``) -> what it measures."""

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Benchmarks, or `all`; without any they are listed.", show_default=False),
]
Folder = Annotated[str, typer.Option("--folder", metavar="PATH", help="Where NAME.parquet goes for each benchmark.")]


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("bench", context_settings={"ignore_unknown_options": True})(bench)


def bench(names: Names = None, folder: Folder = "./results/benchmarks") -> None:
    """Measure speeds on this machine: a table on the terminal, and a Parquet file with card, versions and date.

    Sizes suit the device. Options after the names are the benchmarks' own: `deyo-sweep bench NAME -- --help`.
    """
    if not names:
        for name, what in MEASURES.items():
            typer.echo(f"{name:13} {what}")
        return
    chosen, options = split(names)
    failed = [name for name in chosen if run_one(name, options, Path(folder))]
    if failed:
        typer.echo(f"error: failed: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """Names of benchmarks up to the first option, and the rest. Raises ``ConfigError`` for an unknown name."""
    from deyo.types import ConfigError

    count = next((k for k, word in enumerate(words) if word.startswith("-")), len(words))
    names, options = words[:count], words[count:]
    if names == ["all"]:
        names = list(MEASURES)
    unknown = [name for name in names if name not in MEASURES]
    if unknown or not names:
        wrong = f"no benchmark {unknown[0]!r}" if unknown else "name a benchmark before its options"
        raise ConfigError(f"{wrong}; there are: {', '.join(MEASURES)}, and all")
    return names, options


def run_one(name: str, options: list[str], folder: Path) -> int:
    """Run one benchmark in a process of its own, which this machine's GPU then has to itself; its exit code."""
    import subprocess
    import sys

    typer.echo(f"== {name}: {MEASURES[name]}")
    out = [] if {"--out", "--help", "-h"} & set(options) else ["--out", str(folder / f"{name}.parquet")]
    return subprocess.run([sys.executable, "-m", f"{PACKAGE}.{name}", *options, *out]).returncode
