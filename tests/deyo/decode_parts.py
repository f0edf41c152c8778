"""Parts of sources that children read in tests: some end the process that reads them."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SHAPE = (4, 4, 3)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Images whose pixels are their index.

    ``trouble`` happens where image ``at`` is among them: in every process ("kill", "raise"), in the first one only
    ("kill once", by the file ``mark``), or until there is that file ("wait").
    """

    indices: np.ndarray
    mark: Path
    trouble: str = ""
    at: int = -1

    def read(self) -> tuple[np.ndarray, dict[int, str]]:
        if self.at in self.indices:
            self._meet()
        pixels = np.broadcast_to(
            (self.indices % 251).astype(np.uint8)[:, None, None, None], (len(self.indices), *SHAPE)
        )
        return pixels, {}

    @property
    def files(self) -> list[str]:
        return [f"image {i}" for i in self.indices]

    def _meet(self) -> None:
        if self.trouble == "raise":
            raise KeyError("not what unreadable images raise")
        while self.trouble == "wait" and not self.mark.exists():
            time.sleep(0.01)
        if self.trouble == "kill" or (self.trouble == "kill once" and not self.mark.exists()):
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class PartSource:
    """A portable source of ``count`` images; notes which of them are read in this process."""

    portable = True
    groups, skipped = None, 0

    def __init__(self, count: int, mark: Path, trouble: str = "", at: int = -1) -> None:
        self.shape = (count, *SHAPE)
        self.how = {"mark": mark, "trouble": trouble, "at": at}
        self.read_here: list[int] = []

    def part(self, indices: np.ndarray) -> Part:
        return Part(indices=indices, **self.how)

    def read(self, indices: np.ndarray) -> tuple[np.ndarray, dict[int, str]]:
        self.read_here += indices.tolist()
        return self.part(indices).read()
