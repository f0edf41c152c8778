"""From a network's name to the network, and to what decides its weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deyo.networks.definition import NetworkDefinition
from deyo.networks.registry import definition
from deyo.types import Benchmark, ConfigError, Network

if TYPE_CHECKING:
    from deyo.pretrain import Recipe

DEFAULT_PRETRAIN_SEED = 2024  # the authors' default seed


def load_network(
    name: str,
    *,
    weights: Path | None = None,
    cache: Path | None = None,
    pretrain_seed: int | None = None,
    benchmark: Benchmark | None = None,
) -> Network:
    """Load the network ``name`` in eval mode, on the CPU, with its normalisation.

    weights: a folder searched for weight files before any hub (default: the environment's DEYO_WEIGHTS), or
    the file itself; for a network that a recipe pretrains, its checkpoint. cache: where pretrained checkpoints
    are kept. benchmark: decides whether a recipe pretrains the network (``deyo.pretrain.recipe_for``); its
    checkpoint for ``pretrain_seed`` (default 2024) is taken from the cache, or made first if it is not there.
    Raises ``ConfigError`` for a wrong name, ``DataError`` for missing or unfitting weights.
    """
    from deyo.networks.hub import load_into
    from deyo.pretrain import recipe_for

    found = definition(name)
    recipe = recipe_for(name, benchmark.name) if benchmark is not None else None
    if recipe is not None and benchmark is not None:
        seed = DEFAULT_PRETRAIN_SEED if pretrain_seed is None else pretrain_seed
        return _pretrained(found, recipe, benchmark, seed, weights=weights, cache=cache)
    if found.weights is None:
        raise ConfigError(f"network {name!r} has no published weights: it is pretrained on a benchmark's images")
    loaded = found.weights.load(weights, cache)
    module = found.build(found.info.num_classes or 1000)
    load_into(module, loaded, f"the network {name}")
    return Network(
        info=found.info,
        module=module.eval().requires_grad_(False),
        mean=found.mean,
        std=found.std,
        num_classes=found.info.num_classes or 1000,
        sha256=loaded.sha256,
        source=loaded.source,
    )


def weights_id(name: str, benchmark: str | None) -> str:
    """What decides a network's weights, without loading them: part of a run's identity.

    A published tag stands for itself (the loaded file's sha256 is checked against the published one, or
    against the first one seen, and stored with each result); a file is named by its sha256; a network that a
    recipe pretrains on ``benchmark`` by the recipe's hash.
    """
    from deyo.pretrain import recipe_for

    recipe = recipe_for(name, benchmark) if benchmark is not None else None
    if recipe is not None:
        return f"recipe:{recipe.identity()}"
    found = definition(name)
    if found.weights is None:
        return f"unpretrained:{name}"
    return found.weights.identity()


def _pretrained(
    found: NetworkDefinition,
    recipe: Recipe,
    benchmark: Benchmark,
    seed: int,
    *,
    weights: Path | None,
    cache: Path | None,
) -> Network:
    from deyo.pretrain import pretrain, read_checkpoint

    if weights is not None and Path(weights).is_file():
        path = Path(weights)
    else:
        path = pretrain(recipe, benchmark, seed, cache=cache, weights=weights)
    return read_checkpoint(path, found, recipe)
