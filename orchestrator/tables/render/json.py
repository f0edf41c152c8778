"""Tables as JSON: the model as it is, numbers in full precision."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from orchestrator.tables.cells import legend
from orchestrator.tables.model import Cell, Table
from orchestrator.tables.per_seed import every
from orchestrator.tables.statistics import Summary


def render(tables: Sequence[Table], *, width: int = 100, color: bool = False) -> str:
    """``{"tables": [...]}``; ``cells[i][j]`` belongs to ``rows[i]`` and ``columns[j]``, null where nothing was
    planned.
    """
    return json.dumps({"tables": [_table(t) for t in tables]}, ensure_ascii=False, indent=1, default=str)


def _table(table: Table) -> dict[str, Any]:
    return {
        "name": table.name,
        "title": table.title,
        "stub": table.stub,
        "ddof": table.ddof,
        "columns": [{**asdict(c), "key": dict(c.key)} for c in table.columns],
        "rows": [{**asdict(r), "key": dict(r.key)} for r in table.rows],
        "cells": [[None if c is None else _cell(c) for c in row] for row in table.cells],
        "notes": list(table.notes),
        "legend": list(legend(table)),
    }


def _cell(cell: Cell) -> dict[str, Any]:
    out: dict[str, Any] = {"best": cell.best, "second": cell.second, "decimals": cell.decimals}
    if cell.text is not None:
        out["text"] = cell.text
    if cell.flag:
        out["flag"] = cell.flag
    if cell.interval is not None:
        out["interval"] = list(cell.interval)
    if cell.summary is not None:
        out |= _summary(cell.summary)
    return out


def _summary(summary: Summary) -> dict[str, Any]:
    return {
        "mean": summary.mean,
        "std": summary.std,
        "n": summary.n,
        "expected": summary.expected,
        "median": summary.median,
        "seeds": [
            {"seed": r[0], "pretrain_seed": r[1], "value": summary.values.get(r), "state": word or "done"}
            for r, word in every(summary).items()
        ],
        "collapsed": [list(r) for r in summary.collapsed],
    }
