"""Rows of a run in flight: Arrow IPC streams, readable while they grow and up to the point where they are cut.

A stream holds one grain of one attempt. ``run_id`` and ``attempt`` are constant in it, so they stand in the
schema's metadata and come back as columns when it is read.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator

import pyarrow as pa

from orchestrator import schema
from orchestrator.store.errors import DamagedError, StoreError

ROW_KEY = {"batches": "step", "samples": "position"}
"""The column that counts a run's rows from 0."""

_IDENTITY = ("run_id", "attempt")
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)  # for small batches threads cost more


def conform(batch: pa.RecordBatch | pa.Table, target: pa.Schema, *, where: str) -> pa.RecordBatch | pa.Table:
    """``batch`` with exactly the columns of ``target``: missing ones are null, types are widened if needed.

    Raises:
        StoreError: a column is unknown, or does not fit its type.
    """
    if batch.schema.equals(target):
        return batch
    unknown = [name for name in batch.schema.names if name not in target.names]
    if unknown:
        raise StoreError(f"{where}: unknown columns {unknown}; add them to orchestrator/schema.py (new VERSION)")
    columns = [_column(batch, field, where) for field in target]
    return type(batch).from_arrays(columns, schema=target)


def _column(batch: pa.RecordBatch | pa.Table, field: pa.Field, where: str) -> pa.Array | pa.ChunkedArray:
    index = batch.schema.get_field_index(field.name)
    if index < 0:
        return pa.nulls(batch.num_rows, field.type)
    column = batch.column(index)
    if column.type.equals(field.type):
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise StoreError(
            f"{where}: column {field.name!r} should be {field.type}, got {column.type}: {error}"
        ) from error


def stored_schema(grain: str) -> pa.Schema:
    """The columns that a stream of ``grain`` holds (all but the identity)."""
    return pa.schema([field for field in schema.GRAINS[grain] if field.name not in _IDENTITY])


class StreamBuffer:
    """Encodes batches of one stream in memory, until its bytes are taken away to be written."""

    def __init__(self, grain: str, run_id: str, attempt: int) -> None:
        metadata = {
            "grain": grain,
            "run_id": run_id,
            "attempt": str(attempt),
            "schema_version": str(schema.VERSION),
        }
        self._schema = stored_schema(grain).with_metadata(metadata)
        self._sink = io.BytesIO()
        self._writer = pa.ipc.new_stream(self._sink, self._schema, options=_OPTIONS)
        self._where = f"{grain} of run {run_id}, attempt {attempt}"
        self._closed = False

    def add(self, batch: pa.RecordBatch) -> None:
        """Append rows; identity columns in ``batch`` are ignored."""
        names = [name for name in batch.schema.names if name not in _IDENTITY]
        self._writer.write_batch(conform(batch.select(names), self._schema.remove_metadata(), where=self._where))

    def close(self) -> None:
        """Write the end-of-stream mark."""
        if not self._closed:
            self._writer.close()
            self._closed = True

    def pending(self) -> bytes:
        """Bytes not yet taken."""
        return self._sink.getvalue()

    @property
    def size(self) -> int:
        return self._sink.getbuffer().nbytes

    def taken(self) -> None:
        """Forget the pending bytes: they are written."""
        self._sink.seek(0)
        self._sink.truncate()


def read_stream(data: pa.Buffer, grain: str, *, whole: bool, path: str) -> Iterator[pa.RecordBatch]:
    """Batches of a stream with the newest schema of ``grain``, identity included.

    With ``whole`` the stream must be complete; without, whatever was written before it was cut is given.

    Raises:
        DamagedError: ``whole``, and the stream is cut short or is none.
    """
    try:
        reader = pa.ipc.open_stream(data)
        metadata = reader.schema.metadata or {}
        run_id, attempt = metadata[b"run_id"].decode(), int(metadata[b"attempt"])
    except (pa.ArrowInvalid, OSError, KeyError) as error:
        if whole:
            raise DamagedError(f"{path} is not a whole Arrow stream ({error})") from error
        return
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            break
        except (pa.ArrowInvalid, OSError) as error:
            if whole:
                raise DamagedError(f"{path} is cut short ({error})") from error
            return
        yield _with_identity(batch, grain, run_id, attempt, path)


def _with_identity(batch: pa.RecordBatch, grain: str, run_id: str, attempt: int, path: str) -> pa.RecordBatch:
    identity = [pa.repeat(run_id, batch.num_rows), pa.repeat(pa.scalar(attempt, pa.int64()), batch.num_rows)]
    names = [*_IDENTITY, *batch.schema.names]
    whole = pa.RecordBatch.from_arrays([*identity, *batch.columns], names=names)
    return conform(whole, schema.GRAINS[grain], where=path)


def is_whole(data: pa.Buffer) -> bool:
    """Whether a stream has its end-of-stream mark (a cut one has not, even where it is cut between batches)."""
    try:
        for _ in pa.ipc.open_stream(data):
            pass
    except (pa.ArrowInvalid, OSError):
        return False
    return data[-8:].to_pybytes() == _END


def digest(data: bytes | pa.Buffer) -> str:
    """What commit markers record of a stream's bytes (sha256, hex)."""
    return hashlib.sha256(data).hexdigest()
