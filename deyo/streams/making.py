"""From a scenario's name to a stream."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.random import RandomState

from deyo.streams.label_shift import INFINITE_RATIO, each_once_order, label_shift_order
from deyo.types import ConfigError, ImageSet, Stream

_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "mild": {},
    "label-shift": {"imbalance_ratio": INFINITE_RATIO, "each_image_once": None},
    "batch-size-1": {},
    "mixed": {},
    "biased": {},
    "continual": {"reset_each": False},
}
_ONCE_BENCHMARKS = ("imagenet-r", "visda-2021")


def scenario_names() -> list[str]:
    """All scenarios."""
    return list(_DEFAULTS)


def scenario_options(scenario: str, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All options of a scenario as JSON values, ``options`` over their defaults.

    label-shift: ``imbalance_ratio``, at least 1 (".inf" and "inf" mean 500000, as in the paper), and
    ``each_image_once``, true or false (null: true on ImageNet-R and VisDA-2021, else false).
    continual: ``reset_each``, true or false. Raises ``ConfigError`` for anything else.
    """
    if scenario not in _DEFAULTS:
        near = difflib.get_close_matches(str(scenario), _DEFAULTS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"unknown scenario {scenario!r}: {hint}Known: {', '.join(_DEFAULTS)}")
    given = dict(options or {})
    for key in given:
        if key not in _DEFAULTS[scenario]:
            known = ", ".join(_DEFAULTS[scenario]) or "none"
            raise ConfigError(f"scenario {scenario!r} has no option {key!r}; its options: {known}")
    resolved = {**_DEFAULTS[scenario], **given}
    if "imbalance_ratio" in resolved:
        resolved["imbalance_ratio"] = _ratio(resolved["imbalance_ratio"])
    for key, allowed in (("each_image_once", (True, False, None)), ("reset_each", (True, False))):
        if key in resolved and not any(resolved[key] is value for value in allowed):
            raise ConfigError(f"scenario {scenario!r}: {key} is {resolved[key]!r}; true or false was expected")
    return resolved


def make_stream(
    scenario: str,
    images: ImageSet,
    *,
    seed: int,
    batch_size: int,
    max_images: int | None = None,
    **options: Any,
) -> Stream:
    """The stream of ``images`` that ``scenario`` prescribes for ``seed``.

    max_images: a reduced form that keeps the scenario's shape. Shuffled streams keep their first images;
    label shifts and continual streams keep every class or corruption, for fewer steps each. Raises
    ``ConfigError`` for an unknown scenario or option, or images or a batch size that do not suit it.
    """
    resolved = scenario_options(scenario, options)
    _check(scenario, images, batch_size, max_images)
    generator = own_generator("stream", scenario, images.name, seed)
    resets: tuple[int, ...] = ()
    if scenario == "label-shift":
        order = _label_shift(images, seed, generator, max_images, resolved)
    elif scenario == "continual":
        order, changes = _continual(images, generator, batch_size, max_images)
        resets = _reset_positions(changes, batch_size) if resolved["reset_each"] else ()
    else:
        order = generator.permutation(len(images)).astype(np.int64)[:max_images]
    return Stream(
        images=images,
        order=order,
        batch_size=batch_size,
        scenario=scenario,
        seed=seed,
        digest=_digest(scenario, order, resets, images),
        reset_at=resets,
    )


def own_generator(*keys: object) -> RandomState:
    """A generator for these keys alone. NumPy keeps the numbers of ``RandomState`` as they are for good."""
    digest = hashlib.sha256(json.dumps([str(k) for k in keys]).encode()).digest()
    return RandomState(np.frombuffer(digest, dtype="<u4"))


def _ratio(value: Any) -> float | int:
    if isinstance(value, str) and value.lower().strip("+.") in ("inf", "infinity", "∞"):
        return INFINITE_RATIO
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value) or value < 1:
        raise ConfigError(f"imbalance_ratio is {value!r}; a number of at least 1, or inf, was expected")
    if math.isinf(value):
        return INFINITE_RATIO
    return int(value) if float(value).is_integer() else float(value)


def _check(scenario: str, images: ImageSet, batch_size: int, max_images: int | None) -> None:
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}; at least 1 was expected")
    if max_images is not None and max_images < 1:
        raise ConfigError(f"max_images is {max_images}; at least 1 was expected")
    if scenario == "batch-size-1" and batch_size != 1:
        raise ConfigError(f"the scenario 'batch-size-1' has batch_size 1, not {batch_size}")
    if scenario == "biased" and images.groups is None:
        raise ConfigError(f"the scenario 'biased' needs images with groups; {images.name} has none")
    if scenario in ("mixed", "continual") and images.domains is None:
        raise ConfigError(f"the scenario {scenario!r} needs several corruptions put together; {images.name} is one")
    if len(images) == 0:
        raise ConfigError(f"{images.name} has no images")


def _label_shift(
    images: ImageSet, seed: int, generator: RandomState, max_images: int | None, options: Mapping[str, Any]
) -> np.ndarray:
    labels = np.asarray(images.labels)
    once = options["each_image_once"]
    if once is None:
        once = images.name.split("/")[0] in _ONCE_BENCHMARKS
    if once:
        return each_once_order(labels, generator=generator, max_images=max_images)
    ratio = options["imbalance_ratio"]
    return label_shift_order(labels, seed=seed, ratio=ratio, generator=generator, max_images=max_images)


def _continual(
    images: ImageSet, generator: RandomState, batch_size: int, max_images: int | None
) -> tuple[np.ndarray, list[int]]:
    """The order, and the positions at which the corruption changes. Reduced streams keep whole batches of
    each corruption where there are enough images for that."""
    domains = np.asarray(images.domains)
    present = range(len(images.domain_names))
    parts = [generator.permutation(np.flatnonzero(domains == d)).astype(np.int64) for d in present]
    if max_images is not None and max_images < len(images):
        keep = max(1, max_images // len(parts))
        keep = keep // batch_size * batch_size or keep
        parts = [part[:keep] for part in parts][:max_images]
    return np.concatenate(parts), np.cumsum([len(part) for part in parts])[:-1].tolist()


def _reset_positions(changes: list[int], batch_size: int) -> tuple[int, ...]:
    """Starts of the batches that hold the first image of a new corruption.

    Where the number of images is not a multiple of the batch size such a batch begins with the last images of
    the corruption before, which the reset network then sees.
    """
    return tuple(sorted({position // batch_size * batch_size for position in changes} - {0}))


def _digest(scenario: str, order: np.ndarray, resets: tuple[int, ...], images: ImageSet) -> str:
    digest = hashlib.sha256(f"{scenario}|{images.fingerprint}|{resets}|".encode())
    digest.update(np.ascontiguousarray(order, dtype="<i8").tobytes())
    return digest.hexdigest()
