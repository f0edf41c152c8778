"""A page of results: what was run, on what, the tables, and where DeYO does not win.

    python -m experiments.pages experiments/colored_mnist.yaml --results results --machine "one NVIDIA H100 80GB" \
        --command "deyo-sweep run experiments/colored_mnist.yaml"

writes ``experiments/results/colored_mnist.md``. What stands below the line ``NOTES`` is kept as it was: words of the
one who ran it. The layouts are those of the spec's header.
"""

from __future__ import annotations

import argparse
import csv
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from experiments.index import FOLDER, read_header
from orchestrator.report.facts import done_runs, duration
from orchestrator.spec import load_spec
from orchestrator.tables import names
from orchestrator.tables.data import Entry, SweepData, filtered
from orchestrator.tables.differences import compared
from orchestrator.tables.layouts.base import is_biased
from orchestrator.tables.load import load
from orchestrator.tables.metrics import metric, shown
from orchestrator.tables.model import Table
from orchestrator.tables.provenance import libraries
from orchestrator.tables.render import render
from orchestrator.tables.request import Request
from orchestrator.tables.statistics import mean_std

NOTES = "<!-- notes: what stands below is kept when the page is written again -->"
WITHIN = 0.05
"""Percentage points below which two methods count as equal."""


def page(path: Path, data: SweepData, *, machine: str, commands: Sequence[str], notes: str = "") -> str:
    """The page as Markdown. ``commands`` are what was typed, ``machine`` is what it ran on, in words."""
    header = read_header(path)
    done = done_runs(data)
    parts = [
        f"# {header.title}",
        "What was typed:\n\n" + "\n".join(f"    {command}" for command in commands),
        "\n".join(_facts(data, done, machine)),
        *_tables(header.commands, data),
        *_authors(FOLDER / "results" / f"{path.stem}_authors_code.csv", data),
    ]
    if found := contests(data):
        parts += ["## Where DeYO wins, and where not", "\n".join(found)]
    parts.append(NOTES)
    return "\n\n".join(parts) + "\n" + (f"\n{notes.strip()}\n" if notes.strip() else "")


def _facts(data: SweepData, done: Sequence[Entry], machine: str) -> Iterable[str]:
    rows = [e.row for e in done]
    yield f"Machine: {machine}.  "
    planned, images = len({e.run_id for e in data.entries}), sum(r["images"] for r in rows)
    seconds, last = sum(r["seconds"] or 0 for r in rows), max(r["finished_at"] for r in rows)
    yield f"Runs: {len(done)} of {planned} done, {images:,} images, {duration(seconds)} in all; finished {last[:10]}.  "
    versions = {name: found for name, found in libraries(done).items() if name in ("torch", "torchvision", "timm")}
    yield "Libraries: " + ", ".join(f"{name} {' and '.join(found)}" for name, found in versions.items()) + ".  "
    shas = dict.fromkeys(f"{_plain(r['model'])} {r['weights_sha256'][:12]}" for r in rows if r.get("weights_sha256"))
    if shas:
        yield f"Weights (sha256): {'; '.join(shas)}.  "
    code = dict.fromkeys(r["code_version"][:10] + (" with edits" if r["code_dirty"] else "") for r in rows)
    yield f"Code: {', '.join(code)}."


def _tables(commands: Sequence[str], data: SweepData) -> Iterable[str]:
    """The tables of the header's ``deyo-sweep table`` commands."""
    for command in commands:
        words = shlex.split(command)
        if words[1] != "table":
            continue
        options = dict(zip(words[3::2], words[4::2]))
        chosen = filtered(data, [options["--where"]] if "--where" in options else [])
        request = Request(layout=options.get("--layout"))
        tables = compared(chosen, request, paper=options.get("--compare") == "paper")
        yield render([_titled(table) for table in tables], "markdown")


def _authors(numbers: Path, data: SweepData) -> Iterable[str]:
    """Ours beside what the authors' published code gives on the same data, where that was measured (CSV, %)."""
    if not numbers.is_file():
        return
    measures = ("average_accuracy", "worst_group_accuracy")
    with numbers.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    table = ["| | " + " | ".join(f"{m.split('_')[0]}, {who}" for m in measures for who in ("ours", "theirs")) + " |"]
    table.append("| :-- |" + " --: |" * 2 * len(measures))
    for label in dict.fromkeys(row["label"] for row in rows):
        cells = []
        for name in measures:
            ours = [shown(metric(name), e.row) for e in done_runs(data) if e.axes["label"] == label]
            theirs = [float(row[name]) for row in rows if row["label"] == label]
            cells += [_spread([v for v in ours if v is not None]), _spread(theirs)]
        table.append(f"| {names.title('label', label)} | " + " | ".join(cells) + " |")
    yield "**Beside the authors' published code on the same images (%), networks of other seeds**\n\n" + "\n".join(
        table
    )


def _spread(values: Sequence[float]) -> str:
    mean, std = mean_std(values)
    return "–" if mean is None else f"{mean:.2f}" + ("" if std is None else f"±{std:.2f}")


def _titled(table: Table) -> Table:
    return replace(table, title=table.title.partition(": ")[2] or table.title)


def contests(data: SweepData) -> list[str]:
    """A line for each part of the sweep and metric: how often DeYO is best, and who is better where it is not."""
    measures = ("average_accuracy", "worst_group_accuracy") if is_biased(data) else ("accuracy",)
    lines = []
    for part, entries in _parts(done_runs(data)).items():
        for name in measures:
            won, lost = _won(entries, name)
            if not won and not lost:
                continue
            line = f"- {part}, {metric(name).title}: best in {won} of {won + len(lost)}"
            lines.append(line + (f"; better were {'; '.join(lost)}." if lost else "."))
    return lines


def _parts(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for e in entries:
        where = ", ".join(str(e.axes[axis]) for axis in ("benchmark", "scenario", "model"))
        found.setdefault(_plain(where), []).append(e)
    return found


def _plain(text: str) -> str:
    """Without what follows a weight file's name."""
    return re.sub(r"file:(\w+)\.[^\s,]+", r"\1", text)


def _won(entries: Sequence[Entry], name: str) -> tuple[int, list[str]]:
    """Conditions in which plain DeYO is best (or equal), and the others with who is better by how much."""
    of = metric(name)
    values: dict[str | None, dict[str, list[float]]] = {}
    for e in entries:
        value = shown(of, e.row)
        if value is not None and e.axes["label"] == e.axes["method"]:
            values.setdefault(e.axes["corruption"], {}).setdefault(e.axes["label"], []).append(value)
    won, lost = 0, []
    for corruption, by_label in values.items():
        means = {label: sum(found) / len(found) for label, found in by_label.items()}
        if "deyo" not in means or len(means) < 2:
            continue
        best = max(means, key=lambda label: means[label])
        if means[best] - means["deyo"] <= WITHIN:
            won += 1
        else:
            where = "" if corruption is None else f" on {corruption}"
            lost.append(f"{names.title('label', best)}{where} (+{means[best] - means['deyo']:.1f})")
    return won, lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", type=Path)
    parser.add_argument("--results", default="./results")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="where it names another sweep")
    parser.add_argument("--machine", required=True, help="what it ran on, in words: the card, or the processor")
    parser.add_argument("--command", action="append", required=True, help="what was typed (repeatable)")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    output = asked.output or FOLDER / "results" / f"{asked.spec.stem}.md"
    notes = output.read_text(encoding="utf-8").partition(NOTES)[2] if output.exists() else ""
    data, _ = load(load_spec(asked.spec, asked.set).name, asked.results)  # by the plan that it was run with
    text = page(asked.spec, data, machine=asked.machine, commands=asked.command, notes=notes)
    output.parent.mkdir(exist_ok=True)
    output.write_text(text, encoding="utf-8")
    print(f"written: {output}")


if __name__ == "__main__":
    main()
