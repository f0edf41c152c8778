"""The store's file operations on an object store, through pyarrow's file systems (``s3://``, ``gs://``).

A PUT is atomic, so nothing needs a temporary name. pyarrow offers no conditional PUT: ``create`` looks first and
then writes, which is exact while a sweep has one driver (the design), and not between two drivers that commit
the same run in the same instant. Objects cannot be appended to: a stream is a sequence of objects whose names
end in the offset of their first byte.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.fs as pafs

from orchestrator.store.errors import store_error
from orchestrator.store.tree import Entry

_ABSENT = pafs.FileType.NotFound


class ObjectTree:
    """Objects below ``base`` in ``filesystem``; ``root`` is the URI to show."""

    rewritable = False

    def __init__(self, filesystem: pafs.FileSystem, base: str, root: str) -> None:
        self._fs = filesystem
        self._base = base.rstrip("/")
        self.root = root

    def _full(self, path: str) -> str:
        return f"{self._base}/{path}" if path else self._base

    def read(self, path: str) -> bytes:
        with self._fs.open_input_file(self._full(path)) as file:
            return file.read()

    def create(self, path: str, data: bytes) -> bool:
        if self._fs.get_file_info(self._full(path)).type != _ABSENT:
            return False
        self.replace(path, data)
        return True

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        with self._errors(path), self._sink(path) as sink:
            sink.write(data)

    def append(self, path: str, offset: int, data: bytes, *, durable: bool = False) -> None:
        if data:
            self.replace(f"{path}.{offset:012d}", data)

    def read_stream(self, path: str) -> pa.Buffer:
        pieces = self._pieces(path)
        if not pieces:
            raise FileNotFoundError(path)
        data = bytearray()
        for offset, piece in pieces:
            if offset != len(data):
                break  # left from an attempt to write that failed, or a piece is missing: the rest has no start
            data += self.read(piece)
        return pa.py_buffer(bytes(data))

    def exists(self, path: str) -> bool:
        return self._fs.get_file_info(self._full(path)).type == pafs.FileType.File

    def stream_size(self, path: str) -> int:
        pieces = self._pieces(path)
        if not pieces:
            return -1
        offset, last = pieces[-1]
        return offset + self._fs.get_file_info(self._full(last)).size

    def open(self, path: str) -> pa.NativeFile:
        return self._fs.open_input_file(self._full(path))

    @contextlib.contextmanager
    def writer(self, path: str) -> Iterator[pa.NativeFile]:
        # Whole in memory first (parts are bounded): leaving a multipart upload half-way would publish it.
        sink = pa.BufferOutputStream()
        yield sink
        self.replace(path, sink.getvalue())

    def children(self, folder: str) -> list[str]:
        """On Google's store all below is listed: there pyarrow shows a folder in a folder only if someone made an
        object for it.
        """
        whole = isinstance(self._fs, _GCS)
        selector = pafs.FileSelector(self._full(folder), allow_not_found=True, recursive=whole)
        start = len(self._full(folder).rstrip("/")) + 1
        return sorted({info.path[start:].partition("/")[0] for info in self._fs.get_file_info(selector)} - {""})

    def names(self, folder: str) -> Iterator[str]:
        return (entry.path for entry in self.files(folder))

    def files(self, folder: str) -> Iterator[Entry]:
        selector = pafs.FileSelector(self._full(folder), allow_not_found=True, recursive=True)
        for info in sorted(self._fs.get_file_info(selector), key=lambda i: i.path):
            if info.type == pafs.FileType.File:
                yield Entry(info.path[len(self._base) + 1 :], info.size)

    def delete(self, path: str) -> None:
        for name in [path, *(piece for _, piece in self._pieces(path))]:
            with contextlib.suppress(FileNotFoundError):
                self._fs.delete_file(self._full(name))

    @contextlib.contextmanager
    def lock(self, path: str) -> Iterator[bool]:
        yield True  # no locks in object stores; one driver a sweep, and nothing is ever rewritten or deleted

    def _pieces(self, path: str) -> list[tuple[int, str]]:
        folder, _, name = path.rpartition("/")
        pieces = []
        for child in self.children(folder):
            stem, _, offset = child.rpartition(".")
            if stem == name and len(offset) == 12 and offset.isdigit():
                pieces.append((int(offset), f"{folder}/{child}"))
        return sorted(pieces)

    def _sink(self, path: str) -> pa.NativeFile:
        full = self._full(path)
        if self._needs_folders():
            self._fs.create_dir(full.rpartition("/")[0], recursive=True)
        return self._fs.open_output_stream(full)

    def _needs_folders(self) -> bool:
        return not isinstance(self._fs, _FLAT)

    @contextlib.contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise store_error(error, path, self.root) from error


_S3, _GCS = (
    tuple(filter(None, [getattr(pafs, name, None)])) for name in ("S3FileSystem", "GcsFileSystem")
)  # a build of pyarrow may lack either
_FLAT = _S3 + _GCS
