"""How a prepared array comes to be: in chunks, by processes or threads, resumable, locked (see ``deyo.cache``)."""

from __future__ import annotations

import fcntl
import functools
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from deyo.decode_children import CHILD_IMAGES, Children

CHUNK = 128  # images that one process or thread reads at a time
_FLUSH_SECONDS = 2.0
_AHEAD_NICE = 5  # a third of the processor's time, where somebody else wants it

Progress = Callable[[str, int, int], None]
"""Called with the recipe's name, images done, images in all; a negative count of done images says "waiting for
another process that builds this"."""

Bad = dict[int, str]
"""Unreadable images: their index, and why."""


class NotAheadError(Exception):
    """An array that nobody waits for is not made now; whoever needs it makes it then."""


class Readable(Protocol):
    """What a build needs of a ``deyo.cache.Source``.

    One that is ``portable`` (false where it does not say) also has ``part(indices)``: what can be pickled, and read
    without PyTorch in another process, by its own ``read()``.
    """

    shape: tuple[int, int, int, int]

    def read(self, indices: np.ndarray) -> tuple[np.ndarray, dict[int, str]]: ...


@contextmanager
def locked(path: Path, waiting: Callable[[], Any] | None = None) -> Iterator[None]:
    """Hold an exclusive lock between the processes of this host; ``waiting`` is called once if it is taken."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is not None:
                waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def fill(
    name: str,
    source: Readable,
    partial: Path,
    *,
    refuse: Callable[[Bad], None] | None,
    workers: int,
    progress: Progress | None,
    ahead: bool = False,
) -> Bad:
    """Read what is missing of ``partial``'s ``pixels.npy``; returns the unreadable images.

    ``refuse`` is called with those found, and raises; None goes on without them. ``progress`` is called every couple
    of seconds, and may raise to end it. ``ahead``: nobody waits for it; child processes decode, if there are any, and
    let others go first.
    """
    count = source.shape[0]
    chunks = -(-count // CHUNK)
    file, marks = partial / "pixels.npy", partial / "done.bin"
    if not (file.is_file() and marks.is_file() and marks.stat().st_size == chunks):
        np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=source.shape).flush()
        marks.write_bytes(bytes(chunks))
        (partial / "bad.jsonl").unlink(missing_ok=True)
    pixels = np.lib.format.open_memmap(file, mode="r+")
    done = np.memmap(marks, dtype=np.uint8, mode="r+", shape=(chunks,))
    bad = _read_bad(partial / "bad.jsonl")
    with closing(_read_chunks(source, file, pixels, np.flatnonzero(done == 0), workers, ahead)) as finished:
        for chunk_list, unreadable in finished:
            if unreadable and refuse is not None:
                refuse(unreadable)
            pixels.flush()
            with (partial / "bad.jsonl").open("a") as log:
                log.writelines(json.dumps(item) + "\n" for item in unreadable.items())
            bad |= unreadable
            done[chunk_list] = 1
            done.flush()
            if progress is not None:
                progress(name, min(int(done.sum()) * CHUNK, count), count)
    return bad


def _read_bad(path: Path) -> Bad:
    if not path.is_file():
        return {}
    return dict(map(json.loads, path.read_text().splitlines()))


def _read_chunks(
    source: Readable, file: Path, pixels: np.ndarray, chunks: np.ndarray, workers: int, ahead: bool
) -> Iterator[tuple[list[int], Bad]]:
    """Read ``chunks`` of ``source`` into ``pixels``, the array of ``file``; yields finished ones with what was
    unreadable. Children decode what is portable, where there is enough for two of them, or ``ahead``."""
    if not getattr(source, "portable", False):
        with _torch_on_one_core() as one_core:
            yield from _finished_chunks(lambda chunk: _read_chunk(source, pixels, chunk), chunks, workers, one_core)
        return
    count = min(workers, len(chunks) * CHUNK // CHILD_IMAGES)
    with Children(file, nice=_AHEAD_NICE if ahead else 0) if count > 1 or ahead else nullcontext() as children:
        read = functools.partial(_read_chunk, source, pixels, children=children, ahead=ahead)
        yield from _finished_chunks(read, chunks, count if children else workers)


def _read_chunk(
    source: Readable, pixels: np.ndarray, chunk: int, children: Children | None = None, ahead: bool = False
) -> tuple[int, Bad]:
    """``ahead``: nobody waits for it. Raises NotAheadError where no child reads it."""
    left = np.arange(chunk * CHUNK, min((chunk + 1) * CHUNK, len(pixels)))
    unread = children.read(source.part(left), int(left[0])) if children else None  # type: ignore[attr-defined]
    if unread is None and ahead:
        raise NotAheadError("no child reads it")
    if unread is not None:
        left = left[unread]  # once more in this process: its word is the one that counts
    if not len(left):
        return chunk, {}
    images, unreadable = source.read(left)
    pixels[slice(left[0], left[-1] + 1) if unread is None else left] = images
    return chunk, {int(left[position]): reason for position, reason in unreadable.items()}


@contextmanager
def _torch_on_one_core() -> Iterator[Callable[[], None]]:
    """What to call in each thread that reads, so that it keeps PyTorch to itself: the parallelism is over chunks."""
    threads = torch.get_num_threads()
    try:
        yield functools.partial(torch.set_num_threads, 1)
    finally:
        torch.set_num_threads(threads)


def _finished_chunks(
    read: Callable[[int], tuple[int, Bad]], chunks: np.ndarray, workers: int, begin: Callable[[], None] | None = None
) -> Iterator[tuple[list[int], Bad]]:
    """Run ``read`` over ``chunks`` in threads, which ``begin`` with that; yields finished ones together, every couple
    of seconds."""
    threads = max(1, min(workers, len(chunks)))
    pool = ThreadPoolExecutor(threads, initializer=begin)
    queue = map(int, chunks)  # handed out bit by bit: Python does not end before all that was
    pending: set[Future[tuple[int, Bad]]] = {pool.submit(read, chunk) for chunk in islice(queue, 2 * threads)}
    try:
        while pending:
            ready: list[int] = []
            unreadable: Bad = {}
            deadline = time.monotonic() + _FLUSH_SECONDS
            while pending and (left := deadline - time.monotonic()) > 0:
                finished, pending = wait(pending, timeout=left, return_when=FIRST_COMPLETED)
                pending |= {pool.submit(read, chunk) for chunk in islice(queue, len(finished))}
                for future in finished:
                    chunk, reasons = future.result()
                    ready.append(chunk)
                    unreadable |= reasons
            yield ready, unreadable
    finally:
        pool.shutdown(cancel_futures=True)


def drop_rows(file: Path, kept: np.ndarray) -> None:
    """Rewrite ``file`` with the rows ``kept`` alone."""
    pixels = np.load(file, mmap_mode="r")
    smaller = file.with_name("kept.npy")
    target = np.lib.format.open_memmap(smaller, mode="w+", dtype=np.uint8, shape=(len(kept), *pixels.shape[1:]))
    for start in range(0, len(kept), CHUNK):
        target[start : start + CHUNK] = pixels[kept[start : start + CHUNK]]
    target.flush()
    smaller.replace(file)
