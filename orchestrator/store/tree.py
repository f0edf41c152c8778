"""The few file operations that the store rests on, for a local folder and for an object store.

Every path is relative to the tree's root. ``create`` and ``replace`` are all or nothing; ``append`` extends a
stream that one writer owns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from orchestrator.store.errors import StoreError


@dataclass(frozen=True)
class Entry:
    """A file: path relative to the tree's root, size in bytes."""

    path: str
    size: int


class Tree(Protocol):
    """File operations under one root.

    ``rewritable`` says whether a file may be replaced under readers that have it open (true on a local disk:
    they keep the old one; false on object stores, where a reader would meet both).
    """

    root: str
    rewritable: bool

    def read(self, path: str) -> bytes:
        """The whole file. Raises ``FileNotFoundError``."""

    def create(self, path: str, data: bytes) -> bool:
        """A durable file that did not exist before; False, and no change, if it did."""

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """The file as a whole, atomically."""

    def append(self, path: str, offset: int, data: bytes, *, durable: bool = False) -> None:
        """Bytes at the end of a stream that holds ``offset`` bytes; on an error it keeps those."""

    def read_stream(self, path: str) -> pa.Buffer:
        """All of an appended stream. Raises ``FileNotFoundError``."""

    def exists(self, path: str) -> bool:
        """Whether there is a file at ``path``."""

    def stream_size(self, path: str) -> int:
        """Bytes that ``read_stream`` would give; -1 if there is no such stream."""

    def open(self, path: str) -> pa.NativeFile:
        """For random reads; on a local disk pinned to what the file is now. Raises ``FileNotFoundError``."""

    def writer(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        """A sink whose bytes become the file at ``path``, atomically and durably, when the block ends well."""

    def children(self, folder: str) -> list[str]:
        """Names of files and folders right in ``folder``; empty if there is no such folder."""

    def names(self, folder: str) -> Iterator[str]:
        """The path of every file below ``folder``, in order; cheaper than ``files``."""

    def files(self, folder: str) -> Iterator[Entry]:
        """Every file below ``folder``."""

    def delete(self, path: str) -> None:
        """A file or appended stream; no error if it is gone already."""

    def lock(self, path: str) -> AbstractContextManager[bool]:
        """Yields whether the lock was free (and is held until the block ends). Never waits."""


def open_tree(root: str) -> Tree:
    """The tree at ``root``: a path, or a URI that pyarrow's file systems know (``s3://``, ``gs://``).

    Raises:
        StoreError: the URI is not one that pyarrow can open.
    """
    from orchestrator.store.local_tree import LocalTree
    from orchestrator.store.object_tree import ObjectTree

    if "://" not in root:
        return LocalTree(root)
    if root.startswith("file://"):
        return LocalTree(root.removeprefix("file://"))
    user, at, _ = urlsplit(root).netloc.rpartition("@")
    if at and user != "anonymous":  # gs://anonymous@bucket reads a public one
        raise StoreError("results root: keys in a URI end up in logs; give them in the environment (AWS_…, GOOGLE_…)")
    try:
        filesystem, base = _from_uri(root)
    except (pa.ArrowInvalid, OSError, ValueError) as error:
        raise StoreError(
            f"results root {root!r} cannot be opened: {error}. Use a path, s3://bucket/prefix or gs://bucket/prefix"
        ) from error
    return ObjectTree(filesystem, base, root)


def _from_uri(root: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a URI; on S3 small objects are written in one request instead of three (multipart)."""
    if root.startswith("s3://"):
        with contextlib.suppress(pa.ArrowInvalid):  # pyarrow before 18 does not know the option
            return pafs.FileSystem.from_uri(f"{root}{'&' if '?' in root else '?'}allow_delayed_open=true")
    return pafs.FileSystem.from_uri(root)


def join(root: str, *names: str) -> str:
    """``names`` below ``root``, which is a path or a URI (whose ``?options`` stay at its end)."""
    if "://" not in root:
        return "/".join([root.rstrip("/"), *names])
    path, mark, options = root.partition("?")
    return "/".join([path.rstrip("/"), *names]) + mark + options
