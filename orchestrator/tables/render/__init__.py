"""Output formats of tables. A new format is one file and one line here."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence

from deyo.types import ConfigError
from orchestrator.tables.model import Table

# Each module has ``render(tables, *, width, color) -> str``.
FORMATS = {
    "text": "orchestrator.tables.render.text",
    "markdown": "orchestrator.tables.render.markdown",
    "latex": "orchestrator.tables.render.latex",
    "csv": "orchestrator.tables.render.csv",
    "html": "orchestrator.tables.render.html",
    "json": "orchestrator.tables.render.json",
}


def render(tables: Sequence[Table], fmt: str = "text", *, width: int = 100, color: bool = False) -> str:
    """The tables in ``fmt``, a name of ``FORMATS``. ``width`` (characters) and ``color`` (ANSI) matter to text
    only. Raises ``ConfigError`` for an unknown format.
    """
    if fmt not in FORMATS:
        near = difflib.get_close_matches(fmt, FORMATS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"no format '{fmt}'; formats are {', '.join(FORMATS)}{hint}")
    return importlib.import_module(FORMATS[fmt]).render(tables, width=width, color=color)
