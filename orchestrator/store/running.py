"""The index of attempts in flight: how readers find partial rows without searching the tree."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from orchestrator import schema
from orchestrator.store import commits, layout
from orchestrator.store.attempt import Attempt
from orchestrator.store.streams import read_stream
from orchestrator.store.tree import Tree


@dataclass(frozen=True, kw_only=True)
class Running:
    """An attempt without an outcome: the identity part of its row, and its row files by grain."""

    run_id: str
    attempt: int
    row: Mapping[str, Any]
    streams: Mapping[str, str]


def encode(attempts: Iterable[Attempt], sweep: str) -> bytes:
    entries = [
        {
            "run_id": attempt.run.run_id,
            "attempt": attempt.number,
            "row": {
                **commits.axes(attempt.run.config, sweep),
                "config_id": attempt.run.stamps.get("config_id"),
                "aliases": list(attempt.run.aliases),
                "started_at": attempt.started_at,
            },
            "streams": attempt.streams(),
        }
        for attempt in attempts
    ]
    return json.dumps({"updated_at": commits.utc_now(), "running": entries}).encode()


def read(tree: Tree) -> list[Running]:
    """Attempts in flight when the driver last flushed (or was killed); of each run the latest alone."""
    try:
        entries = [Running(**entry) for entry in json.loads(tree.read(layout.RUNNING))["running"]]
        return list({e.run_id: e for e in sorted(entries, key=lambda e: e.attempt)}.values())
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return []


def rows(tree: Tree, running: Running, grain: str) -> Iterator[pa.RecordBatch]:
    """What is there of a running attempt's rows, up to where its file is cut."""
    path = running.streams.get(grain)
    if path is None:
        return
    try:
        data = tree.read_stream(path)
    except FileNotFoundError:
        return
    yield from read_stream(data, grain, whole=False, path=path)


def runs_row(tree: Tree, running: Running) -> dict[str, Any]:
    """The ``runs`` row of a running attempt so far: images, accuracy and counts over its batches."""
    table = pa.Table.from_batches(rows(tree, running, "batches"), schema.BATCHES)
    images = pc.sum(table["images"]).as_py() or 0
    sums = {name: pc.sum(table[name]).as_py() for name in ("selected_entropy", "selected", "forwards", "backwards")}
    return {
        **running.row,
        "run_id": running.run_id,
        "attempt": running.attempt,
        "images": images,
        "accuracy": pc.sum(table["correct"]).as_py() / images if images else None,
        "skipped_steps": pc.sum(table["skipped"]).as_py(),
        "resets": pc.sum(table["reset"]).as_py(),
        **sums,
        "schema_version": schema.VERSION,
    }
