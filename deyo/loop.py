"""The adaptation loop: streams in, records out.

>>> for record in adapt(method, stream):
...     print(record.step, record.correct.mean())

Pixels are gathered by index and moved to the device as uint8; what steps report stays on the device and comes
to the host a block of steps at a time, so that reporting does not stop the device at every step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from deyo.types import ConfigError, Method, StepRecord, StepReport, Stream


def adapt(
    method: Method, streams: Stream | Sequence[Stream], *, start_step: int = 0, block: int = 64
) -> Iterator[StepRecord]:
    """Run ``method`` over one stream a run, yielding a record for each step, in order.

    All streams have the same length and batch size (ConfigError otherwise). ``start_step`` continues in the
    middle (load the method's state of that step first); ``block`` steps are reported at a time.
    """
    group = [streams] if isinstance(streams, Stream) else list(streams)
    _check(group)
    feed = _Feed(group, method.context.device)
    pending: list[tuple[int, StepReport]] = []
    for step in range(start_step, len(group[0])):
        if step * group[0].batch_size in group[0].reset_at:
            method.reset()
        method.step(feed.pixels(step))
        pending.append((step, _detached(method.report)))
        if len(pending) == block:
            yield from _to_host(pending, feed)
            pending = []
    yield from _to_host(pending, feed)


class _Feed:
    """Batches of R streams as device tensors, and their indices and labels as arrays."""

    def __init__(self, streams: Sequence[Stream], device: torch.device) -> None:
        self.streams = streams
        self.device = device
        self.resident: dict[int, Tensor] = {}

    def pixels(self, step: int) -> Tensor:
        """uint8 [R, B, 3, H, W]."""
        parts = [self._gather(s, self.indices(s, step)) for s in self.streams]
        return torch.stack(parts).permute(0, 1, 4, 2, 3)

    def indices(self, stream: Stream, step: int) -> np.ndarray:
        return stream.order[step * stream.batch_size : (step + 1) * stream.batch_size]

    def columns(self, step: int) -> dict[str, np.ndarray]:
        """index, label, group, domain: int64 [R, B]."""
        rows = [(s.images, self.indices(s, step)) for s in self.streams]
        return {
            "index": np.stack([index for _, index in rows]),
            "label": np.stack([images.labels[index] for images, index in rows]),
            "group": np.stack([_or_missing(images.groups, index) for images, index in rows]),
            "domain": np.stack([_or_missing(images.domains, index) for images, index in rows]),
        }

    def _gather(self, stream: Stream, index: np.ndarray) -> Tensor:
        source = stream.images.pixels
        if isinstance(source, Tensor):  # resident on the device
            return source[torch.from_numpy(index).to(source.device)]
        return torch.from_numpy(np.ascontiguousarray(source[index])).to(self.device)


def _check(streams: Sequence[Stream]) -> None:
    shapes = {(len(s.order), s.batch_size, s.reset_at) for s in streams}
    if len(shapes) != 1:
        raise ConfigError(f"streams side by side must have one length, batch size and reset rule; got {sorted(shapes)}")


def _detached(report: StepReport) -> dict[str, Tensor]:
    return {f.name: getattr(report, f.name).detach() for f in dataclasses.fields(report)}


def _to_host(pending: Sequence[tuple[int, dict[str, Tensor]]], feed: _Feed) -> Iterator[StepRecord]:
    """One transfer for each field and shape of the block."""
    if not pending:
        return
    host = {name: _move([report[name] for _, report in pending]) for name in pending[0][1]}
    for position, (step, _) in enumerate(pending):
        fields = {name: values[position] for name, values in host.items()}
        yield StepRecord(step=step, **feed.columns(step), **fields)


def _move(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    if all(t.shape == tensors[0].shape for t in tensors):
        return list(torch.stack(list(tensors)).cpu().numpy())
    return [t.cpu().numpy() for t in tensors]


def _or_missing(values: np.ndarray | None, index: np.ndarray) -> np.ndarray:
    return np.full(len(index), -1, dtype=np.int64) if values is None else values[index]
