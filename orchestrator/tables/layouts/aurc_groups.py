"""AURC within each group, and over all samples: what Table 14 shows of the worst group alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deyo.confidence import aurc
from orchestrator.tables import names
from orchestrator.tables.best import mark_best
from orchestrator.tables.generated import generated_note
from orchestrator.tables.layouts.aurc import TITLES, Score, in_order
from orchestrator.tables.model import Cell, Column, Row, Table
from orchestrator.tables.statistics import Summary, mean_std


def by_group(members: Sequence[Score], title: str, ddof: int) -> list[Table]:
    """Scores down, groups across, of one network on one benchmark; nothing where there are no groups."""
    groups = sorted({int(g) for s in members for g in np.unique(s.group)} - {-1})
    if not groups:
        return []
    called = {g: _name(members, g) for g in groups}
    columns = [Column(title=called[g], metric="aurc_of_group", unit="%", higher=False) for g in groups]
    columns.append(Column(title="all", metric="aurc_of_group", unit="%", higher=False))
    rows, cells = [], []
    for (confidence, label), same in in_order(members).items():
        name = f"{TITLES.get(confidence, confidence)} ({names.title('label', label)})"
        rows.append(Row(title=name, key={"confidence": confidence, "label": label}))
        cells.append(tuple(_cell(same, group, ddof) for group in [*groups, None]))
    table = Table(
        name="aurc-by-group",
        title=f"{title}: AURC (%) within each group",
        stub="confidence (run)",
        columns=tuple(columns),
        rows=tuple(rows),
        cells=tuple(cells),
        ddof=ddof,
    )
    return [mark_best(table).with_notes(generated_note(s.entry for s in members))]


def _name(members: Sequence[Score], group: int) -> str:
    known = members[0].entry.row.get("group_accuracies") or ()
    return known[group]["name"] if group < len(known) else f"group {group}"


def _cell(same: Sequence[Score], group: int | None, ddof: int) -> Cell:
    values = {}
    for s in same:
        chosen = slice(None) if group is None else s.group == group
        if len(s.correct[chosen]):
            values[s.entry.replicate] = 100 * aurc(s.score[chosen], s.correct[chosen])
    mean, std = mean_std(list(values.values()), ddof)
    summary = Summary(mean=mean, std=std, n=len(values), expected=len(same), values=values)
    return Cell(summary=summary, decimals=2, entries=tuple(s.entry for s in same))
