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

import numpy as np
import torch
from torch import Tensor

from deyo.feed import Feed, InTurn
from deyo.once import FirstNeeds, Predicted
from deyo.types import ConfigError, Method, StepRecord, StepReport, Stream

MayBeAhead = Callable[[bool], bool]


def adapt(
    method: Method,
    streams: Stream | Sequence[Stream],
    *,
    start_step: int = 0,
    block: int = 64,
    may_be_ahead: MayBeAhead = lambda _: False,
) -> Iterator[StepRecord]:
    """Run ``method`` over one stream a run, yielding a record for each step, in order.

    All streams have the same length and batch size (ConfigError otherwise). ``start_step`` continues in the
    middle (load the method's state of that step first); ``block`` steps are reported at a time. ``may_be_ahead`` is
    asked before a block is handed out, with whether it makes sense: true lets the next block's steps be queued on the
    device before this one's records are read. Only where it said false is the method where the block's last record is.

    A method that is ``order_free`` predicts images that several runs visit once for all of them.
    """
    group = [streams] if isinstance(streams, Stream) else list(streams)
    _check(group)
    if start_step >= len(group[0]):
        return
    way = _once if is_order_free(method) else _in_turn
    yield from way(method, group, start_step, block, may_be_ahead)


def is_order_free(method: Method) -> bool:
    """Whether the method's class itself says so: what is built on such a class may well look at its batch."""
    return "order_free" in vars(type(method)) and bool(method.order_free)


def _in_turn(
    method: Method, streams: Sequence[Stream], start_step: int, block: int, may_be_ahead: MayBeAhead
) -> Iterator[StepRecord]:
    """Every run its own batches."""
    resets = {position // streams[0].batch_size for position in streams[0].reset_at}
    feed = Feed(InTurn(streams), method.context.device)
    steps = range(start_step, len(streams[0]))
    for done in _blocks(method, feed, steps, resets, block, may_be_ahead):
        yield from _records(streams, done.reports())


def _once(
    method: Method, streams: Sequence[Stream], start_step: int, block: int, may_be_ahead: MayBeAhead
) -> Iterator[StepRecord]:
    """Every image once; the runs' batches are put together from what is known of their images."""
    plan = FirstNeeds(streams, start_step)
    predicted, step = Predicted(plan, streams), start_step
    feed = Feed(plan, method.context.device)
    for done in _blocks(method, feed, range(len(plan)), set(), block, may_be_ahead):
        for batch, report in done.reports():
            predicted.add(batch, report)
        ready = range(step, plan.done_with(done.steps[-1] + 1))
        for start in ready[::block]:  # the last images make a great many steps ready at once
            yield from _records(streams, predicted.reports(ready[start - step :][:block]))
        step = ready.stop


def _blocks(
    method: Method, feed: Feed, steps: range, resets: set[int], block: int, may_be_ahead: MayBeAhead
) -> Iterator[_Block]:
    """Let the method step, and hand out the reports of ``block`` steps at a time."""
    pending: list[tuple[int, dict[str, Tensor]]] = []
    behind: _Block | None = None
    try:
        for step in steps:
            if step in resets:
                method.reset()
            method.step(feed.pixels(step))
            pending.append((step, _copied(method.report)))
            if len(pending) < block:
                continue
            latest, pending = _Block(pending, feed.device), []
            if behind is not None:
                yield behind
            behind = latest
            if not may_be_ahead(not feed.host):
                yield behind
                behind = None
        latest = _Block(pending, feed.device) if pending else None
        if behind is not None:
            yield behind
        if latest is not None:
            may_be_ahead(False)
            yield latest
    finally:
        feed.close()


def _records(streams: Sequence[Stream], reports: Sequence[tuple[int, dict[str, np.ndarray]]]) -> Iterator[StepRecord]:
    """Records of consecutive steps, of what was reported and of the images' own columns."""
    if not reports:
        return
    batch, first = streams[0].batch_size, reports[0][0]
    columns = _columns(streams, first * batch, (reports[-1][0] + 1) * batch)
    for step, report in reports:
        own = slice((step - first) * batch, (step - first + 1) * batch)
        yield StepRecord(step=step, **{name: values[:, own] for name, values in columns.items()}, **report)


def _columns(streams: Sequence[Stream], start: int, stop: int) -> dict[str, np.ndarray]:
    """index, label, group, domain: int64 [R, n] of the streams' positions from ``start`` to ``stop``."""
    rows = [(stream.images, stream.order[start:stop]) for stream in streams]
    return {
        "index": np.stack([index for _, index in rows]),
        "label": np.stack([images.labels[index] for images, index in rows]),
        "group": np.stack([_or_missing(images.groups, index) for images, index in rows]),
        "domain": np.stack([_or_missing(images.domains, index) for images, index in rows]),
    }


def _check(streams: Sequence[Stream]) -> None:
    shapes = {(len(s.order), s.batch_size, s.reset_at) for s in streams}
    if len(shapes) != 1:
        raise ConfigError(f"streams side by side must have one length, batch size and reset rule; got {sorted(shapes)}")


def _copied(report: StepReport) -> dict[str, Tensor]:
    """The report's tensors, out of reach of the next step (a captured one writes into the same memory)."""
    return {f.name: getattr(report, f.name).detach().clone() for f in dataclasses.fields(report)}


class _Block:
    """Steps whose reports are on their way to the host, in one transfer for each field and shape."""

    def __init__(self, reports: Sequence[tuple[int, dict[str, Tensor]]], device: torch.device) -> None:
        self.steps = [step for step, _ in reports]
        self.fields = {name: _sent([report[name] for _, report in reports]) for name in reports[0][1]}
        self.arrived: torch.cuda.Event | None = None
        if device.type == "cuda":
            with torch.cuda.device(device):
                self.arrived = torch.cuda.Event(blocking=True)  # who waits leaves the core to others
                self.arrived.record()

    def reports(self) -> list[tuple[int, dict[str, np.ndarray]]]:
        """Each step with the fields of its report; waits for the device to have done these steps."""
        if self.arrived is not None:
            self.arrived.synchronize()
        host = {name: [row for tensor in sent for row in tensor.numpy().copy()] for name, sent in self.fields.items()}
        return [(step, {name: values[k] for name, values in host.items()}) for k, step in enumerate(self.steps)]


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
