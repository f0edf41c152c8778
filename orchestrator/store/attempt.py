"""One attempt in flight: its row streams, buffered, spilled to files, and checked before the commit."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.store import layout
from orchestrator.store.errors import StoreError
from orchestrator.store.streams import ROW_KEY, StreamBuffer, digest
from orchestrator.store.tree import Tree
from orchestrator.types import PlannedRun

SPILL_BYTES = 1 << 20
"""Rows kept in memory for an attempt before they are written without being asked for."""

INLINE_BYTES = 8192
"""Streams of a run no larger than this together go into the commit marker: one file to sync, not three."""


@dataclass
class _Stream:
    """One grain of an attempt."""

    path: str
    buffer: StreamBuffer
    written: int = 0
    rows: int = 0
    images: int = 0
    hash: Any = field(default_factory=hashlib.sha256)


class Attempt:
    """Buffers the rows of one attempt; nothing is written before ``spill``, or ``SPILL_BYTES``."""

    def __init__(self, tree: Tree, run: PlannedRun, number: int, started_at: str) -> None:
        self.run = run
        self.number = number
        self.started_at = started_at
        self._tree = tree
        self._streams: dict[str, _Stream] = {}

    def append(self, grain: str, batch: pa.RecordBatch) -> int:
        """Rows that follow those appended before; the first is the run's first (also after a resume).

        Returns how many bytes more are now waiting in memory.

        Raises:
            StoreError: rows are missing in between, or have unknown columns.
        """
        if batch.num_rows == 0:
            return 0
        stream = self._streams.get(grain) or self._open(grain)
        before = stream.buffer.size
        self._add(stream, grain, batch)
        if stream.buffer.size > SPILL_BYTES:
            self._spill(stream, durable=False)
        return stream.buffer.size - before

    def spill(self, *, durable: bool) -> None:
        """Write what is buffered."""
        for stream in self._streams.values():
            self._spill(stream, durable=durable)

    def finish(self, images: int | None) -> dict[str, dict[str, Any]]:
        """Close the streams durably; what the commit marker says of them, by grain.

        Raises:
            StoreError: the batches do not add up to the ``images`` of the run.
        """
        batches = self._streams.get("batches")
        if batches and images is not None and batches.images != images:
            raise StoreError(
                f"run {self.run.run_id}, attempt {self.number}: its row counts {images} images, but its batches "
                f"{batches.images}: rows were lost on the way, so it is not committed"
            )
        for stream in self._streams.values():
            stream.buffer.close()
        if not self.streams() and sum(s.buffer.size for s in self._streams.values()) <= INLINE_BYTES:
            return {grain: _inline(stream) for grain, stream in self._streams.items()}
        self.spill(durable=True)
        return {
            grain: {"path": s.path, "bytes": s.written, "rows": s.rows, "sha256": s.hash.hexdigest()}
            for grain, s in self._streams.items()
        }

    def close(self, *, durable: bool) -> None:
        """End the streams, whole as far as they go."""
        for stream in self._streams.values():
            stream.buffer.close()
        self.spill(durable=durable)

    def streams(self) -> dict[str, str]:
        """Paths of the row files, by grain."""
        return {grain: stream.path for grain, stream in self._streams.items() if stream.written}

    def _open(self, grain: str) -> _Stream:
        if grain not in ROW_KEY:
            raise StoreError(f"rows of grain {grain!r}: expected one of {sorted(ROW_KEY)}")
        path = layout.attempt_file(self.run.run_id, self.number, f"{grain}.arrows")
        buffer = StreamBuffer(grain, self.run.run_id, self.number)
        self._streams[grain] = _Stream(path, buffer)
        return self._streams[grain]

    def _add(self, stream: _Stream, grain: str, batch: pa.RecordBatch) -> None:
        if ROW_KEY[grain] not in batch.schema.names:
            raise StoreError(f"run {self.run.run_id}: rows of {grain} need the column {ROW_KEY[grain]!r}")
        keys = batch.column(ROW_KEY[grain])
        expected = pa.array(range(stream.rows, stream.rows + len(keys)), pa.int64())
        if not keys.cast(pa.int64()).equals(expected):
            raise StoreError(
                f"run {self.run.run_id}, attempt {self.number}: {grain} should go on at {ROW_KEY[grain]} "
                f"{stream.rows} without a gap, got {keys[0]} .. {keys[-1]}"
            )
        stream.buffer.add(batch)
        stream.rows += batch.num_rows
        if grain == "batches" and "images" in batch.schema.names:
            stream.images += pc.sum(batch.column("images")).as_py() or 0

    def _spill(self, stream: _Stream, *, durable: bool) -> None:
        data = stream.buffer.pending()
        if not data and not durable:
            return
        self._tree.append(stream.path, stream.written, data, durable=durable)
        stream.hash.update(data)
        stream.written += len(data)
        stream.buffer.taken()


def _inline(stream: _Stream) -> dict[str, Any]:
    data = stream.buffer.pending()
    return {"inline": base64.b64encode(data).decode(), "bytes": len(data), "rows": stream.rows, "sha256": digest(data)}
