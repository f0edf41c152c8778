"""What ``fsck`` says of a file."""

from __future__ import annotations

from dataclasses import dataclass

DAMAGED = "damaged"
STRAY = "stray"
TRUNCATED = "truncated"
EMPTY = "zero-byte"
LEFTOVER = "left over"
SUPERSEDED = "superseded"
UNFINISHED = "unfinished"

DELETABLE = frozenset({STRAY, EMPTY, LEFTOVER, SUPERSEDED})
"""What ``clean`` deletes: no reader uses such files, and no committed result rests on them."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A file that is not as it should be; ``note`` says what it means. ``serious`` ones make fsck exit with 1."""

    kind: str
    path: str
    note: str
    run_id: str = ""

    @property
    def serious(self) -> bool:
        return self.kind not in (SUPERSEDED, UNFINISHED, LEFTOVER)
