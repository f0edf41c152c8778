"""The networks that SPEC.md lists: names, flags and recipes from the registry, and the published anchors."""

from __future__ import annotations

from collections.abc import Iterable

from deyo.anchors import ANCHORS
from deyo.networks.definition import HALF, IMAGENET_MEAN, IMAGENET_STD, NetworkDefinition

NORMS = {"bn": "BatchNorm", "gn": "GroupNorm", "ln": "LayerNorm"}
SHARES = {(IMAGENET_MEAN, IMAGENET_STD): "ImageNet's", (HALF, HALF): "mean = std = 0.5"}


def table() -> str:
    """A row for each name, variant and form of names."""
    from deyo.networks.registry import PREFIXES

    lines = [
        "| network | norm | weights | normalisation | no-adapt at 5 / 3 (%) | contrast at 5 | published by |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [_row(written, found, name) for name, written, found in _named()]
    for form in PREFIXES.values():
        lines.append(f"| `{form.written}` | | {form.weights} | {form.normalisation} | | | |")
    return "\n".join(lines)


def flags() -> str:
    """A row for each flag of a network that is pretrained here."""
    from deyo.networks.registry import PRETRAINING_FLAGS, PRETRAINING_NUMBERS

    lines = ["| flag | meaning |", "|---|---|"]
    lines += [f"| `+{flag}` | {doc} |" for flag, doc in PRETRAINING_FLAGS.items()]
    lines += [f"| `+{flag}=NUMBER` | {doc} |" for flag, doc in PRETRAINING_NUMBERS.items()]
    return "\n".join(lines)


def recipes() -> str:
    """A row for each benchmark that networks are pretrained on."""
    from deyo.pretrain.recipes import RECIPE_BENCHMARKS, recipe_for

    lines = ["| on | networks | start | epochs | batch | learning rate | schedule |", "|---|---|---|---|---|---|---|"]
    for benchmark, networks, example in [
        *((name, "all but `file:` and `demo:`", "resnet50-bn") for name in RECIPE_BENCHMARKS),
        ("others with training images", "`small-resnet-bn`, `small-resnet-gn`", "small-resnet-bn"),
    ]:
        recipe = recipe_for(example, benchmark)
        assert recipe is not None
        start = "random weights" if recipe.initial == "random" else "published ImageNet weights"
        lines.append(
            f"| {benchmark} | {networks} | {start} | {recipe.epochs} | {recipe.batch_size} | {recipe.learning_rate:g} "
            f"| {recipe.schedule} |"
        )
    return "\n".join(lines)


def architectures() -> str:
    """What may stand after the @ of a ``file:`` network."""
    from deyo.networks.files import architecture_names

    return f"ARCHITECTURE is one of {', '.join(f'`{name}`' for name in architecture_names())}."


def _named() -> Iterable[tuple[str, str, NetworkDefinition]]:
    """(name, how it is written, definition): built-in names, their variants, and other names with an anchor."""
    from deyo.networks.registry import BUILT_IN, definition

    for name in BUILT_IN:
        found = definition(name)
        variants = {f"{name}+{flag}": definition(f"{name}+{flag}") for flag in found.variants}
        same = [variant for variant, other in variants.items() if _decides(other) == _decides(found)]
        yield name, ", ".join(f"`{n}`" for n in (name, *same)), found
        for variant, other in variants.items():
            if variant not in same:
                yield variant, f"`{variant}`", other
    for name in ANCHORS:
        if ":" in name:
            yield name, f"`{name}`", definition(name)


def _decides(found: NetworkDefinition) -> tuple[object, ...]:
    return found.weights, found.mean, found.std


def _row(written: str, found: NetworkDefinition, name: str) -> str:
    pretrained = found.weights is None
    weights = "pretrained by a recipe" if found.weights is None else f"`{found.weights.identity()}`"
    shares = "the benchmark's" if pretrained else SHARES[(found.mean, found.std)]
    anchor = ANCHORS.get(name)
    third = "–" if anchor is None or anchor.severity_3 is None else f"{anchor.severity_3:.1f}"
    numbers = ("", "", "")
    if anchor is not None:
        numbers = f"{anchor.severity_5:.1f} / {third}", f"{anchor.contrast:.1f}", anchor.source
    return f"| {written} | {NORMS[found.info.norm]} | {weights} | {shares} | {' | '.join(numbers)} |"
