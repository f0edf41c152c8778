"""Tables as GitHub-flavoured Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from orchestrator.tables.cells import legend, parts
from orchestrator.tables.model import Cell, Column, Table, sections


def escape(text: str) -> str:
    """Text that Markdown shows as it is, in one line."""
    return re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", " ".join(text.split()))


def render(tables: Sequence[Table], *, width: int = 100, color: bool = False) -> str:
    """All tables, each under its title in bold, with its notes as a list."""
    return "\n\n".join(_table(t) for t in tables)


def _cell(cell: Cell | None) -> str:
    p = parts(cell)
    value = escape(p.mean) + (f"±{p.std}" if p.std else "")
    if cell is not None and cell.best:
        value = f"**{value}**"
    if cell is not None and cell.second:
        value = f"<u>{value}</u>"
    return " ".join(x for x in (value + p.marks, escape(p.interval), f"({p.short})" if p.short else "") if x)


def _titles(columns: Sequence[Column]) -> list[str]:
    """Column titles; the spanning title comes first where titles alone would repeat."""
    alone = [c.title for c in columns]
    if len(set(alone)) == len(alone):
        return [escape(t) for t in alone]
    return [escape(f"{c.group}: {c.title}" if c.group else c.title) for c in columns]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _table(table: Table) -> str:
    lines = [f"**{escape(table.title)}**", ""]
    lines.append(_line([escape(table.stub), *_titles(table.columns)]))
    lines.append(_line([":--", *("--:" for _ in table.columns)]))
    for section, members in sections(table.rows):
        if section:
            lines.append(_line([f"**{escape(section)}**", *("" for _ in table.columns)]))
        for i in members:
            inner = table.rows[i].kind not in ("value", "average")
            title = ("&nbsp;&nbsp;" if inner else "") + escape(table.rows[i].title)
            lines.append(_line([title, *(_cell(c) for c in table.cells[i])]))
    notes = [*table.notes, *legend(table), *_markers(table)]
    return "\n".join([*lines, "", *(f"- {escape(n)}" for n in notes)])


def _markers(table: Table) -> list[str]:
    cells = [c for row in table.cells for c in row if c is not None]
    where = "column" if table.best_along == "column" else "row"
    best = [f"Bold: best per {where}, ties as printed."] if any(c.best for c in cells) else []
    return best + (["Underlined: second best."] if any(c.second for c in cells) else [])
