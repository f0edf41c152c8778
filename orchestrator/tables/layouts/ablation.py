"""Tables 6, 15 and 16 of the paper: DeYO's four switches in the 16 combinations."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.tables.best import mark_best
from orchestrator.tables.data import Entry, SweepData
from orchestrator.tables.layouts.base import Layout, LayoutOptions, is_biased, unique_runs
from orchestrator.tables.layouts.biased import titled
from orchestrator.tables.metrics import metric
from orchestrator.tables.model import Cell, Column, Row, Table
from orchestrator.tables.pivot import pivot

SWITCHES = {
    "filter_entropy": ("S(x)", "Ent"),
    "filter_plpd": ("S(x)", "PLPD"),
    "weight_entropy": ("α(x)", "Ent"),
    "weight_plpd": ("α(x)", "PLPD"),
}
NAMES = {1: "Tent", 6: "PLPD", 11: "Ent", 16: "DeYO"}
AXES = tuple(f"settings.{s}" for s in SWITCHES)


def combination(entry: Entry) -> tuple[bool, ...] | None:
    """The entry's switches, or None if it has none."""
    settings = entry.axes["settings"]
    if entry.axes["method"] != "deyo" or any(s not in settings for s in SWITCHES):
        return None
    return tuple(bool(settings[s]) for s in SWITCHES)


def number(bits: tuple[bool, ...]) -> int:
    """The paper's row number, 1 to 16: binary counting with the entropy filter as the highest bit."""
    return 1 + int("".join("1" if b else "0" for b in bits), 2)


def build(data: SweepData, options: LayoutOptions) -> list[Table]:
    chosen = unique_runs(data.where(lambda e: combination(e) is not None))
    biased = is_biased(chosen)
    names = ("worst_group_accuracy", "average_accuracy") if biased else ("accuracy",)
    metrics = options.metrics or tuple(map(metric, names))
    pivoted = options.with_pivot(decimals=2)
    table = pivot(chosen, AXES, [], metrics, pivoted, name="ablation")
    table = _in_order(_with_switches(table, biased))
    others = sorted({e.axes["label"] for e in data.entries if combination(e) is None})
    return [
        mark_best(table, second=True).with_notes(
            "S(x): filters; α(x): weights; ✓: on. Average over corruptions within a seed first."
            if not biased
            else "S(x): filters; α(x): weights; ✓: on. The paper's column 'Avg.' holds worst-group accuracies.",
            f"Not among the 16 and left out: {', '.join(others)}." if others else "",
        )
    ]


def _with_switches(table: Table, biased: bool) -> Table:
    """The four switches as columns of check marks, rows under their numbers."""
    switches = tuple(Column(title=t, group=g, kind="text") for g, t in SWITCHES.values())
    columns = tuple(titled(c) if biased else replace(c, title="Avg.") for c in table.columns)
    rows, cells = [], []
    for row, values in zip(table.rows, table.cells):
        bits = tuple(row.key[a] for a in AXES)
        n = number(bits)
        title = f"({n}) {NAMES[n]}" if n in NAMES else f"({n})"
        rows.append(Row(title=title, section=row.section, key={**row.key, "ablation": n}))
        cells.append((*(Cell(text="✓" if b else "") for b in bits), *values))
    return replace(table, stub="", columns=(*switches, *columns), rows=tuple(rows), cells=tuple(cells))


def _in_order(table: Table) -> Table:
    places = {section: i for i, section in enumerate(dict.fromkeys(r.section for r in table.rows))}
    order = sorted(range(len(table.rows)), key=lambda i: (places[table.rows[i].section], table.rows[i].key["ablation"]))
    return replace(table, rows=tuple(table.rows[i] for i in order), cells=tuple(table.cells[i] for i in order))


def _suits(data: SweepData) -> bool:
    found = {combination(e) for e in data.entries}
    return len(found) >= 4 and None not in found  # by default, no table leaves a method of the sweep out


LAYOUT = Layout(
    name="ablation",
    help="DeYO's 16 combinations of filters and weights, best bold, second best underlined (T6, T15, T16)",
    experiments=("T6", "T15", "T16"),
    suits=_suits,
    build=build,
)
