r"""Tables as LaTeX with booktabs, for pdflatex; the preamble needs ``\usepackage{booktabs,graphicx}``."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from orchestrator.tables.cells import Parts, legend, parts
from orchestrator.tables.model import Cell, Table, sections, spans

PREAMBLE = "% needs \\usepackage{booktabs} and \\usepackage{graphicx}"
_WIDE = 9  # columns from which a table is shrunk to the line

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
    "±": r"\ensuremath{\pm}",
    "†": r"\ensuremath{\dagger}",
    "‡": r"\ensuremath{\ddagger}",
    "≈": r"\ensuremath{\approx}",
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
    return "" if unicodedata.combining(c) else f"[U+{ord(c):04X}]"


def render(tables: Sequence[Table], *, width: int = 100, color: bool = False) -> str:
    """A ``table`` environment for each table, caption and fine print inside."""
    return "\n\n".join([PREAMBLE, *(_table(t) for t in tables)])


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
    marks = f"$^{{{escape(p.marks)}}}$" if p.marks else ""
    interval = rf" {{\scriptsize [{p.interval[1:-1]}]}}" if p.interval else ""
    short = rf" {{\scriptsize ({escape(p.short)})}}" if p.short else ""
    return value + marks + interval + short


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
    width = len(table.columns)
    body = [rf"\begin{{tabular}}{{l{'r' * width}}}", r"\toprule", *_heads(table)]
    body.append(" & ".join(escape(t) for t in (table.stub, *(c.title for c in table.columns))) + r" \\")
    for section, members in sections(table.rows):
        body.append(r"\midrule")
        if section:
            body.append(rf"\multicolumn{{{width + 1}}}{{l}}{{\textit{{{escape(section)}}}}} \\")
        for i in members:
            row = table.rows[i]
            indent = r"\quad " if row.kind not in ("value", "average") else ""
            body.append(" & ".join([indent + escape(row.title), *map(_cell, table.cells[i])]) + r" \\")
    body += [r"\bottomrule", r"\end{tabular}"]
    if width >= _WIDE:
        body = [r"\resizebox{\linewidth}{!}{%", *body, "}"]
    notes = " ".join(escape(n if n.endswith(".") else n + ".") for n in [*table.notes, *legend(table)])
    return "\n".join(
        [
            rf"\begin{{table{'*' * (width >= _WIDE)}}}[t]",
            r"\centering",
            rf"\caption{{{escape(table.title)}.{_bold_note(table)}}}",
            rf"\label{{tab:{''.join(c if c.isalnum() and c.isascii() else '-' for c in table.name)}}}",
            *body,
            rf"\par\smallskip\footnotesize\raggedright {notes}",
            rf"\end{{table{'*' * (width >= _WIDE)}}}",
        ]
    )


def _bold_note(table: Table) -> str:
    cells = [c for row in table.cells for c in row if c is not None]
    best = " Bold: best, ties as printed." if any(c.best for c in cells) else ""
    return best + (" Underlined: second best." if any(c.second for c in cells) else "")
