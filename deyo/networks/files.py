"""``file:PATH.safetensors[@ARCHITECTURE]``: weights in a file of the user's.

The architecture is named after an ``@``, in a sidecar ``PATH.json``, or in the file's own metadata, under the
keys of ``FIELDS``; the first of these that says something wins.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deyo.networks import modules
from deyo.networks.definition import HALF, IMAGENET_MEAN, IMAGENET_STD, Channels, FileWeights, NetworkDefinition
from deyo.networks.hub import weights_folder
from deyo.networks.inspection import inspect_architecture
from deyo.types import ConfigError, DataError, NetworkInfo

if TYPE_CHECKING:
    from torch import nn

FIELDS = ("architecture", "arguments", "num_classes", "mean", "std", "image_size")
CIFAR_DEPTHS = (20, 32, 44, 56, 110)
CIFAR_GN = "cifar-resnet26-gn"


@dataclass(frozen=True)
class Architecture:
    """What a name after the ``@`` stands for: ``build(num_classes)`` makes the module, the rest are its defaults
    (``mean`` and ``std`` for pixels in [0, 1], ``image_size`` in pixels)."""

    build: Callable[[int], nn.Module]
    num_classes: int
    mean: Channels = IMAGENET_MEAN
    std: Channels = IMAGENET_STD
    image_size: int | None = None


def architecture_names() -> list[str]:
    """What may stand after the ``@`` of a ``file:`` network."""
    from deyo.networks.registry import BUILT_IN

    cifar = [f"cifar-resnet{depth}" for depth in CIFAR_DEPTHS]
    return [*BUILT_IN, *cifar, CIFAR_GN, "timm:NAME", "torchvision:NAME"]


def file_definition(rest: str) -> NetworkDefinition:
    """Raises ``ConfigError`` if the architecture is not named or unknown, ``DataError`` for a missing file."""
    written, at, option = rest.rpartition("@")
    if not at or "/" in option or option.endswith(".safetensors"):
        written, option = rest, ""
    path = find_file(written)
    notes = _notes(path)
    if option:
        notes = {**notes, "architecture": option}
    if not notes.get("architecture"):
        raise ConfigError(_no_architecture(rest))
    shape = build_architecture(str(notes["architecture"]), notes.get("arguments") or {})
    num_classes = int(notes.get("num_classes") or _classes_in(path, shape))
    seen = inspect_architecture(f"file:{rest}", shape.build, num_classes)
    info = NetworkInfo(
        name=f"file:{rest}",
        family=seen.family,
        norm=seen.norm,
        num_classes=num_classes,
        image_size=notes.get("image_size") or shape.image_size,
    )
    mean, std = _channels(path, notes, "mean", shape.mean), _channels(path, notes, "std", shape.std)
    bound = json.dumps([notes["architecture"], notes.get("arguments"), num_classes, mean, std], sort_keys=True)
    return NetworkDefinition(
        info=info, build=shape.build, mean=mean, std=std, weights=FileWeights(path=path, bound=bound)
    )


def find_file(written: str) -> Path:
    """The file that ``written`` names: with variables and ``~`` expanded, as it stands or in DEYO_WEIGHTS."""
    path = Path(os.path.expandvars(written)).expanduser()
    if path.suffix != ".safetensors":
        raise ConfigError(
            f"network 'file:{written}': a .safetensors file is expected. Convert a checkpoint by "
            f"safetensors.torch.save_file(module.state_dict(), 'weights.safetensors')"
        )
    folder = weights_folder()
    places = [path] if path.is_absolute() or folder is None else [path, folder / path]
    for place in places:
        if place.is_file():
            return place
    raise DataError(
        f"network 'file:{written}': no such file; looked at {', '.join(str(p) for p in places)}. "
        f"Relative paths are also looked up in the folder that DEYO_WEIGHTS names"
    )


def build_architecture(name: str, arguments: Mapping[str, Any]) -> Architecture:
    """The architecture called ``name`` (see ``architecture_names``); raises ``ConfigError`` if unknown."""
    from deyo.networks.registry import BUILT_IN

    library, colon, rest = name.partition(":")
    if name in BUILT_IN:
        known = BUILT_IN[name]()
        return Architecture(known.build, known.info.num_classes or 10, known.mean, known.std, known.info.image_size)
    if name in (f"cifar-resnet{depth}" for depth in CIFAR_DEPTHS):
        return Architecture(partial(_cifar, depth=int(name.removeprefix("cifar-resnet"))), 10, image_size=32)
    if name == CIFAR_GN:
        return Architecture(_cifar_gn, 10, HALF, HALF, image_size=32)
    if colon and library == "timm":
        return _timm_architecture(rest, dict(arguments))
    if colon and library == "torchvision":
        return _torchvision_architecture(rest)
    raise ConfigError(f"unknown architecture {name!r}; there are: {', '.join(architecture_names())}")


def _timm_architecture(name: str, arguments: dict[str, Any]) -> Architecture:
    import timm
    from timm.models import get_pretrained_cfg

    if not timm.is_model(name):
        raise ConfigError(f"timm has no architecture {name!r}")
    config = get_pretrained_cfg(name)
    build = partial(modules.timm_module, name=name, arguments=arguments)
    return Architecture(build, 1000, tuple(config.mean), tuple(config.std), config.input_size[-1])


def _torchvision_architecture(name: str) -> Architecture:
    import torchvision.models as models

    if name not in models.list_models(module=models):
        raise ConfigError(f"torchvision has no architecture {name!r}")
    return Architecture(partial(modules.torchvision_module, name=name), 1000, image_size=224)


def _cifar(num_classes: int, *, depth: int) -> nn.Module:
    from deyo.networks.cifar import CifarResNet

    return CifarResNet(depth, num_classes)


def _cifar_gn(num_classes: int) -> nn.Module:
    from deyo.networks.cifar import PreActivationResNet

    return PreActivationResNet(26, num_classes)


def _notes(path: Path) -> dict[str, Any]:
    """What the sidecar, else the metadata, says under ``FIELDS``."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as stream:
            metadata = stream.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} cannot be read as safetensors ({error}); is it truncated?") from error
    notes: dict[str, Any] = {}
    for key in FIELDS:
        if key in metadata:
            notes[key] = _parsed(metadata[key])
    sidecar = path.with_suffix(".json")
    if sidecar.is_file():
        try:
            said = json.loads(sidecar.read_text())
        except ValueError as error:
            raise DataError(f"{sidecar} is not JSON: {error}") from error
        unknown = [key for key in said if key not in FIELDS]
        if unknown:
            raise ConfigError(f"{sidecar}: unknown key {unknown[0]!r}; allowed: {', '.join(FIELDS)}")
        notes.update(said)
    return notes


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _channels(path: Path, notes: Mapping[str, Any], key: str, default: Channels) -> Channels:
    value = notes.get(key)
    if value is None:
        return default
    values = [value] * 3 if isinstance(value, int | float) else list(value)
    if len(values) != 3 or not all(isinstance(v, int | float) for v in values):
        raise ConfigError(f"{path}: {key} is {value!r}; one number or three (per channel) were expected")
    return tuple(float(v) for v in values)


def _classes_in(path: Path, shape: Architecture) -> int:
    """Number of classes of the weights: where only the last layer's first dimension differs, it is that."""
    from safetensors import safe_open

    default = inspect_architecture(str(path), shape.build, shape.num_classes).shapes
    with safe_open(path, "numpy") as stream:
        found = {key: tuple(stream.get_slice(key).get_shape()) for key in stream.keys() if key in default}  # noqa: SIM118
    different = {found[key][0] for key in found if found[key] != default[key] and found[key]}
    return different.pop() if len(different) == 1 else shape.num_classes


def _no_architecture(rest: str) -> str:
    return (
        f"network 'file:{rest}': which architecture do these weights belong to? Write it after an @, "
        f"as in file:{rest}@timm:resnet26, or into {Path(rest).stem}.json beside the file as "
        f'{{"architecture": "timm:resnet26", "mean": 0.5, "std": 0.5}}. '
        f"There are: {', '.join(architecture_names())}"
    )
