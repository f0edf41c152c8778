"""Moves committed rows from many small files into few Parquet parts. One writer a sweep does it, under a lock.

A part's footer names the runs in it, so a part is right by itself: a crash between any two steps leaves readers
with every committed run exactly once. The last part of a grain is rewritten with more rows, under its own name
and atomically, until it is large; where files cannot be replaced under open readers, parts are only ever added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from orchestrator import schema
from orchestrator.store import commits, layout
from orchestrator.store.errors import DamagedError
from orchestrator.store.manifest import Part, part_schema, read_manifest
from orchestrator.store.snapshot import Snapshot, read_committed, take
from orchestrator.store.streams import conform
from orchestrator.store.tree import Tree

CHUNK_RUNS = 1024
CHUNK_ROWS = 2_000_000
PART_ROWS = 2_000_000
PART_RUNS = 20_000
ROW_GROUP = 131_072

_PARQUET = {"compression": "zstd", "write_page_checksum": True}
_ORDER = ("label", "model", "benchmark", "scenario", "corruption", "severity", "seed")


def compact(tree: Tree) -> tuple[int, int]:
    """Compact one chunk of commits that no part covers; (runs compacted, runs left for the next call).

    (0, 0) if another process is compacting this sweep, or if nothing is due.
    """
    with tree.lock(layout.LOCK) as free:
        return _compact(tree) if free else (0, 0)


def _compact(tree: Tree) -> tuple[int, int]:
    snapshot = take(tree)
    chunk = _chunk(snapshot.uncovered)
    left = len(snapshot.uncovered) - len(chunk)
    chunk = [marker for marker in chunk if _intact(tree, marker, snapshot)]
    for grain in ("samples", "batches", "runs"):
        if tree.rewritable:
            _upgrade(tree, grain)
        _extend(tree, grain, chunk)
    if tree.rewritable:
        for marker in chunk:
            for path in marker.files.values():
                tree.delete(path)
    return len(chunk), left


def _intact(tree: Tree, marker: commits.Marker, snapshot: Snapshot) -> bool:
    """Whether all rows of a commit can be read. If not it stays uncompacted, for fsck to tell."""
    try:
        for grain in marker.streams:
            if marker.run_id not in snapshot.covered[grain]:
                for _ in read_committed(tree, marker, grain):
                    pass
    except DamagedError:
        return False
    return True


def _chunk(uncovered: Sequence[commits.Marker]) -> list[commits.Marker]:
    """As many commits as one call should handle (at least one), in table order."""
    chosen, rows = [], 0
    for marker in sorted(uncovered, key=lambda m: m.run_id):
        rows += sum(stream["rows"] for stream in marker.streams.values())
        if chosen and (rows > CHUNK_ROWS or len(chosen) == CHUNK_RUNS):
            break
        chosen.append(marker)
    return sorted(chosen, key=lambda m: [str(m.row.get(name)) for name in _ORDER])


def _extend(tree: Tree, grain: str, chunk: Sequence[commits.Marker]) -> None:
    """Put the rows of ``chunk`` into the last part of ``grain``, or into a new one, and list it.

    A grain without any rows gets a part all the same, so that a plain read of its folder works.
    """
    manifest = read_manifest(tree)
    paths = manifest.parts[grain]
    parts = [Part(tree, path) for path in paths]
    there = frozenset[str]().union(*(part.runs for part in parts))
    fresh = [m for m in chunk if (grain == "runs" or grain in m.streams) and m.run_id not in there]
    if parts and not fresh:
        return
    tail = parts[-1] if parts and tree.rewritable else None
    if tail and (tail.rows >= PART_ROWS or len(tail.runs) >= PART_RUNS):
        tail = None
    path = tail.path if tail else layout.part(grain, len(paths))
    runs = [*(sorted(tail.runs) if tail else ()), *(m.run_id for m in fresh)]
    _write_part(tree, grain, path, runs, _rows(tree, grain, tail, fresh))
    if not tail:
        paths.append(path)
        tree.replace(layout.MANIFEST, manifest.encode())


def _rows(tree: Tree, grain: str, tail: Part | None, fresh: Sequence[commits.Marker]) -> Iterator[pa.RecordBatch]:
    if tail:
        yield from tail.file.iter_batches()
    if grain == "runs":
        yield from commits.rows_table(list(fresh)).to_batches()
        return
    for marker in fresh:
        yield from read_committed(tree, marker, grain)


def _write_part(tree: Tree, grain: str, path: str, runs: list[str], rows: Iterator[pa.RecordBatch]) -> None:
    """A whole Parquet file of ``rows``, never holding more than about a row group of them in memory."""
    target = part_schema(grain, runs)
    with tree.writer(path) as sink, pq.ParquetWriter(sink, target, **_PARQUET) as writer:
        kept: list[pa.RecordBatch] = []
        for batch in rows:
            kept.append(conform(batch, schema.GRAINS[grain], where=path))
            if sum(b.num_rows for b in kept) >= ROW_GROUP:
                writer.write_table(pa.Table.from_batches(kept), row_group_size=ROW_GROUP)
                kept = []
        if kept:
            writer.write_table(pa.Table.from_batches(kept), row_group_size=ROW_GROUP)


def _upgrade(tree: Tree, grain: str) -> None:
    """Rewrite parts of an older schema, so that plain Parquet readers see the same columns in every file."""
    for path in read_manifest(tree).parts[grain]:
        part = Part(tree, path)
        if part.schema_version < schema.VERSION:
            _write_part(tree, grain, path, sorted(part.runs), part.file.iter_batches())


def drop_runs(tree: Tree, grain: str, lost: frozenset[str]) -> None:
    """Rewrite the parts of ``grain`` without the rows of the runs ``lost``."""
    for path in read_manifest(tree).parts[grain]:
        part = Part(tree, path)
        if part.runs & lost:
            drop = pa.array(sorted(lost), pa.string())
            kept = (b.filter(pc.invert(pc.is_in(b["run_id"], drop))) for b in part.file.iter_batches())
            _write_part(tree, grain, path, sorted(part.runs - lost), kept)
