"""Tables with comparisons: to the paper, to another sweep, and between methods."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from deyo.types import ConfigError
from orchestrator.tables.beside import Reference, beside
from orchestrator.tables.data import Entry, SweepData, hashable
from orchestrator.tables.intervals import check_kind, excludes_zero, interval, mean_difference, used
from orchestrator.tables.metrics import Metric, metric, shown
from orchestrator.tables.model import Cell, Column, Row, Table
from orchestrator.tables.paper import with_paper
from orchestrator.tables.request import Request, select_tables
from orchestrator.tables.statistics import Summary, condition, summarise

PAIRED_ON = (
    "benchmark",
    "benchmark_options",
    "scenario",
    "scenario_options",
    "model",
    "label",
    "corruption",
    "severity",
    "corruptions",
)
"""What two runs of different sweeps must share (beside the seeds) to be a pair."""
MAY_DIFFER = ("batch_size", "protocol", "precision", "max_images", "settings")

Pairs = dict[tuple[Any, Any], float]


def compared(
    data: SweepData,
    request: Request = Request(),
    *,
    paper: bool = False,
    other: SweepData | None = None,
    versus: str | None = None,
    interval: str = "t",
) -> list[Table]:
    """The tables of ``request`` with at most one comparison. Raises ``ConfigError`` for what cannot be."""
    check_kind(interval)
    if sum((paper, other is not None, versus is not None)) > 1:
        raise ConfigError("one comparison at a time: --compare paper, --compare SWEEP or --versus METHOD")
    chosen, tables = select_tables(data, request)
    if paper:
        return [with_paper(t, chosen.experiments if chosen else ()) for t in tables]
    if other is not None:
        index = _index(other)
        return [_with_sweep(t, other, index, interval) for t in tables]
    if versus is not None:
        label = _label(data, versus)
        found = [versus_method(t, label, interval) for t in tables]
        return [t for t in found if any(c is not None for line in t.cells for c in line)] or found
    return tables


def _label(data: SweepData, name: str) -> str:
    """The label that ``name`` (a label, or a method with one label) means."""
    labels = data.values("label")
    if len(labels) == 1:
        raise ConfigError(f"--versus {name}: the sweep has no other method than {labels[0]} to compare with")
    if name in labels:
        return name
    of_method = list(dict.fromkeys(e.axes["label"] for e in data.entries if e.axes["method"] == name))
    if len(of_method) == 1:
        return of_method[0]
    raise ConfigError(f"--versus {name}: no such method here; the sweep has {', '.join(map(str, labels))}")


def _values(entries: Iterable[Entry], of: Metric) -> Pairs:
    """Values by (seed, condition) of the runs that have one."""
    found: Pairs = {}
    for e in entries:
        value = shown(of, e.row) if e.status == "done" else None
        if value is not None and not math.isnan(value):
            found[e.replicate, condition(e)] = value
    return found


def difference_cell(pairs: Pairs, planned: Collection[tuple[Any, Any]], like: Cell, kind: str) -> Cell:
    """The mean of paired differences with its interval, flagged where it is not distinguishable from zero.

    ``planned`` are the (seed, condition) that could be pairs. Where a condition has no pair at all there is no mean:
    an average over other corruptions would not be this one.
    """
    if {c for _, c in pairs} != {c for _, c in planned}:
        pairs = {}
    mean = mean_difference(pairs)
    found = interval(pairs, kind) if mean is not None else None
    summary = Summary(mean=mean, std=None, n=len(used(pairs)), expected=len(planned))
    flag = "" if mean is None or excludes_zero(found) else "unclear"
    return Cell(summary=summary, decimals=like.decimals, signed=True, interval=found, flag=flag)


def versus_method(table: Table, label: str, kind: str = "t") -> Table:
    """Paired differences ``label`` − other method, cell by cell, for a table with methods down or across."""
    cells = {(_key(row.key), _key(column.key), column.metric, column.kind): cell for row, column, cell in _all(table)}
    down = any("label" in row.key for row in table.rows)
    if not down and not any("label" in c.key for c in table.columns):
        raise ConfigError(
            f"--versus needs methods as rows or columns; layout '{table.name}' has neither: give --rows label"
        )
    keep_rows = [i for i, r in enumerate(table.rows) if r.kind != "seed" and r.key.get("label") != label]
    keep_cols = [
        j
        for j, c in enumerate(table.columns)
        if c.kind in ("value", "average") and c.metric and c.key.get("label") != label
    ]
    grid = []
    for i in keep_rows:
        row, line = table.rows[i], []
        for j in keep_cols:
            column, cell = table.columns[j], table.cells[i][j]
            reference = cells.get(
                (
                    _key(row.key, label if down else None),
                    _key(column.key, None if down else label),
                    column.metric,
                    column.kind,
                )
            )
            line.append(_versus_cell(cell, reference, column, kind))
        grid.append(tuple(line))
    units = {table.columns[j].unit for j in keep_cols}
    points = "percentage points" if units == {"%"} else "the metric's unit"
    return replace(
        table,
        title=f"{table.title}: {label} minus each other method",
        rows=tuple(table.rows[i] for i in keep_rows),
        columns=tuple(replace(table.columns[j], higher=None) for j in keep_cols),
        cells=tuple(grid),
        notes=(
            f"Mean paired differences over seeds and corruptions, in {points}, with {_said(kind)}.",
            *(n for n in table.notes if not n.startswith("Mean±std")),
        ),
    )


def _said(kind: str) -> str:
    if kind == "bootstrap":
        return "95 % bootstrap intervals (percentiles; seeds and corruptions both drawn)"
    return "95 % t intervals (over seeds, each averaged over its corruptions first; with one seed, over corruptions)"


def _all(table: Table) -> Iterable[tuple[Row, Column, Cell | None]]:
    for row, line in zip(table.rows, table.cells):
        if row.kind != "seed":
            for column, cell in zip(table.columns, line):
                yield row, column, cell


def _key(key: Any, label: str | None = None) -> tuple[Any, ...]:
    changed = {**key, "label": label} if label is not None else key
    return tuple(sorted((k, str(v)) for k, v in changed.items()))


def _versus_cell(cell: Cell | None, reference: Cell | None, column: Column, kind: str) -> Cell | None:
    if cell is None or reference is None or not cell.entries:
        return None
    of = metric(column.metric)
    mine, theirs = _values(reference.entries, of), _values(cell.entries, of)
    pairs = {k: mine[k] - theirs[k] for k in mine if k in theirs}
    planned = {(e.replicate, condition(e)) for e in (*cell.entries, *reference.entries)}
    return difference_cell(pairs, planned, cell, kind)


def _pair_key(entry: Entry) -> tuple[Any, ...]:
    return (*(hashable(entry.axes[a]) for a in PAIRED_ON), entry.replicate)


def _index(other: SweepData) -> dict[tuple[Any, ...], list[Entry]]:
    found: dict[tuple[Any, ...], list[Entry]] = {}
    for e in other.entries:
        found.setdefault(_pair_key(e), []).append(e)
    return found


def _partner(entry: Entry, index: dict[tuple[Any, ...], list[Entry]], other: str) -> Entry | None:
    candidates = index.get(_pair_key(entry), [])
    if len(candidates) > 1:
        candidates = [c for c in candidates if all(c.axes[a] == entry.axes[a] for a in MAY_DIFFER)]
        if len(candidates) != 1:
            raise ConfigError(
                f"sweep '{other}' has several runs like {entry.axes['label']} with seed {entry.replicate[0]}, which "
                "differ in protocol, precision or settings: name one by --where"
            )
    return candidates[0] if candidates else None


def _with_sweep(table: Table, other: SweepData, index: dict[tuple[Any, ...], list[Entry]], kind: str) -> Table:
    differing: dict[str, None] = {}

    def find(row: Row, column: Column, cell: Cell) -> Reference | None:
        partners = [(e, _partner(e, index, other.sweep)) for e in cell.entries]
        theirs = [p for _, p in partners if p is not None]
        if not theirs or column.kind == "weighted":
            return None
        for e, p in partners:
            differing.update((a, None) for a in MAY_DIFFER if p is not None and p.axes[a] != e.axes[a])
        of = metric(column.metric)
        mine, found = _values(cell.entries, of), _values(theirs, of)
        pairs = {k: mine[k] - found[k] for k in mine if k in found}
        planned = {(e.replicate, condition(e)) for e in cell.entries}
        return Reference(
            value=Cell(
                summary=summarise(theirs, of, ddof=table.ddof, conditions=map(condition, cell.entries)),
                decimals=cell.decimals,
            ),
            difference=difference_cell(pairs, planned, cell, kind),
        )

    done = beside(table, other.sweep, find)
    if done is table:
        return table.with_notes(f"Sweep '{other.sweep}' has no run to pair with these.")
    differs = f" The sweeps differ in {', '.join(differing)}." if differing else ""
    return done.with_notes(
        f"{other.sweep}: that sweep. Δ: ours minus it, over pairs of equal seed and corruption, "
        f"with {_said(kind)}.{differs}"
    )
