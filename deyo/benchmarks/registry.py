"""The registry of benchmarks: one line each, loaded when first asked for.

A user's own benchmark is announced by an installed package through the entry-point group
``deyo.benchmarks``: name = "package.module:Class", a class like those here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache as memoise
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol

from deyo.benchmarks.info import BenchmarkInfo, default_cache, find_root, nearest
from deyo.types import Benchmark, ConfigError

BUILT_IN = {
    "imagenet-c": "deyo.benchmarks.imagenet_c:ImageNetC",
    "imagenet-r": "deyo.benchmarks.imagenet_r:ImageNetR",
    "visda-2021": "deyo.benchmarks.visda:VisDA2021",
    "waterbirds": "deyo.benchmarks.waterbirds:Waterbirds",
    "colored-mnist": "deyo.benchmarks.colored_mnist:ColoredMNIST",
    "colored-digits": "deyo.benchmarks.colored_digits:ColoredDigits",
    "digits-c": "deyo.benchmarks.digits_c:DigitsC",
    "cifar10-c": "deyo.benchmarks.cifar10_c:CIFAR10C",
    "cifar10-jpeg": "deyo.benchmarks.cifar10_jpeg:CIFAR10Jpeg",
    "image-folder": "deyo.benchmarks.image_folder:ImageFolder",
    "imagenet": "deyo.benchmarks.imagenet:ImageNet",
}


class BenchmarkClass(Protocol):
    """What a registry line or entry point names."""

    @staticmethod
    def describe(**options: Any) -> BenchmarkInfo:
        """Facts without data; raises ``ConfigError`` for a wrong option."""

    def __call__(self, info: BenchmarkInfo, *, root: Path | None, cache: Path, skip_bad: bool = False) -> Benchmark: ...


@memoise
def _announced() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group="deyo.benchmarks")}


def benchmark_names() -> list[str]:
    """Every benchmark's name: those of this package, then those that installed packages announce."""
    return [*BUILT_IN, *sorted(set(_announced()) - set(BUILT_IN))]


def benchmark_class(name: str) -> BenchmarkClass:
    """The class behind ``name``. Raises ``ConfigError`` with the nearest names."""
    if name in BUILT_IN:
        module, attribute = BUILT_IN[name].split(":")
        return getattr(import_module(module), attribute)
    if name in _announced():
        return _announced()[name].load()
    names = benchmark_names()
    raise ConfigError(f"no benchmark {name!r}; there are: {', '.join(names)}.{nearest(name, names)}")


def benchmark_info(name: str, **options: Any) -> BenchmarkInfo:
    """What is known of a benchmark without its data. Raises ``ConfigError`` for a wrong name or option."""
    return benchmark_class(name).describe(**options)


def open_benchmark(
    name: str,
    *,
    root: Path | str | None = None,
    roots: Mapping[str, Path | str] | None = None,
    cache: Path | str | None = None,
    skip_bad: bool = False,
    **options: Any,
) -> Benchmark:
    """Open a benchmark; its files are read when images are first asked for.

    ``root`` is where its data lies (default: see ``find_root``); ``roots`` gives it by benchmark, that of others too
    whose images it may need (the clean ImageNet of imagenet-c). ``cache`` is where prepared arrays go (default:
    ``default_cache``). ``skip_bad`` leaves unreadable images out and counts them instead of refusing the set. Raises
    ``ConfigError`` for a root of a benchmark whose images come with a package.
    """
    made = benchmark_class(name)
    info = made.describe(**options)
    given = root if root is not None else (roots or {}).get(name)
    if info.bundled and given is not None:
        raise ConfigError(f"{name} comes with the package and reads no folder; {given} was given")
    opened = made(
        info,
        root=None if info.bundled else find_root(name, given),
        cache=Path(cache).expanduser() if cache is not None else default_cache(),
        skip_bad=skip_bad,
    )
    if hasattr(opened, "roots"):
        opened.roots = {other: Path(path).expanduser() for other, path in (roots or {}).items()}
    return opened
