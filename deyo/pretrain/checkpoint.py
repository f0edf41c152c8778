"""Checkpoints of pretraining: safetensors files that hold their recipe; written whole or not at all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deyo.benchmarks.info import default_cache
from deyo.networks.definition import LoadedWeights, NetworkDefinition, file_sha256, read_state
from deyo.networks.hub import load_into
from deyo.pretrain.recipes import Recipe
from deyo.types import DataError, ImageSet, Network

if TYPE_CHECKING:
    from torch import Tensor


def checkpoint_path(recipe: Recipe, images: ImageSet, seed: int, cache: Path | None = None) -> Path:
    """Where the checkpoint of a recipe, a set of training images and a seed is kept."""
    name = re.sub(r"[^A-Za-z0-9.-]+", "_", recipe.network)[:60]
    images_id = images.fingerprint[:12] or f"n{len(images)}"
    folder = (Path(cache) if cache is not None else default_cache()) / "pretrained"
    return folder / f"{name}-{recipe.benchmark}-{recipe.identity()}-{images_id}-seed{seed}.safetensors"


def write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Atomic: readers see the old file or the whole new one."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in metadata.items()}
    try:
        save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, temporary, texts)
        _sort_header(temporary)
        with open(temporary, "rb") as stream:
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _sort_header(path: Path) -> None:
    """Put the header of a safetensors file in order.

    The library writes metadata in an order of its own that changes from call to call; the same weights must be
    the same bytes, since a file's sha256 names them.
    """
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.dumps(json.loads(raw[8 : 8 + size]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + size :])


def read_metadata(path: Path) -> dict[str, Any]:
    """What ``write`` was given, JSON decoded where it is JSON. Raises ``DataError`` for a damaged file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as stream:
            texts = stream.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise DataError(f"the checkpoint {path} is damaged ({error}); delete it to train again") from error
    return {key: _decoded(text) for key, text in texts.items()}


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_checkpoint(path: Path, found: NetworkDefinition, recipe: Recipe) -> Network:
    """The network of a finished checkpoint. Raises ``DataError`` if it was made by another recipe."""
    metadata = read_metadata(path)
    if metadata.get("recipe") != recipe.to_json():
        said = metadata.get("recipe") or {}
        differing = [k for k, v in recipe.to_json().items() if said.get(k) != v] if isinstance(said, dict) else []
        raise DataError(
            f"the checkpoint {path} was made by another recipe (differs in {', '.join(differing) or 'all'})"
        )
    num_classes = int(metadata["num_classes"])
    module = found.build(num_classes)
    digest = file_sha256(path)
    load_into(module, LoadedWeights(state=read_state(path), sha256=digest, source=path.name), found.info.name)
    return Network(
        info=found.info,
        module=module.eval().requires_grad_(False),
        mean=recipe.mean,
        std=recipe.std,
        num_classes=num_classes,
        sha256=digest,
        source=path.name,
    )
