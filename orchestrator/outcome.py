"""How a sweep ended, and its failures grouped by cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from orchestrator.types import Failure, PlannedRun


class SweepStatus(StrEnum):
    """``finished``: every run was tried to its end; ``interrupted``: by a signal or ``cancel``; ``stopped``: by
    what no retry mends (full disk, no worker); what is left is run by the next ``run``."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped"


@dataclass(frozen=True, kw_only=True)
class SweepOutcome:
    """Counts are of runs. ``done`` includes those that earlier sweeps had committed, ``committed`` only this one's."""

    sweep: str
    status: SweepStatus
    total: int
    done: int
    committed: int
    failures: Mapping[str, Failure]
    pending: int
    seconds: float
    message: str = ""

    @property
    def exit_code(self) -> int:
        """0: all done; 1: runs failed or were left; 130: interrupted."""
        if self.status is SweepStatus.INTERRUPTED:
            return 130
        return 0 if self.status is SweepStatus.FINISHED and not self.failures and not self.pending else 1


_SHOWN_AT = frozenset({1, 2, 5, 10, 20, 50, 100, 200, 500}) | frozenset(range(1000, 1_000_000, 1000))


@dataclass
class FailureBoard:
    """Failures by signature. ``add`` returns the line to show, if this one is worth a line."""

    by_signature: dict[str, list[str]] = field(default_factory=dict)
    example: dict[str, Failure] = field(default_factory=dict)

    def add(self, run: PlannedRun, failure: Failure) -> str | None:
        runs = self.by_signature.setdefault(failure.signature, [])
        runs.append(run.run_id)
        self.example.setdefault(failure.signature, failure)
        if len(runs) not in _SHOWN_AT:
            return None
        log = f"  log: {failure.log_path}" if failure.log_path else ""
        return f"failed ×{len(runs)} [{failure.signature}] {first_line(failure.message)} ({run.run_id}){log}"

    def lines(self) -> list[str]:
        """One line a signature, the most frequent first."""
        order = sorted(self.by_signature, key=lambda s: -len(self.by_signature[s]))
        return [
            f"{len(self.by_signature[s])} × [{s}] {first_line(self.example[s].message)}"
            f" (for example {self.by_signature[s][0]})"
            for s in order
        ]


def first_line(text: str) -> str:
    return text.strip().splitlines()[0][:300] if text.strip() else "(no message)"
