"""Which runs may share a forward, what they share with each other, and how many go side by side.

Fusing runs into a group changes no number beyond rounding (the engine's lockstep is exact); it only saves time. How
many runs fit is learnt from measured peaks of memory, never guessed; batch size is never touched.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.rows import canonical
from orchestrator.types import RunConfig, Slot

ORDINARY_SIDE = 224
"""Pixels of an ImageNet image's side."""

GroupKey = tuple[Any, ...]
"""Equal for runs that can be one group."""


def network_key(config: RunConfig) -> str:
    """Equal for runs that start from the same weights."""
    if config.pretrain_seed is None:
        return config.model
    return pretrain_key(config)


def pretrain_key(config: RunConfig) -> str:
    """Names the checkpoint that a run of ``config`` starts from: model, benchmark, its options, seed."""
    options = canonical(config.benchmark_options)
    digest = hashlib.sha256(options.encode()).hexdigest()[:8] if config.benchmark_options else ""
    return "-".join(filter(None, (config.model, config.benchmark, digest, f"seed{config.pretrain_seed}")))


def images_key(config: RunConfig) -> str:
    """Equal for runs that read the same images."""
    part = config.corruption or ",".join(config.corruptions)
    options = canonical(config.benchmark_options) if config.benchmark_options else ""
    return f"{config.benchmark}{options}/{part}/{config.severity}"


def needs_source(config: RunConfig) -> bool:
    """Whether the method measures something on clean source images first (EATA's Fisher matrix)."""
    return bool(config.settings.get("fisher_strength"))


def source_keys(config: RunConfig) -> tuple[str, ...]:
    """Names the clean source images that a run of ``config`` reads, if it does."""
    if not needs_source(config):
        return ()
    options = canonical(config.benchmark_options) if config.benchmark_options else ""
    return (f"{config.benchmark}{options}/source",)


def group_key(config: RunConfig) -> GroupKey:
    """Compatibility of runs: method, network, shapes, stream length, precision.

    Settings that are whole numbers or names shape the computation and must be equal; real numbers and
    switches may differ from run to run.
    """
    shaping = {k: v for k, v in config.settings.items() if not isinstance(v, float | bool) or v is None}
    return (
        config.method,
        canonical(shaping),
        network_key(config),
        config.benchmark,
        canonical(config.benchmark_options),
        config.scenario,
        len(config.corruptions),
        config.batch_size,
        config.max_images,
        config.precision,
    )


def kind_key(config: RunConfig) -> tuple[str, str, str]:
    """The kind of runs that fail together: what the circuit breaker counts by."""
    return (config.method, config.model, config.benchmark)


def memory_key(config: RunConfig, side: int) -> str:
    """What memory depends on: network, method, batch size, precision, and the ``side`` of the images in pixels."""
    return f"{config.model}|{config.method}|{config.batch_size}|{config.precision}|{side}"


@dataclass
class MemoryModel:
    """Peaks of memory measured at group sizes, kept in a file between sweeps.

    A group of R runs takes ``base + R · each`` bytes: the line through the measurements at the smallest and
    the largest R. With one measurement alone the base counts as part of each run, which errs on the safe
    side.
    """

    path: Path | None = None
    share: float = 0.55
    peaks: dict[str, dict[int, int]] = field(default_factory=dict)
    ceilings: dict[tuple[str, str], int] = field(default_factory=dict)
    _dirty: bool = False

    def __post_init__(self) -> None:
        if self.path and self.path.exists():
            try:
                text = json.loads(self.path.read_text())
                self.peaks = {k: {int(r): int(b) for r, b in v.items()} for k, v in text.items()}
            except (ValueError, AttributeError, OSError):
                self.peaks = {}  # a cache: measured again

    def measured(self, key: str, runs: int, peak: int) -> None:
        """A group of ``runs`` of this kind took ``peak`` bytes at most."""
        known = self.peaks.setdefault(key, {})
        if peak > known.get(runs, 0):
            known[runs] = peak
            self._dirty = True

    def too_large(self, key: str, gpu: str, runs: int) -> None:
        """A group of ``runs`` did not fit on ``gpu``."""
        known = self.ceilings.get((key, gpu), runs)
        self.ceilings[key, gpu] = max(1, min(known, runs // 2))

    def fitting(self, key: str, gpu: str, memory: int) -> int | None:
        """How many runs of this kind fit into ``memory`` bytes of ``gpu``; None if none was measured yet."""
        ceiling = self.ceilings.get((key, gpu))
        known = self.peaks.get(key)
        if not known:
            return ceiling
        few, many = min(known), max(known)
        each = (known[many] - known[few]) / (many - few) if many > few else known[few] / few
        base = known[few] - few * each
        room = int((memory * self.share - base) / max(each, 1.0))
        return max(1, min(room, ceiling or room))

    def save(self) -> None:
        """Write the measurements, if there are new ones, so that other sweeps start with them."""
        if not self.path or not self._dirty:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.path.parent, suffix=".tmp")
        with os.fdopen(handle, "w") as file:
            json.dump(self.peaks, file)
        os.replace(name, self.path)
        self._dirty = False


@dataclass(kw_only=True)
class GroupSizer:
    """How many runs go side by side on a slot.

    ``fixed`` sets the number; otherwise it is what memory holds, but at most ``samples`` images of 224×224 in a
    forward: beyond that a card gains nothing. Of smaller images it takes more to keep a card busy: as many times more
    as their ``side`` in pixels is shorter. On a CPU, where memory is not the limit, ``cpu_samples`` is.
    """

    memory: MemoryModel
    lockstep: Callable[[str], bool]
    side: Callable[[RunConfig], int] = lambda config: ORDINARY_SIDE
    fixed: int | None = None
    samples: int = 256
    cpu_samples: int = 16

    def key(self, config: RunConfig) -> str:
        """What the memory of a group of runs like ``config`` is kept by."""
        return memory_key(config, self.side(config))

    def limit(self, config: RunConfig, slot: Slot) -> int | None:
        """The largest group of runs like ``config`` for ``slot``, at least 1; None: memory has to be measured first."""
        if not self.lockstep(config.method):
            return 1
        if self.fixed:
            return self.fixed
        if not slot.device.startswith("cuda"):
            return max(1, self.cpu_samples // config.batch_size)
        samples = self.samples * max(1.0, ORDINARY_SIDE / self.side(config))
        most = max(1, int(samples // config.batch_size))
        if most == 1:
            return 1
        fitting = self.memory.fitting(self.key(config), slot.gpu_name, slot.memory_bytes)
        return None if fitting is None else max(1, min(most, fitting))
