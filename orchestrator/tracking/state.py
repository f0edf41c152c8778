"""What the publisher keeps in memory: MLflow runs to bring up to date (units) and the runs inside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.tracking.curves import DENSE_GROUP, DENSE_RUN, CurveFold, Point
from orchestrator.tracking.naming import published_mark
from orchestrator.tracking.remote import RemoteRun

RUNNING, FINISHED, FAILED, KILLED = "RUNNING", "FINISHED", "FAILED", "KILLED"
MAX_CURVES = 10  # seeds of a group that get curves of their own


@dataclass(kw_only=True)
class Member:
    """One run of the sweep inside a unit.

    ``fold`` is None once rows of this attempt did not come through: its curves are then read from the store.
    ``suspect``: another attempt, or another publisher, may have put points into the MLflow run before;
    ``floor`` is the step up to which it did (None: not looked up yet). ``sent`` is this attempt's own.
    """

    run_id: str
    seed: int
    pretrain_seed: int | None
    attempt: int = 0
    status: str = RUNNING
    fold: CurveFold | None = None
    suspect: bool = False
    floor: int | None = -1
    sent: int = -1
    points: list[Point] = field(default_factory=list)
    row: Mapping[str, Any] | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    started_at: int = 0
    finished_at: int = 0
    published: bool = False

    @property
    def waiting(self) -> bool:
        """Finished, but MLflow does not show it yet."""
        return self.status == FINISHED and not self.published

    @property
    def suffix(self) -> str:
        """Tells runs of one seed apart that differ in the pretraining seed."""
        return "" if self.pretrain_seed in (None, 0) else f" pretrain-{self.pretrain_seed}"


@dataclass(kw_only=True)
class Unit:
    """One MLflow run: of one run of the sweep ("run"), or of all seeds of a setting ("group")."""

    kind: str
    key: str
    axes: Mapping[str, Any]
    expected: int = 1
    members: dict[str, Member] = field(default_factory=dict)
    remote: RemoteRun | None = None
    tags: dict[str, str] = field(default_factory=dict)
    curve_labels: list[str] = field(default_factory=list)
    datasets: set[tuple[str, str]] = field(default_factory=set)
    inputs: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    deleted: bool = False
    troubles: int = 0
    published_then: int = 0
    replaces: str = ""

    @property
    def grouped(self) -> bool:
        return self.kind == "group"

    @property
    def density(self) -> int:
        """How many steps of a curve are shown one by one, see ``curves.kept``."""
        return DENSE_GROUP if self.grouped else DENSE_RUN

    def finished(self) -> Iterator[Member]:
        return (m for m in self.members.values() if m.status == FINISHED)

    def waiting(self) -> int:
        """How many finished runs MLflow does not show yet."""
        return 0 if self.deleted else sum(m.waiting for m in self.members.values())

    def mark(self) -> str:
        """The ``published`` tag that says that every finished member is shown."""
        return published_mark({m.run_id: m.attempt for m in self.finished()})

    def wanted_status(self, sweep_open: bool) -> str:
        """The MLflow status; while the sweep goes on, a group with seeds to come is still RUNNING."""
        states = {m.status for m in self.members.values()}
        incomplete = len(self.members) < self.expected
        if RUNNING in states or (sweep_open and (incomplete or self.waiting())):
            return RUNNING
        for status in (FAILED, KILLED):
            if status in states:
                return status
        return KILLED if incomplete else FINISHED

    def end_time(self) -> int | None:
        """When its last member ended, in milliseconds."""
        return max((m.finished_at for m in self.members.values()), default=0) or None

    def curve_label(self, member: Member) -> str | None:
        """What a member's curves are called after ``stream/<curve>``: "" in a run, ``/seed-3`` in a group.

        None: no curves, for the seeds of a group after the first ten that came.
        """
        if not self.grouped:
            return ""
        label = f"seed-{member.seed}{member.suffix.replace(' ', '-')}"
        if label not in self.curve_labels:
            if len(self.curve_labels) >= MAX_CURVES:
                return None
            self.curve_labels.append(label)
        return f"/{label}"


@dataclass(kw_only=True)
class SweepInfo:
    """What the publisher must know of a sweep.

    ``sizes``: group key -> planned runs, where the granularity is "group". ``artifacts``: where a new
    experiment keeps its artifacts (None: the server decides).
    """

    sweep: str
    root: str
    granularity: str = "run"
    runs: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)
    resolved: Mapping[str, Any] = field(default_factory=dict)
    experiment: str = ""
    artifacts: str | None = None


@dataclass(kw_only=True)
class Status:
    """What the publisher says of itself to the driver; ``outage`` is empty while MLflow answers."""

    waiting: int = 0
    published: int = 0
    outage: str = ""
    refused: int = 0
    first_refusal: str = ""
    deleted: int = 0
    experiment_id: str = ""
    idle: bool = False
