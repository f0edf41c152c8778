"""Online label shift: class after class, in three recipes.

**Published** (ImageNet-C: 1,000 classes of 50 images in class order; seeds 2022-2025; ratios of
``PUBLISHED_RATIOS``): the index files of SAR and DeYO, bit for bit (methods.md §3.2). 100,000 draws with
replacement, 100 steps for each class; in a class's steps it is drawn with probability r/(r+C−1), any other
class with 1/(r+C−1). r = 500000 stands for infinity.

**The same recipe at another size**: any other set, seed or ratio, from a generator of its own. The length is
twice the number of images, as it is there, divided evenly among the classes; with ``max_images`` every class
keeps its turn, for fewer steps (and if there are more classes than ``max_images``, one step for each of the
first ones). Within a class every image is equally likely.

**Each image once** (ImageNet-R and VisDA-2021, for which no published order exists; methods.md D14): classes
in random order, their images in random order, none repeated. ``max_images`` keeps the first images of each
class.
"""

from __future__ import annotations

import random

import numpy as np
from numpy.random import RandomState

from deyo.types import ConfigError

PUBLISHED_RATIOS = (1, 1000, 2000, 3000, 4000, 5000, 500000)
PUBLISHED_SEEDS = (2022, 2023, 2024, 2025)
PUBLISHED_CLASSES, PUBLISHED_PER_CLASS, PUBLISHED_STEPS = 1000, 50, 100_000
INFINITE_RATIO = 500_000
_PUBLISHED_DRAWS = 2022  # NumPy's seed for the draws, whatever the seed of the class order


def label_shift_order(
    labels: np.ndarray, *, seed: int, ratio: float, generator: RandomState, max_images: int | None
) -> np.ndarray:
    """Order int64 [T] by the published recipe where it applies, else by the same recipe at the set's size.

    labels: int64 [N]. Raises ``ConfigError`` for seed 2021 on ImageNet-C: its file cannot be regenerated.
    """
    if published_set(labels) and ratio in PUBLISHED_RATIOS:
        if seed == 2021:
            raise ConfigError(
                "label-shift seed 2021: no seed gives the class order of the published file, so it cannot be "
                f"reproduced; choose one of {', '.join(map(str, PUBLISHED_SEEDS))}"
            )
        if seed in PUBLISHED_SEEDS and (max_images is None or max_images >= PUBLISHED_STEPS):
            return published_order(seed, int(ratio))
    classes = np.unique(labels)
    generator.shuffle(classes)
    wanted = 2 * len(labels) if max_images is None else min(max_images, 2 * len(labels))
    steps = max(1, round(wanted / len(classes))) if max_images is None else max(1, wanted // len(classes))
    drawn = draw_classes(classes, steps, ratio, generator)
    return fill_with_images(labels, drawn[:wanted] if max_images is not None else drawn, generator)


def published_set(labels: np.ndarray) -> bool:
    """Whether image k is of class ⌊k/50⌋ of 1,000, as the published index files suppose."""
    expected = np.repeat(np.arange(PUBLISHED_CLASSES), PUBLISHED_PER_CLASS)
    return len(labels) == len(expected) and bool((labels == expected).all())


def published_class_order(seed: int, ratio: int) -> np.ndarray:
    """The order of the 1,000 classes: the authors' script shuffles once for each ratio, in their order."""
    own = random.Random(seed)
    for listed in PUBLISHED_RATIOS:
        order = list(range(PUBLISHED_CLASSES))
        own.shuffle(order)
        if listed == ratio:
            return np.array(order)
    raise ConfigError(f"imbalance ratio {ratio} has no published order; there are {PUBLISHED_RATIOS}")


def published_order(seed: int, ratio: int) -> np.ndarray:
    """The content of ``seed{seed}_total_100000_ir_{ratio}_class_order_shuffle_yes.npy``, int64 [100000]."""
    generator = RandomState(_PUBLISHED_DRAWS)
    steps = PUBLISHED_STEPS // PUBLISHED_CLASSES
    drawn = draw_classes(published_class_order(seed, ratio), steps, ratio, generator)
    labels = np.repeat(np.arange(PUBLISHED_CLASSES), PUBLISHED_PER_CLASS)
    return fill_with_images(labels, drawn, generator)


def draw_classes(classes: np.ndarray, steps: int, ratio: float, generator: RandomState) -> np.ndarray:
    """The class drawn at each step, int64 [len(classes)·steps]: ``steps`` steps for each of ``classes``.

    The draws are those of ``generator.choice(values, p=...)``, one a step, over the sorted classes.
    """
    values = np.sort(classes)
    minor = 1 / (ratio + len(classes) - 1)
    uniform = generator.random_sample(len(classes) * steps).reshape(len(classes), steps)
    drawn = np.empty((len(classes), steps), dtype=np.int64)
    for turn, major in enumerate(classes):
        probability = np.full(len(classes), minor)
        probability[np.searchsorted(values, major)] = minor * ratio
        cumulative = probability.cumsum()
        cumulative /= cumulative[-1]
        drawn[turn] = values[cumulative.searchsorted(uniform[turn], side="right")]
    return drawn.ravel()


def fill_with_images(labels: np.ndarray, drawn: np.ndarray, generator: RandomState) -> np.ndarray:
    """An image of each drawn class, with replacement; class by class in ascending order, as the authors draw."""
    order = np.empty(len(drawn), dtype=np.int64)
    for label in np.unique(drawn):
        of_class = np.flatnonzero(labels == label)
        here = drawn == label
        order[here] = of_class[generator.randint(0, len(of_class), int(here.sum()))]
    return order


def each_once_order(labels: np.ndarray, *, generator: RandomState, max_images: int | None) -> np.ndarray:
    """Every image once: classes in random order, images in random order within their class."""
    classes = np.unique(labels)
    generator.shuffle(classes)
    shuffled = [generator.permutation(np.flatnonzero(labels == label)) for label in classes]
    if max_images is not None and max_images < len(labels):
        keep = max(1, max_images // len(classes))
        shuffled = [part[:keep] for part in shuffled][:max_images]
    return np.concatenate(shuffled).astype(np.int64)
