"""The adaptation loop: streams in, records out.

>>> for record in adapt(method, stream):
...     print(record.step, record.correct.mean())

Pixels are gathered by index and moved to the device as uint8; what steps report stays on the device and comes
to the host a block of steps at a time, so that reporting does not stop the device at every step. Where the method may
be ahead of the records, the device does not even wait for who reads a block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from deyo.arriving import Arriving
from deyo.types import ConfigError, Method, StepRecord, StepReport, Stream


def adapt(
    method: Method,
    streams: Stream | Sequence[Stream],
    *,
    start_step: int = 0,
    block: int = 64,
    may_be_ahead: Callable[[bool], bool] = lambda _: False,
) -> Iterator[StepRecord]:
    """Run ``method`` over one stream a run, yielding a record for each step, in order.

    All streams have the same length and batch size (ConfigError otherwise). ``start_step`` continues in the
    middle (load the method's state of that step first); ``block`` steps are reported at a time. ``may_be_ahead`` is
    asked before a block is handed out, with whether it makes sense: true lets the next block's steps be queued on the
    device before this one's records are read. Only where it said false is the method where the block's last record is.
    """
    group = [streams] if isinstance(streams, Stream) else list(streams)
    _check(group)
    feed = _Feed(group, method.context.device)
    pending: list[tuple[int, dict[str, Tensor]]] = []
    behind: _Block | None = None
    try:
        for step in range(start_step, len(group[0])):
            if step * group[0].batch_size in group[0].reset_at:
                method.reset()
            method.step(feed.pixels(step))
            pending.append((step, _copied(method.report)))
            if len(pending) < block:
                continue
            latest, pending = _Block(pending, feed), []
            if behind is not None:
                yield from behind.records()
            behind = latest
            if not may_be_ahead(not feed.host):
                yield from behind.records()
                behind = None
        latest = _Block(pending, feed) if pending else None
        if behind is not None:
            yield from behind.records()
        if latest is not None:
            may_be_ahead(False)
            yield from latest.records()
    finally:
        feed.close()


class _Feed:
    """Batches of R streams as device tensors, and their indices and labels as arrays.

    Images that are resident on the device are gathered there; others (and those on their way) are gathered on the
    host, for a GPU one batch ahead in a thread of its own, into pinned memory.
    """

    def __init__(self, streams: Sequence[Stream], device: torch.device) -> None:
        self.streams = streams
        self.device = device
        self.batch_size = streams[0].batch_size
        self.orders: Tensor | None = None
        self.arriving = any(isinstance(s.images.pixels, Arriving) for s in streams)
        self._look_for_residents()
        self.ahead: tuple[int, list[int], Future[Tensor]] | None = None
        self.thread = ThreadPoolExecutor(1) if device.type == "cuda" and self.host else None

    def pixels(self, step: int) -> Tensor:
        """uint8 [R, B, 3, H, W] (channels last in memory)."""
        if self.host and self.arriving:
            self._look_for_residents()
        return self._batch(step).permute(0, 1, 4, 2, 3)

    def indices(self, stream: Stream, step: int) -> np.ndarray:
        return stream.order[step * self.batch_size : (step + 1) * self.batch_size]

    def columns(self, step: int) -> dict[str, np.ndarray]:
        """index, label, group, domain: int64 [R, B]."""
        rows = [(s.images, self.indices(s, step)) for s in self.streams]
        return {
            "index": np.stack([index for _, index in rows]),
            "label": np.stack([images.labels[index] for images, index in rows]),
            "group": np.stack([_or_missing(images.groups, index) for images, index in rows]),
            "domain": np.stack([_or_missing(images.domains, index) for images, index in rows]),
        }

    def close(self) -> None:
        if self.thread is not None:
            self.thread.shutdown(cancel_futures=True)

    def _look_for_residents(self) -> None:
        """``there``: each stream's images on the device; ``host``: the streams whose images are not there."""
        self.there = [_on_device(s.images.pixels) for s in self.streams]
        self.host = [run for run, pixels in enumerate(self.there) if pixels is None]
        present = [pixels for pixels in self.there if pixels is not None]
        if present and self.orders is None:
            self.orders = torch.from_numpy(np.stack([s.order for s in self.streams])).to(present[0].device)
        self.shared = present[0] if not self.host and all(pixels is present[0] for pixels in present) else None

    def _batch(self, step: int) -> Tensor:
        """uint8 [R, B, H, W, 3]."""
        if self.orders is None:  # nothing is on the device yet
            return self._from_host(step)[1]
        indices = self.orders[:, step * self.batch_size : (step + 1) * self.batch_size]
        if self.shared is not None:
            return self.shared[indices]
        parts: dict[int, Tensor] = {}
        if self.host:
            runs, sent = self._from_host(step)
            parts = dict(zip(runs, sent))
        for run, pixels in enumerate(self.there):
            if run not in parts:
                assert pixels is not None
                parts[run] = pixels[indices[run]]
        return torch.stack([parts[run] for run in range(len(self.streams))])

    def _from_host(self, step: int) -> tuple[list[int], Tensor]:
        """Runs, among them all whose images are not on the device, and their batches, sent there."""
        if self.thread is None:
            return self.host, self._gather(step, self.host).to(self.device)
        if self.ahead is not None and self.ahead[0] == step:
            runs, ready = self.ahead[1], self.ahead[2].result()
        else:
            runs, ready = self.host, self._gather(step, self.host)
        self.ahead = None
        if (step + 1) * self.batch_size < len(self.streams[0].order):
            self.ahead = (step + 1, self.host, self.thread.submit(self._gather, step + 1, self.host))
        return runs, ready.to(self.device, non_blocking=True)

    def _gather(self, step: int, runs: Sequence[int]) -> Tensor:
        """uint8 [len(runs), B, H, W, 3] on the host, pinned for a GPU."""
        streams = [self.streams[run] for run in runs]
        parts = [np.ascontiguousarray(s.images.pixels[self.indices(s, step)]) for s in streams]
        batch = torch.from_numpy(np.stack(parts) if len(parts) > 1 else parts[0][None])
        return batch.pin_memory() if self.thread is not None else batch


def _on_device(pixels: object) -> Tensor | None:
    """The pixels as a tensor, where they are one or have become one."""
    if isinstance(pixels, Arriving):
        return pixels.resident
    return pixels if isinstance(pixels, Tensor) else None


def _check(streams: Sequence[Stream]) -> None:
    shapes = {(len(s.order), s.batch_size, s.reset_at) for s in streams}
    if len(shapes) != 1:
        raise ConfigError(f"streams side by side must have one length, batch size and reset rule; got {sorted(shapes)}")


def _copied(report: StepReport) -> dict[str, Tensor]:
    """The report's tensors, out of reach of the next step (a captured one writes into the same memory)."""
    return {f.name: getattr(report, f.name).detach().clone() for f in dataclasses.fields(report)}


class _Block:
    """Steps whose reports are on their way to the host, in one transfer for each field and shape."""

    def __init__(self, reports: Sequence[tuple[int, dict[str, Tensor]]], feed: _Feed) -> None:
        self.feed = feed
        self.steps = [step for step, _ in reports]
        self.fields = {name: _sent([report[name] for _, report in reports]) for name in reports[0][1]}
        self.arrived: torch.cuda.Event | None = None
        if feed.device.type == "cuda":
            with torch.cuda.device(feed.device):
                self.arrived = torch.cuda.Event(blocking=True)  # who waits leaves the core to others
                self.arrived.record()

    def records(self) -> Iterator[StepRecord]:
        """Waits for the device to have done these steps."""
        if self.arrived is not None:
            self.arrived.synchronize()
        host = {name: [row for tensor in sent for row in tensor.numpy().copy()] for name, sent in self.fields.items()}
        for position, step in enumerate(self.steps):
            fields = {name: values[position] for name, values in host.items()}
            yield StepRecord(step=step, **self.feed.columns(step), **fields)


def _sent(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors on the host [n, ...] that get the values of ``tensors``, as many of one shape together."""
    if any(t.shape != tensors[0].shape for t in tensors):
        return [part for tensor in tensors for part in _sent([tensor])]
    together = torch.stack(list(tensors))
    if not together.is_cuda:
        return [together]
    return [torch.empty(together.shape, dtype=together.dtype, pin_memory=True).copy_(together, non_blocking=True)]


def _or_missing(values: np.ndarray | None, index: np.ndarray) -> np.ndarray:
    return np.full(len(index), -1, dtype=np.int64) if values is None else values[index]
