"""What workers have to say to the person who watches, each thing once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrator.types import Notice


@dataclass
class Told:
    """Hands each text to ``say`` once. Of arrays that have no room on a disk the first is told at once, and at the
    end how many there were."""

    say: Callable[[str], None]
    _texts: set[str] = field(default_factory=set)
    _arrays: dict[str, None] = field(default_factory=dict)

    def hear(self, notice: Notice) -> None:
        if notice.text in self._texts:
            return
        self._texts.add(notice.text)
        first = not self._arrays
        if notice.array:
            self._arrays[notice.array] = None
        if first or not notice.array:
            self.say(notice.text)

    def close(self) -> None:
        """Nothing more is to come."""
        if len(self._arrays) > 1:
            names = list(self._arrays)
            listed = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
            self.say(f"{len(names)} prepared arrays had no room and were read from their source: {listed}")
        self._arrays = {}
