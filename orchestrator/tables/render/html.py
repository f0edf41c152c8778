"""Tables as HTML fragments; ``orchestrator.report`` puts them on a page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from orchestrator.tables.cells import legend, parts
from orchestrator.tables.model import Cell, Table, sections, spans

WIDE = 12
"""Columns from which a table is set smaller."""


def render(tables: Sequence[Table], *, width: int = 100, color: bool = False) -> str:
    """A ``<figure>`` for each table. Classes: wide, section, best, second, outside, unclear, part, std,
    interval, short, and rows' kinds."""
    return "\n".join(_table(t) for t in tables)


def _cell(cell: Cell | None) -> str:
    p = parts(cell)
    value = escape(p.mean) + (f'<span class="std">±{p.std}</span>' if p.std else "")
    classes = []
    if cell is not None:
        value = f"<b>{value}</b>" if cell.best else f"<u>{value}</u>" if cell.second else value
        classes = [c for c in ("best" * cell.best, "second" * cell.second, cell.flag) if c]
    extra = f'<span class="interval">{escape(p.interval)}</span>' if p.interval else ""
    short = f'<span class="short">{escape(p.short)}</span>' if p.short else ""
    attribute = f' class="{" ".join(classes)}"' if classes else ""
    return f"<td{attribute}>{value}{escape(p.marks)}{extra}{short}</td>"


def _table(table: Table) -> str:
    wide = ' class="wide"' if len(table.columns) >= WIDE else ""
    lines = [
        "<figure>",
        f"<figcaption>{escape(table.title)}</figcaption>",
        f'<div class="scroll" tabindex="0"><table{wide}>',
        "<thead>",
    ]
    if any(c.group for c in table.columns):
        heads = "".join(
            f'<th colspan="{n}" scope="colgroup">{escape(g)}</th>' if g else f'<td colspan="{n}"></td>'
            for g, n in spans(table.columns)
        )
        lines.append(f"<tr><td></td>{heads}</tr>")
    titles = "".join(f'<th scope="col">{escape(c.title)}</th>' for c in table.columns)
    lines += [f'<tr><th scope="col">{escape(table.stub)}</th>{titles}</tr>', "</thead>"]
    for section, members in sections(table.rows):
        lines.append("<tbody>")
        if section:
            lines.append(
                f'<tr class="section"><th colspan="{len(table.columns) + 1}" scope="rowgroup">'
                f"<span>{escape(section)}</span></th></tr>"
            )
        for i in members:
            row = table.rows[i]
            kind = "" if row.kind == "value" else f' class="{row.kind}"'
            cells = "".join(map(_cell, table.cells[i]))
            lines.append(f'<tr{kind}><th scope="row">{escape(row.title)}</th>{cells}</tr>')
        lines.append("</tbody>")
    lines.append("</table></div>")
    notes = [*table.notes, *legend(table), *_markers(table)]
    lines += ['<ul class="notes">', *(f"<li>{escape(n)}</li>" for n in notes), "</ul>", "</figure>"]
    return "\n".join(lines)


def _markers(table: Table) -> list[str]:
    cells = [c for row in table.cells for c in row if c is not None]
    where = "column" if table.best_along == "column" else "row"
    best = [f"Bold: best per {where}, ties as printed."] if any(c.best for c in cells) else []
    return best + (["Underlined: second best."] if any(c.second for c in cells) else [])
