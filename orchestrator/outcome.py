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
    """Counts are of runs. ``done`` includes what earlier calls had committed, ``committed`` only this one's.

    ``failures`` are this call's; ``earlier_failures`` counts runs that failed before and were not tried now.
    """

    sweep: str
    status: SweepStatus
    total: int
    done: int
    committed: int
    failures: Mapping[str, Failure]
    pending: int
    seconds: float
    message: str = ""
    earlier_failures: int = 0

    @property
    def exit_code(self) -> int:
        """0: all done; 1: runs failed or were left; 130: interrupted."""
        if self.status is SweepStatus.INTERRUPTED:
            return 130
        bad = self.failures or self.earlier_failures or self.pending
        return 1 if bad or self.status is SweepStatus.STOPPED else 0


_SHOWN_AT = frozenset({1, 2, 3, 5, 10, 20, 50, 100, 200, 500}) | frozenset(range(1000, 1_000_000, 1000))


@dataclass
class FailureBoard:
    """Failures by signature, an example of each with its log; ``verb`` says what became of the runs."""

    verb: str = "failed"
    by_signature: dict[str, list[str]] = field(default_factory=dict)
    example: dict[str, Failure] = field(default_factory=dict)

    def add(self, run: PlannedRun, failure: Failure) -> str | None:
        """The line to show for this failure, if it is worth one."""
        count = self.count(run.run_id, failure)
        if count not in _SHOWN_AT:
            return None
        log = f"  log: {failure.log_path}" if failure.log_path else ""
        return f"{self.verb} ×{count} [{failure.signature}] {first_line(failure.message)} ({run.run_id}){log}"

    def count(self, run_id: str, failure: Failure) -> int:
        """How many runs have failed so, this one included."""
        runs = self.by_signature.setdefault(failure.signature, [])
        runs.append(run_id)
        self.example.setdefault(failure.signature, failure)
        return len(runs)

    def lines(self) -> list[str]:
        """One line a signature, the most frequent first."""
        order = sorted(self.by_signature, key=lambda s: -len(self.by_signature[s]))
        return [
            f"{len(self.by_signature[s])} × [{s}] {first_line(self.example[s].message)}"
            f" (for example {self.by_signature[s][0]}"
            + (f", log: {self.example[s].log_path})" if self.example[s].log_path else ")")
            for s in order
        ]


def first_line(text: str) -> str:
    return text.strip().splitlines()[0][:300] if text.strip() else "(no message)"
