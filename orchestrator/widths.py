"""How wide the groups of a sweep are: decided once for each kind of runs and card, then kept.

A float32 forward over R runs and one over R' round differently. So the width of a group is part of a sweep's memory:
whatever is interrupted, resumed or moved to other workers runs at the same width again and gives the same bits. A
group with fewer runs than its width is filled up with copies that nobody reads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.store import layout
from orchestrator.store.tree import Tree


@dataclass
class Widths:
    """Runs side by side by (group, GPU); ``keep`` is handed all of them whenever one is added or changed."""

    kept: dict[str, int] = field(default_factory=dict)
    keep: Callable[[Mapping[str, int]], None] = lambda widths: None

    @classmethod
    def of(cls, tree: Tree) -> Widths:
        """Those of the sweep whose results lie in ``tree``, kept there."""
        try:
            kept = {str(name): int(width) for name, width in json.loads(tree.read(layout.WIDTHS)).items()}
        except (FileNotFoundError, ValueError, AttributeError):
            kept = {}  # decided again: the same numbers up to rounding
        return cls(kept, lambda widths: tree.replace(layout.WIDTHS, json.dumps(widths, indent=1).encode()))

    def get(self, group: tuple[Any, ...], gpu: str) -> int | None:
        """The width decided for this kind of runs on this kind of GPU, if it was."""
        return self.kept.get(_name(group, gpu))

    def decide(self, group: tuple[Any, ...], gpu: str, width: int) -> None:
        name = _name(group, gpu)
        if self.kept.get(name) != width:
            self.kept[name] = width
            self.keep(self.kept)

    def cap(self, width: int) -> None:
        """No group wider than ``width``: what a user asks for comes before what was kept."""
        if any(kept > width for kept in self.kept.values()):
            self.kept = {name: min(kept, width) for name, kept in self.kept.items()}
            self.keep(self.kept)

    def halve(self, group: tuple[Any, ...], gpu: str, tried: int) -> None:
        """``tried`` runs did not fit. Slots that found out together halve it once."""
        if (self.get(group, gpu) or tried) >= tried:
            self.decide(group, gpu, max(1, tried // 2))


def _name(group: tuple[Any, ...], gpu: str) -> str:
    digest = hashlib.sha256(json.dumps([group, gpu], sort_keys=True, default=str).encode()).hexdigest()[:12]
    return f"{group[0]}/{digest}"
