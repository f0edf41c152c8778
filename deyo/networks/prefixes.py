"""Networks named with a prefix: any timm or torchvision tag, a file of the user's, the demonstration network."""

from __future__ import annotations

import difflib
from functools import partial

from deyo.networks import demo, modules
from deyo.networks.definition import HALF, NetworkDefinition
from deyo.networks.files import file_definition
from deyo.networks.hub import HubWeights
from deyo.networks.inspection import inspect_architecture
from deyo.types import ConfigError, NetworkInfo

__all__ = ["demo_definition", "file_definition", "timm_definition", "torchvision_definition"]


def timm_definition(rest: str) -> NetworkDefinition:
    """``timm:NAME.TAG``. A bare name is refused: what it loads has changed between releases (methods.md K37)."""
    import timm
    from timm.models import get_pretrained_cfg

    architecture, _, tag = rest.partition(".")
    if not timm.is_model(architecture):
        raise ConfigError(_unknown("timm", architecture, timm.list_models()))
    tags = [full.partition(".")[2] for full in timm.list_pretrained(f"{architecture}.*")]
    if tag not in tags:
        problem = f"has no tag {tag!r}" if tag else "needs a tag: the bare name means other weights by release"
        listed = "\n  ".join(f"timm:{architecture}.{t}" for t in tags) or "(none has published weights)"
        raise ConfigError(f"network timm:{rest} {problem}. Its tags:\n  {listed}")
    config = get_pretrained_cfg(rest)
    if not config.num_classes:
        raise ConfigError(f"network timm:{rest} was published without a classifier; choose another tag")
    build = partial(modules.timm_module, name=rest)
    seen = inspect_architecture(f"timm:{rest}", build, config.num_classes)
    info = NetworkInfo(
        name=f"timm:{rest}",
        family=seen.family,
        norm=seen.norm,
        num_classes=config.num_classes,
        image_size=config.input_size[-1],
    )
    head = config.classifier if isinstance(config.classifier, str) else config.classifier[0]
    return NetworkDefinition(
        info=info,
        build=build,
        mean=tuple(config.mean),
        std=tuple(config.std),
        weights=HubWeights(library="timm", name=architecture, tag=tag),
        fine_tunes=True,
        head=head,
    )


def torchvision_definition(rest: str) -> NetworkDefinition:
    """``torchvision:NAME@WEIGHTS``, for example ``torchvision:resnet50@IMAGENET1K_V2``."""
    import torchvision.models as models

    architecture, _, tag = rest.partition("@")
    known = models.list_models(module=models)
    if architecture not in known:
        raise ConfigError(_unknown("torchvision", architecture, known))
    tags = [w.name for w in models.get_model_weights(architecture)]
    if tag not in tags:
        problem = f"has no weights {tag!r}" if tag else "needs the name of its weights"
        listed = "\n  ".join(f"torchvision:{architecture}@{t}" for t in tags)
        raise ConfigError(f"network torchvision:{rest} {problem}. There are:\n  {listed}")
    weights = models.get_model_weights(architecture)[tag]
    transform = weights.transforms()
    num_classes = len(weights.meta["categories"])
    build = partial(modules.torchvision_module, name=architecture)
    seen = inspect_architecture(f"torchvision:{rest}", build, num_classes)
    info = NetworkInfo(
        name=f"torchvision:{rest}",
        family=seen.family,
        norm=seen.norm,
        num_classes=num_classes,
        image_size=transform.crop_size[0],
    )
    return NetworkDefinition(
        info=info,
        build=build,
        mean=tuple(transform.mean),
        std=tuple(transform.std),
        weights=HubWeights(library="torchvision", name=architecture, tag=tag),
        fine_tunes=True,
        head=[key for key in seen.shapes if key.endswith(".weight")][-1].removesuffix(".weight"),
    )


def demo_definition(rest: str) -> NetworkDefinition:
    """``demo:efficientnet-lite0``: 87.2 % on centre crops of the development sample of ImageNet."""
    if rest != "efficientnet-lite0":
        raise ConfigError(f"unknown network 'demo:{rest}'; there is one: demo:efficientnet-lite0")
    info = NetworkInfo(name="demo:efficientnet-lite0", family="resnet", norm="bn", num_classes=1000, image_size=224)
    return NetworkDefinition(
        info=info,
        build=partial(modules.timm_module, name="tf_efficientnet_lite0"),
        mean=HALF,
        std=HALF,
        weights=demo.weights(),
    )


def _unknown(library: str, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    hint = f"; did you mean {', '.join(f'{library}:{n}' for n in near)}?" if near else ""
    return f"{library} has no network {name!r}{hint}"
