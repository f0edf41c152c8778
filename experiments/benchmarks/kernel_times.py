"""Where the time of a step on a GPU goes, kernel by kernel, and how near to a copy's speed the compiled ones come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from experiments.benchmarks.traffic import compiled_code, least_milliseconds

SHOWN = 40
COPIED_VALUES = 2**27
KINDS = {"poi": "compiled elementwise", "red": "compiled reductions", "per": "compiled reductions"}
KINDS |= {"unk": "compiled reductions"}  # those whose shape ``deyo.kernels`` chooses


def print_kernels(step: Callable[[], Any], steps: int = 5) -> None:
    """The kernels that take most time of ``step``; of compiled ones, which share a copy of their bytes takes of it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    times = {event.key: event.device_time_total / steps / 1000 for event in profiler.key_averages()}
    counts = {event.key: event.count // steps for event in profiler.key_averages()}
    kinds: Counter[str] = Counter()
    for kernel, milliseconds in times.items():
        kinds[kind_of(kernel)] += milliseconds
    least = least_milliseconds(compiled_code(), copy_speed())
    known = {kernel: least[kernel] * counts[kernel] for kernel in times if kernel in least}
    print(f"kernels {sum(times.values()):.2f} ms a step", flush=True)
    print("  " + ", ".join(f"{name} {milliseconds:.2f} ms" for name, milliseconds in kinds.most_common()), flush=True)
    if known:
        spent = sum(times[kernel] for kernel in known)
        print(f"  compiled {spent:.2f} ms, {sum(known.values()):.2f} ms at the speed of a copy", flush=True)
    for kernel, milliseconds in sorted(times.items(), key=lambda item: -item[1])[:SHOWN]:
        share = f"{100 * known[kernel] / milliseconds:3.0f} %" if kernel in known else "     "
        print(f"  {milliseconds:7.3f} ms {counts[kernel]:5d}x {share} {kernel[:110]}", flush=True)


def copy_speed(rounds: int = 10) -> float:
    """Bytes per second, read and written, of a large copy on the GPU."""
    source = torch.ones(COPIED_VALUES, dtype=torch.bfloat16, device="cuda")
    target = torch.empty_like(source)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    target.copy_(source)
    start.record()
    for _ in range(rounds):
        target.copy_(source)
    end.record()
    torch.cuda.synchronize()
    return rounds * 2 * source.nbytes / (start.elapsed_time(end) / 1000)


def kind_of(kernel: str) -> str:
    """What a kernel does, by its name."""
    if kernel.startswith("triton_"):
        return KINDS.get(kernel[7:10], "compiled others")
    if any(mark in kernel for mark in ("xmma", "cutlass", "nvjet", "gemm", "cudnn", "flash", "conv")):
        return "convolutions and products"
    return "copies" if "copy" in kernel.lower() else "others"
