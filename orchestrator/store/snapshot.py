"""A consistent view of committed rows: the manifest's parts, and commits that no part covers yet.

The compactor publishes ``samples`` and ``batches`` before ``runs``, and removes a run's streams only after all
three. So a reader that lists the commits first, opens the ``runs`` parts next and the other parts last has every
committed run once; if a stream vanished meanwhile, it was compacted, and the reader looks for it in the parts.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from orchestrator import schema
from orchestrator.store import commits, layout
from orchestrator.store.errors import DamagedError
from orchestrator.store.manifest import Part, read_manifest
from orchestrator.store.streams import conform, digest, read_stream
from orchestrator.store.tree import Tree

if TYPE_CHECKING:
    import pyarrow.dataset as pads

_TRIES = 6
_PAUSE = 0.05


class Moved(Exception):
    """The compactor moved rows while they were being read."""


def take(tree: Tree) -> Snapshot:
    """The sweep as it is now. Commits whose rows are lost or cut short are left out (``Snapshot.damaged``).

    Raises:
        DamagedError: a part or the manifest is damaged.
    """
    for _ in range(_TRIES):
        try:
            return Snapshot(tree)
        except Moved:
            time.sleep(_PAUSE)
    return Snapshot(tree, strict=False)


class Snapshot:
    """Committed rows of one sweep. Parts stay open, so that later rewrites do not show.

    Use ``take``. With ``strict`` a commit without its rows raises ``Moved``, for they may just have been compacted.
    """

    def __init__(self, tree: Tree, *, strict: bool = True) -> None:
        self._tree = tree
        listed = list(commits.committed_ids(tree))
        self.parts = {grain: _open(tree, grain) for grain in ("runs", "batches", "samples")}
        self.covered = {g: frozenset[str]().union(*(p.runs for p in ps)) for g, ps in self.parts.items()}
        self.uncovered: list[commits.Marker] = []
        self.damaged: dict[str, str] = {}
        for run_id in listed:
            if run_id not in self.covered["runs"]:
                self._add_uncovered(run_id, strict)

    def _add_uncovered(self, run_id: str, strict: bool) -> None:
        try:
            marker = commits.read(self._tree, run_id)
            lost = lost_streams(self._tree, marker, self.covered)
        except DamagedError as error:
            self.damaged[run_id] = str(error)
            return
        except FileNotFoundError as error:
            raise Moved(run_id) from error
        if lost and strict:
            raise Moved(run_id)
        if lost:
            self.damaged[run_id] = f"{', '.join(lost)}: missing or cut short"
        else:
            self.uncovered.append(marker)

    def count(self) -> int:
        """How many runs are committed."""
        return len(self.covered["runs"]) + len(self.uncovered)

    def runs(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The ``runs`` rows, ``columns`` of them."""
        return _concat("runs", self.batches("runs", columns), columns)

    def batches(self, grain: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Rows of ``grain``, bounded pieces at a time; the rows of a run come in order and in one stretch."""
        for part in self.parts[grain]:
            present = None if columns is None else [c for c in columns if c in part.file.schema_arrow.names]
            for batch in part.file.iter_batches(columns=present):
                yield _cast(batch, grain, columns, part.path)
        for batch in self._loose(grain):
            yield batch if columns is None else batch.select(list(columns))

    def _loose(self, grain: str) -> Iterator[pa.RecordBatch]:
        """Rows of commits that no part of ``grain`` has."""
        if grain == "runs":
            yield from commits.rows_table(self.uncovered).to_batches()
            return
        moved = set()
        for marker in self.uncovered:
            if marker.run_id not in self.covered[grain] and grain in marker.streams:
                try:
                    yield from read_committed(self._tree, marker, grain)
                except Moved:
                    moved.add(marker.run_id)  # compacted since the snapshot was taken
        if moved:
            yield from take(self._tree).compacted(grain, frozenset(moved))

    def compacted(self, grain: str, run_ids: frozenset[str]) -> Iterator[pa.RecordBatch]:
        """The rows of ``run_ids`` from the parts.

        Raises:
            DamagedError: a run is in no part.
        """
        lost = run_ids - self.covered[grain]
        if lost:
            raise DamagedError(
                f"the {grain} of committed runs are gone: {', '.join(sorted(lost))}; see deyo-sweep fsck"
            )
        wanted = pa.array(sorted(run_ids), pa.string())
        for part in self.parts[grain]:
            if part.runs & run_ids:
                for batch in part.file.iter_batches():
                    yield _cast(batch.filter(pc.is_in(batch["run_id"], wanted)), grain, None, part.path)

    def dataset(self, grain: str) -> pads.Dataset:
        """The rows of ``grain`` as an Arrow dataset over the open parts (loose rows are read into memory)."""
        target = schema.GRAINS[grain]
        import pyarrow.dataset as pads  # brings pandas along: half a second that most verbs need not pay

        file_format = pads.ParquetFileFormat()
        fragments = [file_format.make_fragment(part.source) for part in self.parts[grain]]
        stored = pads.FileSystemDataset(fragments, target, file_format)
        loose = list(self._loose(grain))
        if not loose:
            return stored
        return pads.dataset([stored, pads.dataset(pa.Table.from_batches(loose, target))])


def lost_streams(tree: Tree, marker: commits.Marker, covered: Mapping[str, Set[str]]) -> list[str]:
    """Streams of a commit that no part holds and that are not (wholly) there."""
    return [
        path
        for grain, path in marker.files.items()
        if marker.run_id not in covered[grain] and tree.stream_size(path) < marker.streams[grain]["bytes"]
    ]


def read_committed(tree: Tree, marker: commits.Marker, grain: str) -> Iterator[pa.RecordBatch]:
    """The rows of a commit from its stream, checked against the marker.

    Raises:
        Moved: the stream is not there (any more).
        DamagedError: it is not what was committed.
    """
    said = marker.streams[grain]
    path = said.get("path", layout.commit(marker.run_id))
    try:
        data = pa.py_buffer(base64.b64decode(said["inline"])) if "inline" in said else tree.read_stream(path)
    except FileNotFoundError as error:
        raise Moved(f"{path}, rows of the committed run {marker.run_id}, is gone") from error
    if len(data) < said["bytes"] or digest(data[: said["bytes"]]) != said["sha256"]:
        raise DamagedError(
            f"{path}, rows of the committed run {marker.run_id}, is not what was committed "
            f"({said['bytes']} bytes, {len(data)} now); `deyo-sweep fsck --repair` makes the run run again"
        )
    yield from read_stream(data[: said["bytes"]], grain, whole=True, path=path)


def _open(tree: Tree, grain: str) -> list[Part]:
    return [Part(tree, path) for path in read_manifest(tree).parts[grain]]


def _cast(batch: pa.RecordBatch, grain: str, columns: Sequence[str] | None, path: str) -> pa.RecordBatch:
    target = schema.GRAINS[grain]
    wanted = target if columns is None else pa.schema([target.field(c) for c in columns])
    return conform(batch, wanted, where=path)


def _concat(grain: str, batches: Iterator[pa.RecordBatch], columns: Sequence[str] | None) -> pa.Table:
    target = schema.GRAINS[grain]
    wanted = target if columns is None else pa.schema([target.field(c) for c in columns])
    return pa.Table.from_batches(batches, wanted)
