"""What verbs that only read share where the results lie on a cluster's head."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator.cli import options

if TYPE_CHECKING:
    from orchestrator.specmodel import SweepSpec

HERE = frozenset({"results", "address", "allow_insecure", "output", "overrides", "settings", "smoke", "packed"})
"""Options that are no part of the question: what they say is done on this machine."""


def answer_of(
    address: str,
    sweep: str,
    words: Sequence[str],
    *,
    allow_insecure: bool,
    results: str,
    spec: SweepSpec | None = None,
) -> str:
    """What ``deyo-sweep WORDS`` prints on the cluster's head of the results of ``sweep`` there; its notes are shown.

    ``results`` is their folder there; by default it is where the sweep's job writes. ``jobs.SPEC_FILE`` among the words
    means ``spec``. Raises ``typer.Exit`` with 2 where it was refused.
    """
    from orchestrator import asking, jobs

    asked = jobs.client(address, allow_insecure=allow_insecure)
    there = results if results != options.DEFAULT_RESULTS else asking.results_of(asked, sweep, address)
    answer = asking.ask_head(asked, [*words, "--results", there], spec)
    if answer.notes:
        typer.echo(answer.notes, err=True)
    if not answer.ok:
        typer.echo(answer.text, nl=False, err=True)
        raise typer.Exit(2)
    return answer.text


def show(text: str, output: Path | None = None) -> None:
    """Print ``text``, or write it to ``output``."""
    if output is None:
        typer.echo(text, nl=False)
    else:
        options.writable(output).write_text(text, encoding="utf-8")


def spec_there(sweep: str, overrides: list[str], smoke: bool) -> tuple[str, str, SweepSpec | None]:
    """A sweep's name, the word that means it on the head, and its spec where ``sweep`` is a spec's file."""
    from orchestrator.jobs import SPEC_FILE

    if not options.is_spec_file(sweep):
        return sweep, sweep, None
    spec = options.load(sweep, overrides, smoke)
    return spec.name, SPEC_FILE, spec


def sweep_without_results(sweep: str, overrides: list[str], smoke: bool) -> str:
    """The sweep's name where its results need not be on this machine."""
    return spec_there(sweep, overrides, smoke)[0]


def words_typed(context: typer.Context) -> list[str]:
    """The options that were typed, as words, but for those of ``HERE``."""
    words: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if parameter.param_type_name != "option" or name in HERE or source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[name]
        if value is True:
            words.append(parameter.opts[0])
            continue
        for each in value if isinstance(value, list | tuple) else [value]:
            words += [parameter.opts[0], str(each)]
    return words
