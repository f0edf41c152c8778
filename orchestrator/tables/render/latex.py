r"""Tables as LaTeX with booktabs, for pdflatex; the preamble needs ``\usepackage{booktabs,graphicx}``, and
``rotating`` where a table lies on its side.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from orchestrator.tables.cells import Parts, legend, parts
from orchestrator.tables.model import Cell, Row, Table, sections, spans

PREAMBLE = "% needs \\usepackage{booktabs} and \\usepackage{graphicx}"
SIDEWAYS = ", and \\usepackage{rotating}"
_WIDE = 9  # columns from which a table spans both columns of a page
_LONG = 12  # columns from which a table with intervals lies on its side: they would be too small to read
_DENSE = 6  # columns from which they stand closer
_FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"  # shrunk to the line, never enlarged

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "`": "{`}",
    "[": "{[}",  # at the start of a row it would be an option of the line break before it
    "±": r"\ensuremath{\pm}",
    "†": r"\ensuremath{\dagger}",
    "‡": r"\ensuremath{\ddagger}",
    "≈": r"\ensuremath{\approx}",
    "§": r"\S{}",
    "×": r"\ensuremath{\times}",
    "≤": r"\ensuremath{\leq}",
    "≥": r"\ensuremath{\geq}",
    "−": r"\ensuremath{-}",
    "√": r"\ensuremath{\surd}",
    "∞": r"\ensuremath{\infty}",
    "✓": r"\ensuremath{\surd}",
    "–": r"\textendash{}",
    "—": r"\textemdash{}",
    "…": r"\ldots{}",
    "·": r"\ensuremath{\cdot}",
    "\u00a0": "~",
    "Δ": r"\ensuremath{\Delta}",
    "α": r"\ensuremath{\alpha}",
    "β": r"\ensuremath{\beta}",
    "γ": r"\ensuremath{\gamma}",
    "δ": r"\ensuremath{\delta}",
    "ε": r"\ensuremath{\epsilon}",
    "θ": r"\ensuremath{\theta}",
    "λ": r"\ensuremath{\lambda}",
    "μ": r"\ensuremath{\mu}",
    "µ": r"\ensuremath{\mu}",
    "ρ": r"\ensuremath{\rho}",
    "σ": r"\ensuremath{\sigma}",
    "τ": r"\ensuremath{\tau}",
}


def escape(text: str) -> str:
    """``text`` as LaTeX that pdflatex prints: specials escaped, Greek and signs as mathematics, other letters
    without accents or, where there is no such form, by their code point.
    """
    return "".join(map(_char, " ".join(text.split()))).replace("--", "-{}-")


def _char(c: str) -> str:
    if c in _SPECIAL:
        return _SPECIAL[c]
    if c.isascii():
        return c if c.isprintable() else ""
    plain = unicodedata.normalize("NFKD", c).encode("ascii", "ignore").decode()
    if plain.strip():
        return "".join(_SPECIAL.get(p, p) for p in plain)
    return "" if unicodedata.combining(c) else f"{{[}}U+{ord(c):04X}]"


def render(tables: Sequence[Table], *, width: int = 100, color: bool = False) -> str:
    """A ``table`` environment for each table, caption and fine print inside."""
    head = PREAMBLE + (SIDEWAYS if any(_environment(t) == "sidewaystable*" for t in tables) else "")
    return "\n\n".join([head, *(_table(t) for t in tables)])


def _environment(table: Table) -> str:
    width = len(table.columns)
    if width >= _LONG and any(c.interval for row in table.cells for c in row if c is not None):
        return "sidewaystable*"
    return "table*" if width >= _WIDE else "table"


def _number(text: str) -> str:
    return f"${text}$" if text[:1] in "+-" else escape(text)


def _value(p: Parts) -> str:
    mean = _number(p.mean) if p.mean else ""
    return mean + (rf"$_{{\pm {p.std}}}$" if p.std else "")


def _cell(cell: Cell | None) -> str:
    p = parts(cell)
    value = _value(p)
    if cell is not None and cell.best:
        value = rf"\textbf{{\boldmath {value}}}"
    if cell is not None and cell.second:
        value = rf"\underline{{{value}}}"
    return value + (f"$^{{{escape(p.marks)}}}$" if p.marks else "")


def _below(cell: Cell | None) -> str:
    """What stands in small print under a cell's value: its interval, or what it lacks."""
    p = parts(cell)
    interval = p.interval.replace("-", "$-$")
    small = " ".join(x for x in (interval, escape(p.short)) if x)
    return rf"\scriptsize {small}" if small else ""


def _lines(row: Row, cells: Sequence[Cell | None]) -> list[str]:
    """A row of the table, and a second one where a cell has something below its value."""
    indent = r"\quad " if row.kind not in ("value", "average") else ""
    below = list(map(_below, cells))
    end = r" \\[-3pt]" if any(below) else r" \\"
    lines = [" & ".join([indent + escape(row.title), *map(_cell, cells)]) + end]
    return lines + ([" & ".join(["", *below]) + r" \\"] if any(below) else [])


def _heads(table: Table) -> list[str]:
    if not any(c.group for c in table.columns):
        return []
    cells, rules, at = [""], [], 2
    for name, count in spans(table.columns):
        cells.append(rf"\multicolumn{{{count}}}{{c}}{{{escape(name)}}}" if count > 1 or name else "")
        if name:
            rules.append(rf"\cmidrule(lr){{{at}-{at + count - 1}}}")
        at += count
    return [" & ".join(cells) + r" \\", "".join(rules)]


def _table(table: Table) -> str:
    width, environment = len(table.columns), _environment(table)
    dense = [r"\setlength{\tabcolsep}{3pt}"] if width >= _DENSE else []
    body = [*dense, _FIT, rf"\begin{{tabular}}{{l{'r' * width}}}", r"\toprule", *_heads(table)]
    body.append(" & ".join(escape(t) for t in (table.stub, *(c.title for c in table.columns))) + r" \\")
    for section, members in sections(table.rows):
        body.append(r"\midrule")
        if section:
            body.append(rf"\multicolumn{{{width + 1}}}{{l}}{{\textit{{{escape(section)}}}}} \\")
        for i in members:
            body += _lines(table.rows[i], table.cells[i])
    body += [r"\bottomrule", r"\end{tabular}}"]
    notes = " ".join(escape(n if n.endswith(".") else n + ".") for n in [*table.notes, *legend(table)])
    return "\n".join(
        [
            rf"\begin{{{environment}}}" + "[t]" * (environment != "sidewaystable*"),
            r"\centering",
            rf"\caption{{{escape(table.title)}.{_bold_note(table)}}}",
            rf"\label{{tab:{''.join(c if c.isalnum() and c.isascii() else '-' for c in table.name)}}}",
            *body,
            rf"\par\smallskip\footnotesize\raggedright {notes}",
            rf"\end{{{environment}}}",
        ]
    )


def _bold_note(table: Table) -> str:
    cells = [c for row in table.cells for c in row if c is not None]
    best = " Bold: best, ties as printed." if any(c.best for c in cells) else ""
    return best + (" Underlined: second best." if any(c.second for c in cells) else "")
