"""What a command and all that it starts take of the host: processor time and memory, as Linux tells of processes."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from experiments.benchmarks.overhead import descendants

_UTIME, _STIME, _START = 11, 12, 19
"""Fields of /proc/PID/stat after the name in brackets, counted from 0 (proc(5))."""


class HostUse:
    """Processor seconds and most memory of a process and all below it, by looks while they live.

    What a process did after the last look at it is missing. Memory that several processes share (libraries, images in
    files) counts once: each has its share (PSS).
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._ticks: dict[tuple[int, str], int] = {}

    @property
    def processor_seconds(self) -> float:
        return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")

    def look(self, pid: int) -> None:
        """Take in how ``pid`` and all below it stand now."""
        memory = 0
        for each in {pid, *descendants(pid)}:
            with contextlib.suppress(OSError):  # it is gone
                place = Path("/proc") / str(each)
                fields = (place / "stat").read_text().rsplit(")", 1)[1].split()
                self._ticks[each, fields[_START]] = int(fields[_UTIME]) + int(fields[_STIME])
                memory += _shared_out(place / "smaps_rollup")
        self.peak_bytes = max(self.peak_bytes, memory)


def _shared_out(rollup: Path) -> int:
    """Bytes of a process, of what it shares its share; 0 of one that is ending."""
    found = re.search(r"^Pss:\s+(\d+) kB$", rollup.read_text(), re.MULTILINE)
    return 1024 * int(found.group(1)) if found else 0
