"""Says why nothing is at work, where nothing else is shown for long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

SAY_AFTER, SAY_EVERY = 30.0, 600.0


@dataclass
class Waiting:
    """Told again and again why nothing is at work (empty: something is), it hands a line to ``say`` after
    ``SAY_AFTER`` seconds, and every ``SAY_EVERY`` seconds from then on."""

    say: Callable[[str], None]
    _due: float | None = None

    def hear(self, why: str, now: float) -> None:
        if not why:
            self._due = None
        elif self._due is None:
            self._due = now + SAY_AFTER
        elif now >= self._due:
            self._due = now + SAY_EVERY
            self.say(f"waiting: {why}")
