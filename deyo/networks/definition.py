"""What a network's name stands for. Nothing here loads torch: names are resolved while specs are read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from deyo.types import DataError, NetworkInfo

if TYPE_CHECKING:
    from torch import Tensor, nn

Channels = tuple[float, float, float]

IMAGENET_MEAN: Channels = (0.485, 0.456, 0.406)
IMAGENET_STD: Channels = (0.229, 0.224, 0.225)
HALF: Channels = (0.5, 0.5, 0.5)


@dataclass(frozen=True, kw_only=True)
class LoadedWeights:
    """A state dict, the sha256 of the file that it came from, and where that was."""

    state: dict[str, Tensor]
    sha256: str
    source: str


class Weights(Protocol):
    """Where a network's weights come from."""

    def identity(self) -> str:
        """What decides the weights: a published tag, or ``sha256:...`` of a file. Loads nothing."""

    def load(self, folder: Path | None, cache: Path | None) -> LoadedWeights:
        """Read (and if need be fetch) the weights.

        ``folder`` is searched before any hub (it may also be the file itself). Raises ``DataError`` saying
        which file to put where.
        """


@dataclass(frozen=True, kw_only=True)
class NetworkDefinition:
    """A network as the registry knows it. A package's entry point in ``deyo.networks`` is one of these, or a
    function without arguments that returns one.

    ``build`` makes the module with random initial weights for a number of classes; ``weights`` is None for a
    network that must be pretrained by a recipe. ``fine_tunes`` says that on the benchmarks of methods.md §2.4
    (and their bundled relatives) the network is pretrained by the benchmark's recipe, starting from
    ``weights`` or from random ones; ``head`` is then the name of its last linear layer.
    """

    info: NetworkInfo
    build: Callable[[int], nn.Module]
    mean: Channels = IMAGENET_MEAN
    std: Channels = IMAGENET_STD
    weights: Weights | None = None
    fine_tunes: bool = False
    head: str = "fc"
    variants: dict[str, Callable[[], NetworkDefinition]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FileWeights:
    """Weights in a file: safetensors, or a checkpoint that ``torch.load(weights_only=True)`` accepts.

    ``convert`` maps the file's state dict to the module's. ``bound`` is whatever else decides what the network
    computes with them (architecture, normalisation) and is not in its name; ``missing`` is the error's text
    where there is no such file.
    """

    path: Path
    bound: str = ""
    convert: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None
    missing: str = ""

    def identity(self) -> str:
        self._check()
        tail = f"/{hashlib.sha256(self.bound.encode()).hexdigest()[:8]}" if self.bound else ""
        return f"sha256:{file_sha256(self.path)}{tail}"

    def load(self, folder: Path | None, cache: Path | None) -> LoadedWeights:
        self._check()
        state = read_state(self.path)
        if self.convert is not None:
            state = self.convert(state)
        return LoadedWeights(state=state, sha256=file_sha256(self.path), source=self.path.name)

    def _check(self) -> None:
        if not self.path.is_file():
            raise DataError(self.missing or f"no weights file at {self.path}")


def file_sha256(path: Path) -> str:
    """Hex sha256 of a file; remembered while its size and modification time stay the same."""
    status = path.stat()
    return _file_sha256(str(path), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=256)
def _file_sha256(path: str, size: int, modified: int) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_state(path: Path) -> dict[str, Tensor]:
    """A state dict from a ``.safetensors`` file or a tensors-only torch checkpoint; never unpickles objects.

    Checkpoints that wrap the state dict under ``state_dict`` or ``model`` are unwrapped. Raises ``DataError``
    if the file cannot be read so.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, RuntimeError, EOFError, ValueError, OSError, KeyError) as error:
        raise DataError(f"{path} cannot be read as weights ({error}); is it truncated?") from error
    except Exception as error:  # torch raises pickle.UnpicklingError for anything that is not tensors
        raise DataError(
            f"{path} holds more than tensors, and pickled objects are not loaded. Save its state dict as "
            f"safetensors: safetensors.torch.save_file(module.state_dict(), 'weights.safetensors')"
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not all(isinstance(v, torch.Tensor) for v in state.values()):
        raise DataError(f"{path} is not a state dict: a mapping from parameter names to tensors was expected")
    return state
