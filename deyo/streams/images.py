"""The images of a stream: one condition, or several put end to end."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from deyo.types import Benchmark, ConfigError, DataError, ImageSet, PixelSource

SPANNING = ("mixed", "continual")


class ConcatenatedPixels:
    """Several pixel sources end to end, read as one. ``parts`` are the sources, ``starts`` their offsets."""

    def __init__(self, parts: Sequence[PixelSource]) -> None:
        sizes = {tuple(part.shape[1:]) for part in parts}
        if len(sizes) != 1:
            raise DataError(f"images of different sizes cannot form one stream: {sorted(sizes)}")
        self.parts = tuple(parts)
        lengths = [part.shape[0] for part in parts]
        self.starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self.shape = (int(self.starts[-1]), *sizes.pop())

    def __getitem__(self, indices: Any) -> np.ndarray:
        """Images at int64 ``indices`` [n] as uint8 [n, H, W, 3]."""
        indices = np.asarray(indices, dtype=np.int64)
        result = np.empty((len(indices), *self.shape[1:]), dtype=np.uint8)
        owner = np.searchsorted(self.starts, indices, side="right") - 1
        for part in np.unique(owner):
            here = owner == part
            result[here] = self.parts[part][indices[here] - self.starts[part]]
        return result


def concatenate(image_sets: Sequence[ImageSet], names: Sequence[str]) -> ImageSet:
    """One set of several, in order; ``domains`` says which of ``names`` each image belongs to.

    Groups are kept where every set has them. Raises ``DataError`` if there is none, or sizes differ.
    """
    if not image_sets or len(image_sets) != len(names):
        raise DataError(f"{len(image_sets)} image sets for {len(names)} names; one name each was expected")
    groups = [s.groups for s in image_sets]
    digest = hashlib.sha256("\n".join(f"{n}:{s.fingerprint}" for n, s in zip(names, image_sets)).encode())
    return ImageSet(
        name="+".join(s.name for s in image_sets),
        pixels=ConcatenatedPixels([s.pixels for s in image_sets]),
        labels=np.concatenate([s.labels for s in image_sets]),
        groups=None if any(g is None for g in groups) else np.concatenate(groups),
        domains=np.repeat(np.arange(len(names), dtype=np.int64), [len(s) for s in image_sets]),
        domain_names=tuple(names),
        fingerprint=digest.hexdigest(),
        skipped=sum(s.skipped for s in image_sets),
    )


def images_for(
    benchmark: Benchmark,
    scenario: str,
    corruption: str | None = None,
    severity: int | None = None,
    corruptions: Sequence[str] = (),
) -> ImageSet:
    """The images that a run of ``scenario`` sees: one condition, or for mixed and continual streams the
    ``corruptions`` (default: all of the benchmark's) at one severity, put end to end."""
    if scenario not in SPANNING:
        return benchmark.images(corruption, severity)
    if corruption is not None:
        raise ConfigError(
            f"the scenario {scenario!r} spans several corruptions: give a list of them, not corruption={corruption!r}"
        )
    spanned = tuple(corruptions) or tuple(benchmark.corruptions)
    if not spanned:
        raise ConfigError(f"{benchmark.name} has no corruptions, so there is no {scenario!r} stream of them")
    return concatenate([benchmark.images(c, severity) for c in spanned], spanned)
