"""Listing image folders in torchvision's order, and refusing what is not as published."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from deyo.benchmarks.sources import sample_of
from deyo.types import DataError


@lru_cache
def imagenet_wnids() -> tuple[str, ...]:
    """The 1,000 ImageNet classes in order of their index (from timm's lists)."""
    return _timm_list("imagenet_synsets.txt")


@lru_cache
def imagenet_r_wnids() -> tuple[str, ...]:
    """ImageNet-R's 200 classes, sorted (from timm's lists)."""
    return _timm_list("imagenet_r_synsets.txt")


def _timm_list(name: str) -> tuple[str, ...]:
    import timm.data

    return tuple((Path(timm.data.__file__).parent / "_info" / name).read_text().split())


def class_folders(root: Path) -> list[str]:
    """The names of ``root``'s folders, sorted: torchvision's classes."""
    with os.scandir(root) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir())


def list_images(folder: Path) -> list[Path]:
    """The image files under ``folder`` in torchvision's order (folders sorted, then names)."""
    from torchvision.datasets.folder import IMG_EXTENSIONS

    found: list[Path] = []
    for parent, _, names in sorted(os.walk(folder, followlinks=True)):
        place = Path(parent)
        found += [place / name for name in sorted(names) if name.lower().endswith(IMG_EXTENSIONS)]
    return found


def list_classes(
    name: str, root: Path, expected: Sequence[str], per_class: int | None, total: int
) -> tuple[list[Path], np.ndarray]:
    """Files and labels (positions in ``expected``) of a tree with one folder for each expected class.

    Raises ``DataError`` with what was expected and found: folders missing or foreign, classes with another number
    of images than ``per_class``, another ``total``.
    """
    found = class_folders(root)
    missing, foreign = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if missing or foreign:
        raise DataError(
            f"{name}: {root} holds {len(found)} class folders, expected {len(expected)}:"
            + (f" missing {_some(missing)}" if missing else "")
            + (f" not of this benchmark {_some(foreign)}" if foreign else "")
        )
    files: list[Path] = []
    counts: dict[str, int] = {}
    for wnid in expected:
        listed = list_images(root / wnid)
        counts[wnid] = len(listed)
        files.extend(listed)
    check_counts(name, root, counts, per_class, total)
    return files, np.repeat(np.arange(len(expected)), list(counts.values()))


def check_counts(name: str, root: Path, counts: Mapping[str, int], per_class: int | None, total: int) -> None:
    """Raises ``DataError`` unless ``counts`` (images by class) are as expected."""
    found = sum(counts.values())
    wrong = {c: n for c, n in counts.items() if per_class is not None and n != per_class}
    if found != total or wrong:
        where = ", ".join(f"{c} has {n}" for c, n in list(wrong.items())[:5])
        each = f" ({per_class} for each class)" if per_class is not None else ""
        raise DataError(
            f"{name}: {root} holds {found:,} images, expected {total:,}{each}" + (f": {where}" if where else "")
        )


def check_sizes(name: str, files: Sequence[Path], size: int) -> None:
    """Raises ``DataError`` if a sample of ``files`` shows that the images are not square of ``size`` pixels."""
    found: dict[tuple[int, int], Path] = {}
    for file in sample_of(files):
        try:
            with Image.open(file) as opened:
                found.setdefault(opened.size, file)
        except OSError:
            continue  # reading it will name it
    wrong = {sides: file for sides, file in found.items() if sides != (size, size)}
    if wrong and (size, size) not in found:
        (width, height), file = next(iter(wrong.items()))
        raise DataError(
            f"{name}: images are {width}x{height} pixels, expected {size}x{size} ({file}). "
            "This benchmark's images are used as published, never resized"
        )


def check_distinct(name: str, folders: Mapping[str, Path], chosen: str) -> None:
    """Raises ``DataError`` if the folder of condition ``chosen`` is another condition's too.

    Links are followed; a copy is recognised by three files that are equal.
    """
    here = folders[chosen].resolve()
    mine = {file.relative_to(folders[chosen]): file for file in _three(folders[chosen])}
    for condition, folder in folders.items():
        if condition == chosen or not folder.is_dir():
            continue
        if folder.resolve() == here:
            raise DataError(f"{name}: {condition} and {chosen} are one folder, {here}: expected two")
        twins = [(file, folder / path) for path, file in mine.items()]
        if twins and all(twin.is_file() and _same(file, twin) for file, twin in twins):
            raise DataError(
                f"{name}: {condition} ({folder}) holds the same images as {chosen} ({here}): expected others"
            )


def _three(folder: Path) -> list[Path]:
    """The first image of the first, middle and last class folder."""
    names = class_folders(folder)
    chosen = sorted({0, len(names) // 2, len(names) - 1}) if names else []
    return [file for index in chosen for file in list_images(folder / names[index])[:1]]


def _same(one: Path, other: Path) -> bool:
    return one.stat().st_size == other.stat().st_size and one.read_bytes() == other.read_bytes()


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
