"""Commit markers: the small create-only files that make a finished run count, once."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from orchestrator import schema
from orchestrator.store import layout
from orchestrator.store.errors import DamagedError, StoreError
from orchestrator.store.tree import Tree
from orchestrator.types import CommitInfo, PlannedRun, RunConfig

FORMAT = 1

JSON_FIELDS = ("settings", "benchmark_options", "scenario_options")


@dataclass(frozen=True, kw_only=True)
class Marker:
    """A commit: the run's row, and the row streams that belong to it, by grain.

    A stream is a file (``path``), which compaction removes, or, if it is small, in the marker itself (``inline``).
    """

    run_id: str
    attempt: int
    row: Mapping[str, Any]
    streams: Mapping[str, Mapping[str, Any]]

    @property
    def files(self) -> dict[str, str]:
        """Paths of the streams that are files, by grain."""
        return {grain: stream["path"] for grain, stream in self.streams.items() if "inline" not in stream}


def utc_now() -> str:
    """ISO 8601, UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def axes(config: RunConfig, sweep: str) -> dict[str, Any]:
    """The identity columns of a run, as the ``runs`` grain has them."""
    values = {f: getattr(config, f) for f in config.__dataclass_fields__ if f in schema.RUNS.names}
    for name in JSON_FIELDS:
        values[name] = json.dumps(values[name], sort_keys=True)
    values["corruptions"] = list(config.corruptions)
    return {"sweep": sweep, **values}


def runs_row(run: PlannedRun, attempt: int, row: Mapping[str, Any], sweep: str, started_at: str) -> dict[str, Any]:
    """The whole ``runs`` row: what the worker said, completed from the plan.

    Raises:
        StoreError: ``row`` has columns that the schema does not know, or values of another type.
    """
    unknown = sorted(set(row) - set(schema.RUNS.names))
    if unknown:
        raise StoreError(f"row of run {run.run_id}: unknown columns {unknown}; add them to orchestrator/schema.py")
    given = {name: value for name, value in row.items() if value is not None}
    whole = {
        "started_at": started_at,
        "finished_at": utc_now(),
        **{name: value for name, value in run.stamps.items() if name in schema.RUNS.names},
        **given,
        **axes(run.config, sweep),
        "aliases": list(run.aliases),
        "stamps": json.dumps({**run.stamps, "record_samples": run.config.record_samples}, sort_keys=True),
        "run_id": run.run_id,
        "attempt": attempt,
        "schema_version": schema.VERSION,
    }
    return _plain_values(whole, run.run_id)


def _plain_values(row: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """``row`` through Arrow and back: the schema's types, plain Python values, every column present."""
    values = {}
    for field in schema.RUNS:
        try:
            value = pa.array([_unwrap(row.get(field.name))], field.type)[0].as_py()
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise StoreError(
                f"row of run {run_id}: {field.name} should be {field.type}, got {row[field.name]!r}: {error}"
            ) from error
        values[field.name] = value
    return values


def _unwrap(value: Any) -> Any:
    """Numpy scalars as Python numbers."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


def encode(marker: Marker) -> bytes:
    content = {name: getattr(marker, name) for name in Marker.__dataclass_fields__}
    return json.dumps({"format": FORMAT, **content}).encode()


def decode(data: bytes, path: str) -> Marker:
    """The marker in ``data``.

    Raises:
        DamagedError: it is cut short, empty, not of the run that ``path`` names, or of a newer format.
    """
    try:
        content = json.loads(data)
        marker = Marker(**{name: content[name] for name in Marker.__dataclass_fields__})
        newer = content["format"] > FORMAT
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{path} is not a whole commit marker; `deyo-sweep fsck` lists such files") from error
    if newer:
        raise DamagedError(f"{path} was written by a newer deyo-sweep (format {content['format']}): update this one")
    if marker.run_id != layout.marker_run_id(path):
        raise DamagedError(f"{path} is the commit marker of another run, {marker.run_id}")
    return marker


def read(tree: Tree, run_id: str) -> Marker:
    """Raises ``FileNotFoundError`` or ``DamagedError``."""
    path = layout.commit(run_id)
    return decode(tree.read(path), path)


def committed_ids(tree: Tree) -> Iterator[str]:
    """Runs that have a commit marker, whole or not. Other files in the folders are passed over."""
    for path in tree.names("commits"):
        run_id = layout.marker_run_id(path)
        if run_id and path == layout.commit(run_id):  # not a copy that lies deeper
            yield run_id


def publish(tree: Tree, marker: Marker) -> bool:
    """Commit: exactly one of all attempts at a run gets True."""
    return tree.create(layout.commit(marker.run_id), encode(marker))


def set_aside(tree: Tree, run_id: str) -> None:
    """Take a damaged marker out of the way; it stays beside, for fsck to list."""
    path = layout.commit(run_id)
    tree.replace(f"{path}.damaged", tree.read(path))
    tree.delete(path)


def rows_table(markers: list[Marker]) -> pa.Table:
    """The ``runs`` rows of ``markers``, with the newest schema."""
    return pa.Table.from_pylist([dict(m.row) for m in markers], schema=schema.RUNS)


def commit_info(row: Mapping[str, Any]) -> CommitInfo:
    """What the plan wants to know of a committed run, from its ``runs`` row."""
    stamps = {name: row[name] for name in schema.PROVENANCE if row.get(name) is not None}
    stamps |= json.loads(row.get("stamps") or "{}")
    if row.get("images_per_second") is not None and not math.isnan(row["images_per_second"]):
        stamps["images_per_second"] = row["images_per_second"]
    return CommitInfo(run_id=row["run_id"], attempt=row["attempt"], finished_at=row["finished_at"] or "", stamps=stamps)


INFO_COLUMNS = ("run_id", "attempt", "finished_at", "stamps", "images_per_second", *schema.PROVENANCE)
