"""Efficiency of a method as the paper's Table 7 has it: forwards and backwards in samples, synchronised seconds.

Reading pixels is timed apart from adapting (methods.md §4): the batches are decoded before the clock starts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from deyo.types import Method, Stream


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """One run of one method over a stream: counts in samples by the paper's rules, seconds of wall clock."""

    method: str
    images: int
    forwards: int
    backwards: int
    seconds: float
    decode_seconds: float

    @property
    def images_per_second(self) -> float:
        """Adapted images a second; decoding is not counted."""
        return self.images / self.seconds


def measure_efficiency(method: Method, stream: Stream, *, warmup: int = 0) -> Efficiency:
    """Adapt over the stream batch by batch; the method is R = 1 and is moved by it.

    ``warmup`` first batches are adapted on, but neither counted nor timed (kernels are chosen and compiled
    there). The device is synchronised before the clock is read.
    """
    device = method.context.device
    forwards = backwards = images = 0
    decode_seconds = seconds = 0.0
    for step in range(len(stream)):
        start = time.perf_counter()
        index = stream.order[step * stream.batch_size : (step + 1) * stream.batch_size]
        array = torch.from_numpy(np.ascontiguousarray(stream.images.pixels[index]))
        pixels = array.to(device).permute(0, 3, 1, 2).unsqueeze(0)
        _synchronise(device)
        ready = time.perf_counter()
        method.step(pixels)
        _synchronise(device)
        if step >= warmup:
            decode_seconds += ready - start
            seconds += time.perf_counter() - ready
            images += len(index)
            forwards += int(method.report.forwards.sum())
            backwards += int(method.report.backwards.sum())
    return Efficiency(
        method=method.name,
        images=images,
        forwards=forwards,
        backwards=backwards,
        seconds=seconds,
        decode_seconds=decode_seconds,
    )


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
