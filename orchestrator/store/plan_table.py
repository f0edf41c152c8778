"""The plan as a Parquet file: labels, axes and expected seeds of every run."""

from __future__ import annotations

import io
import json
from dataclasses import fields
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator import schema
from orchestrator.store import commits, layout
from orchestrator.store.errors import DamagedError
from orchestrator.store.tree import Tree
from orchestrator.types import Plan, PlannedRun, RunConfig, RunStatus

_AXES = [schema.RUNS.field(name) for name in schema.RUNS.names if name not in ("run_id", "attempt")]
_AXES = _AXES[: [f.name for f in _AXES].index("max_images") + 1]

PLAN = pa.schema(
    [
        ("run_id", pa.string()),
        *_AXES,
        ("status", pa.string()),
        ("reason", pa.string()),
        ("aliases", pa.list_(pa.string())),
        ("stamps", pa.string()),
        ("record_samples", pa.bool_()),
        ("duplicates", pa.int64()),
        ("schema_version", pa.int64()),
    ]
)
"""One row a planned run, in spec order; the axes are those of the ``runs`` grain."""


def encode(plan: Plan) -> bytes:
    table = pa.Table.from_pylist([_row(run, plan.sweep) for run in plan.runs], schema=PLAN)
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def _row(run: PlannedRun, sweep: str) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        **commits.axes(run.config, sweep),
        "status": run.status.value,
        "reason": run.reason,
        "aliases": list(run.aliases),
        "stamps": json.dumps(dict(run.stamps), sort_keys=True),
        "record_samples": run.config.record_samples,
        "duplicates": run.duplicates,
        "schema_version": schema.VERSION,
    }


def to_plan(table: pa.Table, sweep: str) -> Plan:
    """The plan that ``encode`` was given."""
    runs = tuple(_planned(row) for row in table.to_pylist())
    return Plan(sweep=sweep, runs=runs, merged_duplicates=sum(run.duplicates for run in runs))


def _planned(row: dict[str, Any]) -> PlannedRun:
    config = {f.name: row[f.name] for f in fields(RunConfig)}
    for name in commits.JSON_FIELDS:
        config[name] = json.loads(config[name])
    config["corruptions"] = tuple(config["corruptions"] or ())
    return PlannedRun(
        run_id=row["run_id"],
        config=RunConfig(**config),
        status=RunStatus(row["status"]),
        reason=row["reason"] or "",
        duplicates=row["duplicates"] or 0,
        aliases=tuple(row["aliases"] or ()),
        stamps=json.loads(row["stamps"] or "{}"),
    )


def read(tree: Tree) -> pa.Table | None:
    """The plan's table, None if none was kept. Columns of a newer schema are null in an old plan.

    Raises:
        DamagedError: the file is cut short.
    """
    try:
        data = tree.read(layout.PLAN)
    except FileNotFoundError:
        return None
    try:
        table = pq.read_table(pa.BufferReader(data))
    except (pa.ArrowInvalid, OSError) as error:
        raise DamagedError(f"{layout.PLAN} is damaged ({error}); `deyo-sweep run` writes it again") from error
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in PLAN
    ]
    return pa.Table.from_arrays(columns, schema=PLAN)
