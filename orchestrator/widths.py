"""How wide the groups of a sweep are: decided once for each kind of runs and card, then kept.

A float32 forward over R runs and one over R' round differently. So the width of a group is part of a sweep's memory:
whatever is interrupted, resumed or moved to other workers runs at the same width again and gives the same bits. A
group with fewer runs than its width is filled up with copies that nobody reads. Only a plan that has grown, or another
size asked for, lets a width be decided anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.grouping import GroupKey
from orchestrator.store import layout
from orchestrator.store.tree import Tree
from orchestrator.types import Slot

Kept = dict[str, Any]
"""``width``, for a plan of so many runs of the kind (``planned``) and the largest group that was ``asked`` for."""


@dataclass
class Widths:
    """Runs side by side by (group, GPU); ``keep`` is handed all entries whenever one is added or changed.

    ``planned`` counts the plan's runs by group; ``asked`` is the largest group that the user wants (None: any).
    """

    kept: dict[str, Kept] = field(default_factory=dict)
    keep: Callable[[Mapping[str, Kept]], None] = lambda widths: None
    planned: Mapping[GroupKey, int] = field(default_factory=dict)
    asked: int | None = None

    @classmethod
    def of(cls, tree: Tree) -> Widths:
        """Those of the sweep whose results lie in ``tree``, kept there."""
        try:
            read = json.loads(tree.read(layout.WIDTHS))
            kept = {name: {key: entry[key] for key in ("width", "planned", "asked")} for name, entry in read.items()}
        except (FileNotFoundError, ValueError, AttributeError, KeyError, TypeError):
            kept = {}  # decided again: the same numbers up to rounding
        return cls(kept, lambda widths: tree.replace(layout.WIDTHS, json.dumps(widths, indent=1).encode()))

    def get(self, group: GroupKey, gpu: str) -> int | None:
        """The width decided for this kind of runs on this kind of GPU, if it was and still holds."""
        entry = self.kept.get(_name(group, gpu))
        if entry is None or entry["planned"] < self.planned.get(group, 0) or entry["asked"] != self.asked:
            return None
        return int(entry["width"])

    def decide(self, group: GroupKey, gpu: str, width: int) -> None:
        entry = {"width": width, "planned": self.planned.get(group, 0), "asked": self.asked}
        if self.kept.get(_name(group, gpu)) != entry:
            self.kept[_name(group, gpu)] = entry
            self.keep(self.kept)

    def halve(self, group: GroupKey, gpu: str, tried: int) -> None:
        """``tried`` runs did not fit. Slots that found out together halve it once."""
        if (self.get(group, gpu) or tried) >= tried:
            self.decide(group, gpu, max(1, tried // 2))


def card(slot: Slot) -> str:
    """What widths are kept by: the kind of GPU and the memory that a worker has of it; empty for a CPU."""
    return f"{slot.gpu_name} {round(slot.memory_bytes / 2**30)} GiB" if slot.gpu_name else ""


def _name(group: GroupKey, gpu: str) -> str:
    digest = hashlib.sha256(json.dumps([group, gpu], sort_keys=True, default=str).encode()).hexdigest()[:12]
    return f"{group[0]}/{digest}"
