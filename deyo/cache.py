"""Prepared images: one memory-mapped uint8 array [N, H, W, 3] per (benchmark, corruption, severity).

Decoding or generating happens once. An array is built in a ``.partial`` folder that a later call resumes, and
appears under its final name by one rename. A lock file keeps a second process waiting instead of repeating the
work; it is the kernel's (``flock``), so it is gone with the process that held it.

Layout: ``<cache>/prepared/<recipe name>/<config hash>-<source hash>/{pixels,labels,groups}.npy, meta.json``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from deyo.cache_build import CHUNK, NotAheadError, Progress, drop_rows, fill, locked
from deyo.decode_children import cores
from deyo.types import DataError, ImageSet

FORMAT = 1  # of the folder's contents; part of every config hash
_SPARE_BYTES = 64 << 20  # left free on the disk
_AHEAD_TIMES, _AHEAD_SPARE = 3, 1 << 30  # an array made ahead must fit so often into what is free beside this


class PreparedWarning(UserWarning):
    """Something about prepared data that the user should know but that changes no number."""


class NoRoomWarning(PreparedWarning):
    """``array`` has no room on the disk of the cache."""

    def __init__(self, array: str, text: str) -> None:
        super().__init__(text)
        self.array = array


class Source(Protocol):
    """N images that can be read by index. ``fingerprint`` hashes all that decides pixels and labels.

    ``read`` returns uint8 [n, H, W, 3] and, for images that cannot be read, {position in ``indices``: reason}.
    ``skipped`` counts unreadable images that were left out before. One that takes more to make may have
    ``check_material()``, which raises ``DataError`` where that is missing.
    """

    shape: tuple[int, int, int, int]
    labels: np.ndarray
    groups: np.ndarray | None
    fingerprint: str
    skipped: int

    def read(self, indices: np.ndarray) -> tuple[np.ndarray, dict[int, str]]: ...


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one array is made: ``open`` lists and checks the source, ``config`` (JSON) is what decides it besides.

    ``root`` is the directory that must exist to open it, or None if the source comes with this package, and
    ``config`` then decides everything. ``alike`` are configs of arrays that do as well where they are there already:
    the same images but for rounding, under their own fingerprint. ``outlives``: the array stands for its source where
    that is gone.
    """

    name: str
    config: Mapping[str, Any]
    open: Callable[[], Source]
    root: Path | None = None
    alike: tuple[Mapping[str, Any], ...] = ()
    outlives: bool = True

    @property
    def config_hash(self) -> str:
        return self._hash(self.config)

    @property
    def prefixes(self) -> tuple[str, ...]:
        """How the folders of arrays that will do begin; its own comes first."""
        return tuple(self._hash(config)[:12] for config in (self.config, *self.alike))

    def _hash(self, config: Mapping[str, Any]) -> str:
        return digest({"format": FORMAT, "name": self.name, **config})


def digest(*parts: Any) -> str:
    """Hex sha256 of JSON values, bytes and arrays, in order."""
    state = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            state.update(f"{part.dtype.str}{part.shape}".encode())
            state.update(np.ascontiguousarray(part).data)
        elif isinstance(part, bytes):
            state.update(part)
        else:
            state.update(json.dumps(part, sort_keys=True).encode())
    return state.hexdigest()


def open_images(
    recipe: Recipe,
    cache: Path,
    *,
    skip_bad: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
    build: bool = True,
    ahead: bool = False,
) -> ImageSet:
    """The images of ``recipe``, prepared under ``cache`` first if they are not yet.

    Where the disk has no room, the set reads its source each time instead, slower, with a ``NoRoomWarning``.
    With ``build`` False so does every set that is not prepared: its files are listed and checked, none is decoded.
    ``ahead``: nobody waits for it yet. Then NotAheadError is raised if it is not prepared and child processes cannot
    do it, if another thread or process does, or if room is scarce.
    Raises ``DataError`` if the source is missing (and was never prepared), wrong, or has unreadable images
    (unless ``skip_bad``, which leaves them out and counts them in ``ImageSet.skipped``).
    """
    folder = cache / "prepared" / recipe.name
    gone = recipe.outlives and (recipe.root is None or not recipe.root.is_dir())
    if gone and (ready := _ready_without_source(recipe, folder)):
        return _load(ready, recipe.name, skip_bad)
    source = recipe.open()
    finals = [folder / f"{prefix}-{source.fingerprint[:12]}" for prefix in recipe.prefixes]
    for ready in finals:
        if (ready / "meta.json").is_file():
            return _load(ready, recipe.name, skip_bad)
    getattr(source, "check_material", lambda: None)()
    final = finals[0]
    if not build:
        return _direct(recipe, source, {})
    if ahead and not (getattr(source, "portable", False) and _much_room(cache, source)):
        raise NotAheadError(recipe.name)
    if free_bytes(cache) < _bytes(source) + _SPARE_BYTES - _partial_bytes(final):
        _tell_no_room(recipe, source, cache)
        return _direct(recipe, source, _unreadable(source) if skip_bad else {})

    def waiting() -> None:
        if ahead:
            raise NotAheadError(recipe.name)
        if progress is not None:
            progress(recipe.name, -1, source.shape[0])

    with locked(final.with_suffix(".lock"), waiting):
        if not (final / "meta.json").is_file():
            how: dict[str, Any] = {"workers": workers or cores(), "progress": progress, "ahead": ahead}
            _build(recipe, source, final, skip_bad, **how)
    return _load(final, recipe.name, skip_bad)


def prepare(
    benchmark: Any,
    conditions: Sequence[tuple[str | None, int | None]] | None = None,
    *,
    workers: int | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> list[ImageSet]:
    """Build what ``benchmark`` needs for ``conditions`` (corruption, severity), by default all of them.

    ``workers`` processes decode files, or threads make corruptions (default: one a core); ``device`` makes corruptions.
    A benchmark of an installed package may have no recipes: it is then only opened.
    """
    if conditions is None:
        conditions = [(c, s) for c in benchmark.corruptions for s in benchmark.severities] or [(None, None)]
    if hasattr(benchmark, "recipe"):
        benchmark.workers, benchmark.device, benchmark.progress = workers, device, progress
    return [benchmark.images(corruption, severity) for corruption, severity in conditions]


def free_bytes(path: Path) -> int:
    """Free bytes of the disk that ``path`` is, or will be, on."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


class SourcePixels:
    """A ``PixelSource`` that reads its source at every access (where the disk has no room for an array)."""

    def __init__(self, name: str, source: Source, kept: np.ndarray) -> None:
        self._name, self._source, self._kept = name, source, kept
        self.shape = (len(kept), *source.shape[1:])

    def __getitem__(self, indices: Any) -> np.ndarray:
        wanted = self._kept[indices]
        pixels, bad = self._source.read(np.atleast_1d(wanted))
        _refuse(self._name, bad.values())
        return pixels if np.ndim(wanted) else pixels[0]


def _ready_without_source(recipe: Recipe, folder: Path) -> Path | None:
    """The array that was prepared from a source that is gone. Raises ``DataError`` if there are several."""
    for prefix in recipe.prefixes:
        ready = [path for path in folder.glob(f"{prefix}-*") if (path / "meta.json").is_file()]
        if len(ready) > 1:
            raise DataError(
                f"{recipe.name}: {recipe.root} is gone and {folder} holds arrays made from {len(ready)} "
                "different copies of the data: name the one meant, or delete the others"
            )
        if ready:
            return ready[0]
    return None


def _bytes(source: Source) -> int:
    return int(np.prod(source.shape, dtype=np.int64))


def _partial_bytes(final: Path) -> int:
    """Bytes that an interrupted build already holds on the disk."""
    pixels = final.with_suffix(".partial") / "pixels.npy"
    return pixels.stat().st_blocks * 512 if pixels.is_file() else 0


def _much_room(cache: Path, source: Source) -> bool:
    """Whether the disk has room for ``source`` several times over, beside all that is being prepared."""
    promised = 0
    for pixels in (cache / "prepared").rglob("*.partial/pixels.npy"):
        with contextlib.suppress(FileNotFoundError):  # it was finished meanwhile
            state = pixels.stat()
            promised += max(0, state.st_size - state.st_blocks * 512)
    return free_bytes(cache) - promised >= _AHEAD_TIMES * _bytes(source) + _AHEAD_SPARE


def _load(path: Path, name: str, skip_bad: bool) -> ImageSet:
    meta = json.loads((path / "meta.json").read_text())
    if meta["bad"] and not skip_bad:
        _refuse(name, meta["bad"])
    groups = path / "groups.npy"
    return ImageSet(
        name=name,
        pixels=np.load(path / "pixels.npy", mmap_mode="r"),
        labels=np.load(path / "labels.npy"),
        groups=np.load(groups) if groups.is_file() else None,
        fingerprint=meta["fingerprint"],
        skipped=len(meta["bad"]) + meta["skipped"],
    )


def _refuse(name: str, reasons: Any) -> None:
    reasons = list(reasons)
    if reasons:
        shown = "; ".join(reasons[:5]) + (f"; and {len(reasons) - 5} more" if len(reasons) > 5 else "")
        raise DataError(
            f"{name}: {len(reasons)} unreadable (--skip-bad leaves them out and counts them in the results): {shown}"
        )


def _tell_no_room(recipe: Recipe, source: Source, cache: Path) -> None:
    """The same words wherever the same array lacks room: a sweep's workers are heard once."""
    text = (
        f"{recipe.name}: the prepared array needs {(_bytes(source) + _SPARE_BYTES) / 1e9:.2f} GB, and {cache} has "
        "less free: the source is read at each run instead, which is slower. DEYO_CACHE=/a/larger/disk moves the "
        "cache."
    )
    warnings.warn(NoRoomWarning(recipe.name, text), stacklevel=3)


def _unreadable(source: Source) -> dict[int, str]:
    bad: dict[int, str] = {}
    for start in range(0, source.shape[0], CHUNK):
        indices = np.arange(start, min(start + CHUNK, source.shape[0]))
        bad |= {start + position: reason for position, reason in source.read(indices)[1].items()}
    return bad


def _direct(recipe: Recipe, source: Source, bad: Mapping[int, str]) -> ImageSet:
    kept = _kept(source.shape[0], bad)
    return ImageSet(
        name=recipe.name,
        pixels=SourcePixels(recipe.name, source, kept),
        labels=source.labels[kept],
        groups=None if source.groups is None else source.groups[kept],
        fingerprint=_fingerprint(recipe, source, bad),
        skipped=len(bad) + source.skipped,
    )


def _kept(count: int, bad: Mapping[int, str]) -> np.ndarray:
    return np.setdiff1d(np.arange(count), np.fromiter(bad, dtype=np.int64, count=len(bad)))


def _fingerprint(recipe: Recipe, source: Source, bad: Mapping[int, str]) -> str:
    return digest(recipe.config_hash, source.fingerprint, sorted(bad))


def _build(recipe: Recipe, source: Source, final: Path, skip_bad: bool, **how: Any) -> None:
    partial = final.with_suffix(".partial")
    partial.mkdir(parents=True, exist_ok=True)
    refuse = None if skip_bad else lambda bad: _refuse(recipe.name, bad.values())
    bad = fill(recipe.name, source, partial, refuse=refuse, **how)
    kept = _kept(source.shape[0], bad)
    if bad:
        drop_rows(partial / "pixels.npy", kept)
    np.save(partial / "labels.npy", source.labels[kept])
    if source.groups is not None:
        np.save(partial / "groups.npy", source.groups[kept])
    (partial / "done.bin").unlink()
    (partial / "bad.jsonl").unlink(missing_ok=True)
    meta = {
        "name": recipe.name,
        "config": dict(recipe.config),
        "images": len(kept),
        "bad": [bad[i] for i in sorted(bad)],
        "skipped": source.skipped,
        "source": source.fingerprint,
        "fingerprint": _fingerprint(recipe, source, bad),
    }
    (partial / "meta.json").write_text(json.dumps(meta, indent=1))
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
