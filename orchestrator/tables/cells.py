"""What a cell prints, apart from the format's own markup."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.tables.model import Cell, Table
from orchestrator.tables.statistics import Summary

COLLAPSED, NAN_STEPS, OUTSIDE, UNCLEAR, PART = "†", "‡", "!", "≈", "§"

LEGEND = {
    COLLAPSED: "† a run whose predictions collapsed to one class is in the mean",
    NAN_STEPS: "‡ a run met NaN or infinite logits; its updates there were skipped",
    OUTSIDE: "! differs from the paper by more than two standard errors",
    UNCLEAR: "≈ not distinguishable from zero (the 95 % interval holds 0, or there is none)",
    PART: "§ ours is over the beginning of the stream only (max_images), the paper's over all of it: not judged",
}


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A cell in pieces that renderers put together: ``mean``, ``std`` ("" where none), ``marks``, and ``short``
    (what is missing, as "n=2/3, 1 failed"; "" where nothing is).
    """

    mean: str
    std: str = ""
    interval: str = ""
    marks: str = ""
    short: str = ""


def number(value: float, cell: Cell) -> str:
    """A number as the cell prints it."""
    shape = f"{'+' if cell.signed else ''}{',' if cell.thousands else ''}.{cell.decimals}f"
    text = format(value, shape)
    return format(0.0, shape) if float(text.replace(",", "")) == 0 else text  # no "-0.0"


def shortfall(summary: Summary) -> str:
    """What keeps a summary from being complete: "" or "n=2/3, 1 failed"; causes are named where not just missing."""
    if summary.complete or summary.expected == len(summary.absent):
        return ""
    causes = [f"{len(x)} {word}" for x, word in ((summary.failed, "failed"), (summary.nan, "NaN")) if x]
    return ", ".join([f"n={summary.n}/{summary.expected}", *causes])


def parts(cell: Cell | None) -> Parts:
    """The pieces of a cell. Nothing planned: "". Planned but no value: "–". Not defined for these runs: "n/a"."""
    if cell is None:
        return Parts(mean="")
    if cell.text is not None:
        return Parts(mean=cell.text, marks=_flag(cell))
    summary = cell.summary
    if summary is None:
        return Parts(mean="")
    if summary.mean is None:
        only_absent = summary.absent and len(summary.absent) == summary.expected
        word = "n/a" if only_absent else "NaN" if summary.nan else "–"
        return Parts(mean=word, marks=_marks(cell, summary), short=shortfall(summary))
    interval = ""
    if cell.interval is not None:
        low, high = (f"{v:+.{cell.decimals}f}" for v in cell.interval)
        interval = f"[{low}, {high}]"
    return Parts(
        mean=number(summary.mean, cell),
        std="" if summary.std is None else f"{summary.std:.{cell.decimals}f}",
        interval=interval,
        marks=_marks(cell, summary),
        short=shortfall(summary),
    )


def _marks(cell: Cell, summary: Summary) -> str:
    collapsed = COLLAPSED if summary.collapsed else ""
    return collapsed + (NAN_STEPS if summary.nan_steps else "") + _flag(cell)


def _flag(cell: Cell) -> str:
    return {"outside": OUTSIDE, "unclear": UNCLEAR, "part": PART}.get(cell.flag, "")


def legend(table: Table) -> tuple[str, ...]:
    """Explanations of the marks that the table really uses."""
    used = "".join(parts(cell).marks for row in table.cells for cell in row)
    lines = [text for mark, text in LEGEND.items() if mark in used]
    if any(not s.complete and s.expected != len(s.absent) for s in summaries(table)):
        lines.append(
            "n=a/b: a of b seeds (in differences: pairs) count, the others are missing, failed or NaN and are in no "
            "mean; a seed that lacks one corruption is in no average"
        )
    return tuple(lines)


def summaries(table: Table) -> Iterable[Summary]:
    """Every summary of the table."""
    return (cell.summary for row in table.cells for cell in row if cell is not None and cell.summary is not None)
