"""The store's file operations on a local (or shared) file system."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import socket
from collections.abc import Iterator

import pyarrow as pa

from orchestrator.store.errors import store_error
from orchestrator.store.layout import TEMPORARY
from orchestrator.store.tree import Entry

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_counter = itertools.count()


class LocalTree:
    """A folder. Files are written under ``tmp/``, synced, then linked or renamed to their final name."""

    rewritable = True

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)

    def _full(self, path: str) -> str:
        return os.path.join(self.root, path)

    def read(self, path: str) -> bytes:
        with open(self._full(path), "rb") as file:
            return file.read()

    def create(self, path: str, data: bytes) -> bool:
        with self._errors(path):
            temporary = self._write_temporary(data, durable=True)
            try:
                return self._link(temporary, path, data)
            finally:
                os.unlink(temporary)

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        with self._errors(path):
            self._move(self._write_temporary(data, durable=durable), path, durable=durable)

    def append(self, path: str, offset: int, data: bytes, *, durable: bool = False) -> None:
        full = self._full(path)
        with self._errors(path):
            if offset == 0:
                self._make_folder(os.path.dirname(full), durable=False)
            descriptor = os.open(full, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                os.lseek(descriptor, offset, os.SEEK_SET)
                _write_all(descriptor, data)
                if durable:
                    os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, offset)  # a torn tail would make the stream unreadable from here on
                raise
            finally:
                os.close(descriptor)
            if durable:
                self._sync_folders(os.path.dirname(full))

    def read_stream(self, path: str) -> pa.Buffer:
        return pa.py_buffer(self.read(path))

    def exists(self, path: str) -> bool:
        return os.path.isfile(self._full(path))

    def stream_size(self, path: str) -> int:
        try:
            return os.stat(self._full(path)).st_size
        except FileNotFoundError:
            return -1

    def open(self, path: str) -> pa.NativeFile:
        return pa.OSFile(self._full(path), "rb")  # no memory map: a file cut short must be an error, not SIGBUS

    @contextlib.contextmanager
    def writer(self, path: str) -> Iterator[pa.NativeFile]:
        with self._errors(path):
            temporary = self._temporary()
            try:
                with pa.OSFile(temporary, "wb") as sink:
                    yield sink
                _sync_file(temporary)
                self._move(temporary, path, durable=True)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
                raise

    def children(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self._full(folder)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def names(self, folder: str) -> Iterator[str]:
        for base, folders, names in os.walk(self._full(folder)):
            folders.sort()
            inside = os.path.relpath(base, self.root).replace(os.sep, "/")
            yield from (f"{inside}/{name}" for name in sorted(names))

    def files(self, folder: str) -> Iterator[Entry]:
        for base, folders, names in os.walk(self._full(folder)):
            folders.sort()
            for name in sorted(names):
                full = os.path.join(base, name)
                with contextlib.suppress(FileNotFoundError):
                    yield Entry(os.path.relpath(full, self.root).replace(os.sep, "/"), os.lstat(full).st_size)

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._full(path))

    @contextlib.contextmanager
    def lock(self, path: str) -> Iterator[bool]:
        full = self._full(path)
        with self._errors(path):
            self._make_folder(os.path.dirname(full))
            descriptor = os.open(full, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            yield _try_lock(descriptor)
        finally:
            os.close(descriptor)  # the lock goes with it, also when the process is killed

    def remove_dead_temporaries(self) -> None:
        """Drop what writers of this host that are no longer alive left half-written."""
        for name in self.children(TEMPORARY):
            if left_by_dead_writer(name):
                self.delete(f"{TEMPORARY}/{name}")

    def _temporary(self) -> str:
        folder = self._full(TEMPORARY)
        self._make_folder(folder)
        return os.path.join(folder, f"{socket.gethostname()}~{os.getpid()}~{next(_counter)}")

    def _write_temporary(self, data: bytes, *, durable: bool) -> str:
        temporary = self._temporary()
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            _write_all(descriptor, data)
            if durable:
                os.fsync(descriptor)
        except BaseException:
            os.close(descriptor)
            os.unlink(temporary)
            raise
        os.close(descriptor)
        return temporary

    def _link(self, temporary: str, path: str, data: bytes) -> bool:
        """Create-only: of several writers exactly one wins, and the name never shows a torn file."""
        full = self._full(path)
        self._make_folder(os.path.dirname(full))
        try:
            os.link(temporary, full)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return self._create_exclusively(full, data)
        _sync_folder(os.path.dirname(full))
        return True

    def _create_exclusively(self, full: str, data: bytes) -> bool:
        """For file systems without hard links: still create-only; readers skip a marker cut short by a crash."""
        try:
            descriptor = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        _sync_folder(os.path.dirname(full))
        return True

    def _move(self, temporary: str, path: str, *, durable: bool) -> None:
        full = self._full(path)
        self._make_folder(os.path.dirname(full), durable=durable)
        os.replace(temporary, full)
        if durable:
            _sync_folder(os.path.dirname(full))

    def _make_folder(self, folder: str, *, durable: bool = True) -> None:
        """``folder`` with its parents; if ``durable``, each new name is synced in its parent."""
        if os.path.isdir(folder):
            return
        parent = os.path.dirname(folder)
        if len(parent) < len(folder):
            self._make_folder(parent, durable=durable)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
            if durable:
                _sync_folder(parent)

    def _sync_folders(self, folder: str) -> None:
        """``folder`` and its parents up to the root, any of which may have been made without a sync."""
        while len(folder) >= len(self.root):
            _sync_folder(folder)
            folder = os.path.dirname(folder)

    @contextlib.contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise store_error(error, path, self.root) from error


def left_by_dead_writer(name: str) -> bool | None:
    """Whether the process that wrote ``tmp/<name>`` is gone; None if that cannot be known (another host)."""
    owner, _, rest = name.rpartition("~")[0].rpartition("~")
    if not rest.isdigit():
        return True  # not a name of ours
    return not _alive(int(rest)) if owner == socket.gethostname() else None


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_file(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(path: str) -> None:
    """Make new names in the folder survive a power cut; some file systems refuse, and need no help."""
    with contextlib.suppress(PermissionError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # no locks on this file system: one driver a sweep is then the user's promise
    return True


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
