"""Batches of images on their way to the device: gathered there where they are resident, else sent from the host."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from deyo.arriving import Arriving
from deyo.types import ImageSet, Stream


class Stretch(NamedTuple):
    """Images of one batch that are of one set: ``rows[start:stop]`` are their indices into ``sets[source]``."""

    source: int
    start: int
    stop: int


class Plan(Protocol):
    """Which images each batch of R runs has, run after run: batch k is its ``stretches(k)`` end to end.

    ``rows`` is int64, of all batches; ``len()`` is their number.
    """

    sets: Sequence[ImageSet]
    runs: int
    rows: np.ndarray

    def __len__(self) -> int: ...

    def stretches(self, step: int) -> list[Stretch]: ...


def distinct(streams: Sequence[Stream]) -> tuple[list[ImageSet], list[int]]:
    """The image sets of ``streams``, each once, and which of them each stream has."""
    sets: list[ImageSet] = []
    numbers: dict[int, int] = {}
    for stream in streams:
        if id(stream.images.pixels) not in numbers:
            numbers[id(stream.images.pixels)] = len(sets)
            sets.append(stream.images)
    return sets, [numbers[id(stream.images.pixels)] for stream in streams]


class InTurn:
    """Each run's own stream, batch after batch; the last batch may be short."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self.streams, self.runs = streams, len(streams)
        self.sets, self.sources = distinct(streams)
        batch, orders = streams[0].batch_size, np.stack([stream.order for stream in streams])
        whole = orders.shape[1] // batch * batch
        batches = orders[:, :whole].reshape(self.runs, -1, batch).swapaxes(0, 1)
        self.rows = np.concatenate([batches.ravel(), orders[:, whole:].ravel()])

    def __len__(self) -> int:
        return len(self.streams[0])

    def stretches(self, step: int) -> list[Stretch]:
        batch, images = self.streams[0].batch_size, len(self.streams[0].order)
        start, size = step * batch * self.runs, min(batch, images - step * batch)
        found: list[Stretch] = []
        for run, source in enumerate(self.sources):
            own = Stretch(source, start + run * size, start + (run + 1) * size)
            if found and found[-1].source == source:
                own = Stretch(source, found.pop().start, own.stop)
            found.append(own)
        return found


class Feed:
    """The batches of a plan as pixels on ``device``.

    Images that are resident there are gathered there; others (and those on their way) are gathered on the host, for a
    GPU one batch ahead in a thread of its own, into pinned memory. ``host`` numbers the sets that are not there.
    """

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.plan, self.device = plan, device
        self.rows: Tensor | None = None
        self.arriving = any(isinstance(images.pixels, Arriving) for images in plan.sets)
        self._look_for_residents()
        self.ahead: tuple[int, set[int], Future[Tensor]] | None = None
        self.thread = ThreadPoolExecutor(1) if device.type == "cuda" and self.host else None

    def pixels(self, step: int) -> Tensor:
        """uint8 [R, B, 3, H, W] (channels last in memory)."""
        if self.host and self.arriving:
            self._look_for_residents()
        flat = self._batch(step)
        return flat.view(self.plan.runs, -1, *flat.shape[1:]).permute(0, 1, 4, 2, 3)

    def close(self) -> None:
        if self.thread is not None:
            self.thread.shutdown(cancel_futures=True)

    def _look_for_residents(self) -> None:
        self.there = [_on_device(images.pixels) for images in self.plan.sets]
        self.host = {source for source, pixels in enumerate(self.there) if pixels is None}
        if self.rows is None and len(self.host) < len(self.there):
            self.rows = torch.from_numpy(self.plan.rows).to(self.device)

    def _batch(self, step: int) -> Tensor:
        """uint8 [R · B, H, W, 3]."""
        stretches = self.plan.stretches(step)
        sent_of, sent = self._from_host(step) if self.host else (set(), None)
        parts, taken = [], 0
        for source, start, stop in stretches:
            if source in sent_of:
                assert sent is not None
                parts.append(sent[taken : taken + stop - start])
                taken += stop - start
            else:
                pixels = self.there[source]
                assert pixels is not None
                assert self.rows is not None
                parts.append(pixels[self.rows[start:stop]])
        if sent is not None and taken == sum(stop - start for _, start, stop in stretches):
            return sent
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _from_host(self, step: int) -> tuple[set[int], Tensor]:
        """Sets, among them all that are not on the device, and their images of this batch, sent there."""
        if self.thread is None:
            return self.host, self._gather(step, self.host).to(self.device)
        if self.ahead is not None and self.ahead[0] == step:
            sources, ready = self.ahead[1], self.ahead[2].result()
        else:
            sources, ready = self.host, self._gather(step, self.host)
        self.ahead = None
        if step + 1 < len(self.plan):
            self.ahead = (step + 1, self.host, self.thread.submit(self._gather, step + 1, self.host))
        return sources, ready.to(self.device, non_blocking=True)

    def _gather(self, step: int, sources: Collection[int]) -> Tensor:
        """uint8 [n, H, W, 3] on the host, pinned for a GPU: those of the batch's n images that are of ``sources``."""
        shape = self.plan.sets[0].pixels.shape[1:]
        parts = [
            np.ascontiguousarray(self.plan.sets[source].pixels[self.plan.rows[start:stop]])
            for source, start, stop in self.plan.stretches(step)
            if source in sources
        ]
        if not parts:
            return torch.empty((0, *shape), dtype=torch.uint8)
        batch = torch.from_numpy(np.concatenate(parts) if len(parts) > 1 else parts[0])
        return batch.pin_memory() if self.thread is not None else batch


def _on_device(pixels: object) -> Tensor | None:
    """The pixels as a tensor, where they are one or have become one."""
    if isinstance(pixels, Arriving):
        return pixels.resident
    return pixels if isinstance(pixels, Tensor) else None
