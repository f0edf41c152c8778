"""What is known of a benchmark without its data, and how its options are read."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deyo.types import ConfigError, DataError

ALL_SEVERITIES = (1, 2, 3, 4, 5)
IMAGE_SCENARIOS = ("mild", "label-shift", "batch-size-1", "mixed", "continual")
SINGLE_SHIFT_SCENARIOS = ("mild", "label-shift", "batch-size-1")
GROUP_SCENARIOS = ("biased", "mild", "label-shift", "batch-size-1")


@dataclass(frozen=True, kw_only=True)
class BenchmarkInfo:
    """A benchmark as its name and options tell, before any file is read.

    ``num_classes`` is the C of thresholds such as 0.4 · ln C, and None where only the user's data can tell
    (``image-folder``). ``image_size`` is in pixels, images are square. ``corruptions`` is empty where there is no
    such axis. ``group_names`` are numbered as ``ImageSet.groups``. ``generated`` says that the corrupted images
    are made here, and are not the released ones; ``bundled`` that the images come with a package. ``options`` holds
    every option with its value.
    """

    name: str
    num_classes: int | None
    image_size: int
    corruptions: tuple[str, ...] = ()
    severities: tuple[int, ...] = ()
    group_names: tuple[str, ...] = ()
    scenarios: tuple[str, ...] = SINGLE_SHIFT_SCENARIOS
    default_batch_size: int = 64
    generated: bool = False
    bundled: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option of a benchmark, as specs give it and ``experiments/SPEC.md`` lists it.

    ``choices`` are the values allowed; without any it is every value of the default's kind (where that is None, the
    benchmark checks by itself). ``allowed`` says in words what the benchmark checks beyond that.
    """

    default: Any
    doc: str
    choices: tuple[Any, ...] = ()
    allowed: str = ""


def resolve_options(benchmark: str, given: Mapping[str, Any], options: Mapping[str, Option]) -> dict[str, Any]:
    """The defaults of ``options`` overridden by ``given``. Raises ``ConfigError`` for an unknown key, type or value."""
    for key, value in given.items():
        if key not in options:
            raise ConfigError(
                f"{benchmark} has no option {key!r}; it has: {', '.join(sorted(options)) or 'none'}."
                + nearest(key, options)
            )
        allowed, default = list(options[key].choices), options[key].default
        if allowed and value not in allowed:
            raise ConfigError(f"{benchmark}: {key} is {value!r}, expected one of {allowed}")
        if not allowed and default is not None and not _same_kind(value, default):
            raise ConfigError(f"{benchmark}: {key} is {value!r}, expected a value like {default!r}")
    return {**{key: option.default for key, option in options.items()}, **given}


def _same_kind(value: Any, default: Any) -> bool:
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    return isinstance(value, type(default))


def nearest(word: str, words: Iterable[str]) -> str:
    """ " Did you mean ...?", or nothing."""
    close = difflib.get_close_matches(str(word), [str(w) for w in words], n=2, cutoff=0.5)
    return f" Did you mean {' or '.join(close)}?" if close else ""


def root_variable(benchmark: str) -> str:
    """The environment variable that names a benchmark's data: DEYO_DATA_IMAGENET_C for imagenet-c."""
    return "DEYO_DATA_" + benchmark.upper().replace("-", "_")


def find_root(benchmark: str, root: Path | str | None) -> Path | None:
    """Where a benchmark's data should be: ``root``, else DEYO_DATA_<NAME>, else DEYO_DATA/<name>, else None."""
    if root is not None:
        return Path(root).expanduser()
    if named := os.environ.get(root_variable(benchmark)):
        return Path(named).expanduser()
    if common := os.environ.get("DEYO_DATA"):
        return Path(common).expanduser() / benchmark
    return None


def require_root(benchmark: str, root: Path | None, layout: str) -> Path:
    """``root`` if it is a directory. Raises ``DataError`` that says how to name one."""
    how = (
        f"Set {root_variable(benchmark)}=/path/to/it, or `data: {{{benchmark}: /path/to/it}}` in the spec. "
        f"Expected there: {layout}"
    )
    if root is None:
        raise DataError(f"{benchmark}: no data directory is named. {how}")
    if not root.is_dir():
        raise DataError(f"{benchmark}: {root} is not a directory. {how}")
    return root


def default_cache() -> Path:
    """Prepared arrays and checkpoints: DEYO_CACHE, else ~/.cache/deyo-sweep."""
    named = os.environ.get("DEYO_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "deyo-sweep"
