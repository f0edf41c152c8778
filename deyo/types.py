"""The types that cross the engine's boundaries: images, streams, networks, methods, step reports.

Shapes are written with R runs side by side, B images in a batch, C classes, N images in a set, T stream
positions. Everything here is plain data or a protocol; nothing imports Ray, MLflow or pandas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:  # named in annotations only: a spec's errors must not wait for torch to load
    import torch
    from torch import Tensor, nn


def _cpu() -> torch.device:
    import torch

    return torch.device("cpu")


class PixelSource(Protocol):
    """N images as uint8 [N, H, W, 3]: a numpy array, a memory map, or several of them end to end."""

    shape: tuple[int, ...]

    def __getitem__(self, indices: Any) -> np.ndarray:
        """Images at int64 ``indices`` [n] as uint8 [n, H, W, 3]."""


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """N labelled images of one test condition (for example one corruption at one severity).

    ``groups`` are spurious-correlation groups (2·y + attribute, methods.md §3.7) where the benchmark has
    them. ``domains`` says for each image which of ``domain_names`` it belongs to (the corruption, in mixed
    and continual streams). ``fingerprint`` is a hex digest that changes with the pixels or the labels.
    """

    name: str
    pixels: PixelSource
    labels: np.ndarray
    groups: np.ndarray | None = None
    domains: np.ndarray | None = None
    domain_names: tuple[str, ...] = ()
    fingerprint: str = ""
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.labels)


@runtime_checkable
class Benchmark(Protocol):
    """A named source of shifted test images, with its clean images where there are any.

    One whose name does not say which images they are also has ``data_id()``, a text that does: it is part of a run's
    identity. One whose labels mean a network's classes only if there are as many has their number as ``shown_classes``.
    """

    name: str
    num_classes: int
    image_size: int
    corruptions: tuple[str, ...]
    severities: tuple[int, ...]
    group_names: tuple[str, ...]
    class_columns: np.ndarray | None

    def images(self, corruption: str | None = None, severity: int | None = None) -> ImageSet:
        """The test images of one condition. Raises ``DataError`` if the data is missing or wrong."""

    def source_images(self) -> ImageSet:
        """Clean source images (EATA's Fisher matrix, sanity checks). ``DataError`` if there are none."""

    def train_images(self) -> ImageSet:
        """Images to pretrain on. Raises ``DataError`` if the benchmark offers none."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """An explicit order in which one run sees images: the same for every method at a seed.

    ``order`` is int64 [T] into ``images``; the loop cuts it into batches of ``batch_size`` (the last may be
    short). ``reset_at`` holds stream positions (multiples of batches) before which the method is reset to the
    source. ``digest`` is a hex sha256 of scenario, order and images' fingerprint.
    """

    images: ImageSet
    order: np.ndarray
    batch_size: int
    scenario: str
    seed: int
    digest: str
    reset_at: tuple[int, ...] = ()

    def __len__(self) -> int:
        return -(-len(self.order) // self.batch_size)


@dataclass(frozen=True, kw_only=True)
class NetworkInfo:
    """What is known of a network from its name alone, without loading weights.

    ``family`` ("resnet" or "vit") picks the learning-rate rule; ``norm`` is "bn", "gn" or "ln".
    ``trained_on`` names the benchmark recipe that a network must be pretrained with, or is None.
    """

    name: str
    family: str
    norm: str
    num_classes: int | None
    image_size: int | None
    trained_on: str | None = None


@dataclass(frozen=True, kw_only=True)
class Network:
    """A pretrained network with the normalisation that its weights want (methods.md §3.5).

    ``module`` maps normalised float images [B, 3, H, W] to logits [B, C]; it is in eval mode and is never
    changed by a method (methods copy it). ``mean`` and ``std`` are per channel, for pixels in [0, 1].
    ``sha256`` is the digest of the loaded weights.
    """

    info: NetworkInfo
    module: nn.Module
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    num_classes: int
    sha256: str
    source: str = ""

    @property
    def name(self) -> str:
        """The name that it was loaded by."""
        return self.info.name


@dataclass(kw_only=True)
class StepReport:
    """What one step of R runs says of itself; tensors on the method's device.

    entropy, plpd: float [R, B] (plpd is NaN where not computed); prediction: int64 [R, B];
    passed_entropy, passed_both: bool [R, B]; forwards, backwards: int64 [R] in samples by the paper's rules
    (methods.md §4, Efficiency); skipped, reset: bool [R] (no update was made; the run went back to source).
    """

    entropy: Tensor
    prediction: Tensor
    plpd: Tensor
    passed_entropy: Tensor
    passed_both: Tensor
    forwards: Tensor
    backwards: Tensor
    skipped: Tensor
    reset: Tensor


@dataclass(kw_only=True)
class StepRecord:
    """One step as the loop hands it out: host arrays, the run axis first.

    index, label, group, domain: int64 [R, B] (group and domain are -1 where there is none); the rest as in
    ``StepReport``, as numpy arrays. ``step`` counts batches from 0.
    """

    step: int
    index: np.ndarray
    label: np.ndarray
    group: np.ndarray
    domain: np.ndarray
    prediction: np.ndarray
    entropy: np.ndarray
    plpd: np.ndarray
    passed_entropy: np.ndarray
    passed_both: np.ndarray
    forwards: np.ndarray
    backwards: np.ndarray
    skipped: np.ndarray
    reset: np.ndarray

    @property
    def correct(self) -> np.ndarray:
        """bool [R, B]."""
        return self.prediction == self.label


@dataclass(kw_only=True)
class MethodContext:
    """What a method is built from.

    ``seeds`` has one entry a run (R = len(seeds)). ``precision`` is one of ``deyo.precision.PROFILES``.
    ``class_columns`` int64 [C'] keeps those logits only, before entropy and PLPD (ImageNet-R, methods.md
    §3.4). ``entropy_classes`` is the C of thresholds that are fractions of ln C; None: as many as there are
    logits. ``source`` are clean source images (EATA's Fisher matrix), or None.
    """

    network: Network
    seeds: Sequence[int]
    batch_size: int
    device: torch.device = field(default_factory=_cpu)
    precision: str = "tf32"
    class_columns: np.ndarray | None = None
    source: ImageSet | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    entropy_classes: int | None = None

    @property
    def runs(self) -> int:
        """R."""
        return len(self.seeds)

    @property
    def num_classes(self) -> int:
        """Logits that a method sees: the network's, or those that ``class_columns`` keeps."""
        return self.network.num_classes if self.class_columns is None else len(self.class_columns)

    @property
    def log_classes(self) -> float:
        """ln C in nats, of which ``entropy_margin`` and ``entropy_reference`` are fractions."""
        return math.log(self.entropy_classes or self.num_classes)


class Method(Protocol):
    """R runs of one adaptation method, advancing together.

    ``lockstep`` says whether the class is written over R runs; if not, it is built with R = 1 only. One whose report
    of an image depends on that image alone may say ``order_free = True`` in its own class (it is not inherited): the
    loop then gives it each image once, in batches of its own making, and counts forwards and backwards by the image.
    """

    name: ClassVar[str]
    lockstep: ClassVar[bool]
    report: StepReport

    def step(self, pixels: Tensor) -> Tensor:
        """Adapt on uint8 pixels [R, B, 3, H, W]; returns the logits [R, B, C] that count as predictions."""

    def reset(self) -> None:
        """Back to the source network and an empty state, for every run."""

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that ``load_state_dict`` needs to go on with identical numbers."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on exactly where ``state_dict`` was taken. Raises ValueError if it is of another method or shape."""


class DataError(Exception):
    """The data is missing or not what it should be; the message says what was expected, found, and to do."""


class ConfigError(Exception):
    """A name or setting is wrong; the message names it and the allowed values nearest to it."""
