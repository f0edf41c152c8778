"""Tables for a terminal: aligned, broken into blocks of columns where they are wider than it."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence

from orchestrator.tables.cells import legend, parts
from orchestrator.tables.model import Cell, Column, Table, sections, spans

_BOLD, _UNDERLINE, _OFF = "\x1b[1m", "\x1b[4m", "\x1b[0m"
_GAP = "  "


def render(tables: Sequence[Table], *, width: int = 100, color: bool = False) -> str:
    """All tables, one under the other, with their captions."""
    return "\n\n".join(_table(t, max(width, 40), color) for t in tables)


def display_width(text: str) -> int:
    """Columns that ``text`` takes in a terminal."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def _cell(cell: Cell | None, color: bool) -> str:
    p = parts(cell)
    value = p.mean + (f"±{p.std}" if p.std else "") + p.marks
    if cell is not None and cell.best and not color:
        value = f"*{value}"
    if cell is not None and cell.second and not color:
        value = f"_{value}"
    return " ".join(x for x in (value, p.interval, p.short) if x)


def _pad(text: str, width: int, left: bool = False) -> str:
    fill = " " * (width - display_width(text))
    return text + fill if left else fill + text


def _styled(text: str, cell: Cell | None, color: bool) -> str:
    if not color or cell is None or not (cell.best or cell.second):
        return text
    inner = text.lstrip()
    return text[: len(text) - len(inner)] + (_BOLD if cell.best else _UNDERLINE) + inner + _OFF


def _blocks(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[list[int]]:
    """Columns in blocks that fit, broken between spanning titles where that is possible."""
    groups: list[list[int]] = []
    start = 0
    for _, count in spans(columns):
        groups.append(list(range(start, start + count)))
        start += count
    blocks: list[list[int]] = [[]]
    for group in groups:
        whole = sum(widths[j] + len(_GAP) for j in group)
        if blocks[-1] and _taken(blocks[-1], widths) + whole > room and whole <= room:
            blocks.append([])
        for j in group:
            if blocks[-1] and _taken([*blocks[-1], j], widths) > room:
                blocks.append([])
            blocks[-1].append(j)
    return blocks


def _taken(block: Sequence[int], widths: Sequence[int]) -> int:
    return sum(widths[j] + len(_GAP) for j in block)


def _table(table: Table, width: int, color: bool) -> str:
    grouped = any(name for name, _ in sections(table.rows))
    indent = "  " if grouped else ""
    stubs = [indent + ("  " if r.kind not in ("value", "average") else "") + r.title for r in table.rows]
    stub_width = max(map(display_width, [table.stub, *stubs]))
    texts = [[_cell(c, color) for c in row] for row in table.cells]
    widths = [max(map(display_width, [c.title, *(row[j] for row in texts)])) for j, c in enumerate(table.columns)]
    lines = textwrap.wrap(table.title, width)
    for block in _blocks(table.columns, widths, width - stub_width):
        lines.append("")
        lines += _head(table, block, widths, stub_width)
        for section, members in sections(table.rows):
            if section:
                lines.append(section)
            for i in members:
                cells = [_styled(_pad(texts[i][j], widths[j]), table.cells[i][j], color) for j in block]
                lines.append(_GAP.join([_pad(stubs[i], stub_width, left=True), *cells]).rstrip())
    fine = [*table.notes, *legend(table), *_markers(table, color)]
    lines += ["", *(line for note in fine for line in textwrap.wrap(note, width, subsequent_indent="  "))]
    return "\n".join(lines)


def _head(table: Table, block: Sequence[int], widths: list[int], stub_width: int) -> list[str]:
    """Spanning titles (columns are widened where a title needs it), column titles and a rule."""
    columns = [table.columns[j] for j in block]
    lines, start, pieces = [], 0, [" " * stub_width]
    for name, count in spans(columns):
        members = block[start : start + count]
        span = _taken(members, widths) - len(_GAP)
        if display_width(name) > span:
            widths[members[-1]] += display_width(name) - span
            span = display_width(name)
        pieces.append(f" {name} ".center(span, "─") if name and span > display_width(name) + 3 else _pad(name, span))
        start += count
    if any(c.group for c in columns):
        lines.append(_GAP.join(pieces).rstrip())
    titles = [_pad(table.columns[j].title, widths[j]) for j in block]
    lines.append(_GAP.join([_pad(table.stub, stub_width, left=True), *titles]).rstrip())
    lines.append("─" * (stub_width + _taken(block, widths)))
    return lines


def _markers(table: Table, color: bool) -> list[str]:
    cells = [c for row in table.cells for c in row if c is not None]
    best, second = any(c.best for c in cells), any(c.second for c in cells)
    where = "per column" if table.best_along == "column" else "per row"
    names = []
    if best:
        names.append(f"{'Bold' if color else '*'}: best {where}, ties as printed")
    if second:
        names.append(f"{'underlined' if color else '_'}: second best")
    return ["; ".join(names) + "."] if names else []
