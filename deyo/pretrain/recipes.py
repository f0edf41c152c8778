"""Recipes: everything that decides a pretrained network's weights, apart from the seed and the images.

Which network is pretrained how on which benchmark:

- on ``waterbirds``, ``colored-mnist`` and ``colored-digits`` every network of timm or torchvision, by the
  authors' scripts (methods.md §2.4). On Waterbirds they start from published ImageNet weights, as in the
  paper; on the two coloured sets from random ones, so that nothing needs to be downloaded
  (``+pretrained-init`` is the paper's start, ``+random-init`` the other way round);
- on ``digits-c`` every such network, from random weights, by a short schedule;
- ``small-resnet-*`` on any benchmark that has training images, by the same short schedule;
- nothing else: other networks come with their weights.

Options of a name: ``+plpd`` (T20: after a quarter of the epochs only samples with PLPD > 0.2 count),
``+epochs=N``, ``+steps=N`` (stop after N steps: the reduced form).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from deyo.networks.definition import Channels
from deyo.networks.registry import PRETRAINING_FLAGS, PRETRAINING_NUMBERS, definition, split_name
from deyo.types import ConfigError

MNIST_MEAN: Channels = (0.1307, 0.1307, 0.0)
MNIST_STD: Channels = (0.3081, 0.3081, 0.3081)
DIGITS_MEAN: Channels = (0.2, 0.2, 0.2)
DIGITS_STD: Channels = (0.4, 0.4, 0.4)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a network is pretrained: SGD on plain cross entropy, shuffled, no augmentation, the final epoch.

    ``initial`` is "random", or the identity of published weights, whose classifier is replaced.
    ``schedule``: "constant", or "one-cycle" (linear warm-up over the first 30 % of the steps, then a cosine to
    zero). ``plpd_from_epoch``: from this epoch on (counted from 0) the loss is the mean over samples with
    PLPD > ``plpd_threshold`` only, patch-shuffled in ``plpd_patches``² tiles (methods.md §4); None: never.
    ``max_steps`` ends the training early. ``mean`` and ``std`` normalise pixels in [0, 1].
    """

    network: str
    benchmark: str
    initial: str
    epochs: int
    batch_size: int
    learning_rate: float
    momentum: float
    weight_decay: float
    schedule: str
    mean: Channels
    std: Channels
    plpd_from_epoch: int | None = None
    plpd_threshold: float = 0.2
    plpd_patches: int = 4
    max_steps: int | None = None
    version: int = 1

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, as kept in a checkpoint's metadata."""
        return json.loads(json.dumps(asdict(self)))

    def identity(self) -> str:
        """16 hex digits that change with every field."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


_AUTHORS = {
    "batch_size": 64,
    "learning_rate": 1e-3,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "schedule": "constant",
}
_SHORT = {
    "epochs": 12,
    "batch_size": 64,
    "learning_rate": 0.05,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "schedule": "one-cycle",
}
_COLORED = {"mean": MNIST_MEAN, "std": MNIST_STD}
_DIGITS = {"mean": DIGITS_MEAN, "std": DIGITS_STD}
# benchmark -> (starts from published weights?, fields)
_BY_BENCHMARK: dict[str, tuple[bool, dict[str, Any]]] = {
    "waterbirds": (True, {**_AUTHORS, "epochs": 200}),
    "colored-mnist": (False, {**_AUTHORS, **_COLORED, "epochs": 20}),
    "colored-digits": (False, {**_AUTHORS, **_COLORED, "epochs": 20}),
    "digits-c": (False, {**_SHORT, **_DIGITS}),
}
RECIPE_BENCHMARKS = tuple(_BY_BENCHMARK)
"""Benchmarks on which every network of timm or torchvision is pretrained."""


def recipe_for(network_name: str, benchmark_name: str) -> Recipe | None:
    """The recipe by which ``network_name`` is pretrained for a benchmark, or None if it is not.

    Cheap. Raises ``ConfigError`` for an unknown network, and for pretraining options of a network that is not
    pretrained here.
    """
    found = definition(network_name)
    base, options = split_name(network_name)
    wanted = {k: v for k, v in options.items() if k in (*PRETRAINING_FLAGS, *PRETRAINING_NUMBERS)}
    base = "+".join([base, *(k for k in options if k not in wanted)])
    published, fields = _BY_BENCHMARK.get(benchmark_name, (False, None))
    if found.weights is None:
        normalisation = {k: v for k, v in (fields or {}).items() if k in ("mean", "std")}
        fields, published = {**_SHORT, **normalisation}, False
    elif fields is None or not found.fine_tunes:
        if wanted:
            raise ConfigError(
                f"network {network_name!r} is not pretrained for {benchmark_name}: "
                f"it comes with its weights, so '+{next(iter(wanted))}' has no meaning here"
            )
        return None
    if "random-init" in wanted and "pretrained-init" in wanted:
        raise ConfigError(f"network {network_name!r}: choose one of +random-init and +pretrained-init")
    published = "pretrained-init" in wanted or (published and "random-init" not in wanted)
    if published and found.weights is None:
        raise ConfigError(f"network {network_name!r} has no published weights to start from")
    initial = found.weights.identity() if published and found.weights is not None else "random"
    fields = {"mean": found.mean, "std": found.std, **fields}
    recipe = Recipe(network=base, benchmark=benchmark_name, initial=initial, **fields)
    return _with_options(recipe, wanted)


def _with_options(recipe: Recipe, options: dict[str, str | None]) -> Recipe:
    if options.get("epochs"):
        recipe = replace(recipe, epochs=int(options["epochs"] or 0))
    if options.get("steps"):
        recipe = replace(recipe, max_steps=int(options["steps"] or 0))
    if "plpd" in options:
        recipe = replace(recipe, plpd_from_epoch=recipe.epochs // 4)
    return recipe
