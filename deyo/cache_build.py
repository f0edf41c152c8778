"""How a prepared array comes to be: in chunks, by threads, resumable, under a lock (see ``deyo.cache``)."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

CHUNK = 128  # images that one thread reads at a time
_FLUSH_SECONDS = 2.0

Progress = Callable[[str, int, int], None]
"""Called with the recipe's name, images done, images in all; a negative count of done images says "waiting for
another process that builds this"."""

Bad = dict[int, str]
"""Unreadable images: their index, and why."""


class Readable(Protocol):
    """What a build needs of a ``deyo.cache.Source``."""

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
) -> Bad:
    """Read what is missing of ``partial``'s ``pixels.npy``; returns the unreadable images.

    ``refuse`` is called with those found, and raises; None goes on without them.
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

    def read(chunk: int) -> tuple[int, Bad]:
        indices = np.arange(chunk * CHUNK, min((chunk + 1) * CHUNK, count))
        images, unreadable = source.read(indices)
        pixels[indices[0] : indices[-1] + 1] = images
        return chunk, {int(indices[position]): reason for position, reason in unreadable.items()}

    for chunk_list, unreadable in _finished_chunks(read, np.flatnonzero(done == 0), workers):
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


def _finished_chunks(
    read: Callable[[int], tuple[int, Bad]], chunks: np.ndarray, workers: int
) -> Iterator[tuple[list[int], Bad]]:
    """Run ``read`` over ``chunks`` in threads; yields finished ones together, every couple of seconds.

    Each thread keeps PyTorch to itself on one core, for the parallelism is over chunks.
    """
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(max(1, min(workers, len(chunks))), initializer=torch.set_num_threads, initargs=(1,))
    pending: set[Future[tuple[int, Bad]]] = {pool.submit(read, int(c)) for c in chunks}
    try:
        while pending:
            ready: list[int] = []
            unreadable: Bad = {}
            deadline = time.monotonic() + _FLUSH_SECONDS
            while pending and time.monotonic() < deadline:
                finished, pending = wait(pending, timeout=_FLUSH_SECONDS, return_when=FIRST_COMPLETED)
                for future in finished:
                    chunk, reasons = future.result()
                    ready.append(chunk)
                    unreadable |= reasons
            yield ready, unreadable
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)


def drop_rows(file: Path, kept: np.ndarray) -> None:
    """Rewrite ``file`` with the rows ``kept`` alone."""
    pixels = np.load(file, mmap_mode="r")
    smaller = file.with_name("kept.npy")
    target = np.lib.format.open_memmap(smaller, mode="w+", dtype=np.uint8, shape=(len(kept), *pixels.shape[1:]))
    for start in range(0, len(kept), CHUNK):
        target[start : start + CHUNK] = pixels[kept[start : start + CHUNK]]
    target.flush()
    smaller.replace(file)
