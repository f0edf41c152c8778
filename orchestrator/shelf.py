"""Checkpoints that a sweep's runs start from, kept with its results.

Training again is not sure to give the same bits (another card, another host). So a sweep that goes on, wherever it
does, starts its runs from the checkpoints that it began with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.artifacts import keep_artifact
from orchestrator.store import layout
from orchestrator.store.tree import Tree
from orchestrator.types import Artifact


@dataclass(frozen=True)
class Shelf:
    """The checkpoints under ``<results>/<sweep>/pretrained/``; ``cache`` is where this host reads them."""

    tree: Tree
    cache: Path | None = None

    def has(self, key: str, stamps: Mapping[str, Any]) -> bool:
        """Whether ``get`` would find it."""
        return self.tree.exists(f"{layout.PRETRAINED}/{_file_name(key, stamps)}")

    def get(self, key: str, stamps: Mapping[str, Any]) -> Artifact | None:
        """The checkpoint ``key`` of the recipe that ``stamps`` names, as a file on this host."""
        name = _file_name(key, stamps)
        try:
            blob = self.tree.read(f"{layout.PRETRAINED}/{name}")
        except FileNotFoundError:
            return None
        digest = hashlib.sha256(blob).hexdigest()
        return keep_artifact(Artifact(key=key, path=name, sha256=digest, blob=blob), self.cache)

    def put(self, artifact: Artifact, stamps: Mapping[str, Any]) -> None:
        """Keep a checkpoint; ``artifact`` carries its bytes."""
        self.tree.replace(f"{layout.PRETRAINED}/{_file_name(artifact.key, stamps)}", artifact.blob)


def _file_name(key: str, stamps: Mapping[str, Any]) -> str:
    """Recipe, network and code decide what is trained: ``weights_id`` stands for them."""
    identity = f"{key}|{stamps.get('weights_id', '')}|{stamps.get('numerics_version', '')}"
    plain = "".join(c if c.isalnum() or c in ".-" else "_" for c in key)[:80]
    return f"{plain}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.safetensors"
