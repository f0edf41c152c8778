"""The types that cross the orchestrator's rooms: a run, a plan, what workers send, and the protocols.

Spec -> plan -> scheduler -> executor (workers) -> store -> tracker and tables: each room sees the others only
through what stands here. Nothing here imports Ray, MLflow or torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One adaptation run, fully resolved: every field decides its numbers, except ``label``.

    ``corruption`` and ``severity`` are None where the benchmark has no such axis or the stream spans several
    corruptions (mixed, continual), which ``corruptions`` then lists. ``settings`` holds every field of the
    method's settings dataclass after resolution (JSON values). ``method`` is the registry name, ``label``
    the name in tables (the method, or the variant's label in ablations and sensitivity sweeps).
    ``benchmark_options`` and ``scenario_options`` hold JSON values (for example ``imbalance_ratio``); paths
    of data are not among them. ``pretrain_seed`` is set for networks that the project pretrains itself.
    ``max_images`` cuts the stream (reduced runs), and is None for the whole of it.
    """

    benchmark: str
    scenario: str
    model: str
    method: str
    label: str
    settings: Mapping[str, Any]
    seed: int
    batch_size: int
    corruption: str | None = None
    severity: int | None = None
    corruptions: tuple[str, ...] = ()
    benchmark_options: Mapping[str, Any] = field(default_factory=dict)
    scenario_options: Mapping[str, Any] = field(default_factory=dict)
    pretrain_seed: int | None = None
    protocol: str = "official"
    precision: str = "tf32"
    max_images: int | None = None
    record_samples: bool = False


class RunStatus(StrEnum):
    """What a plan says of a run."""

    NEW = "new"
    DONE = "done"
    FAILED = "failed"
    STALE = "stale"


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run of the plan with its identity (``run_id``: 16 hex digits), status and the reason for it.

    ``aliases`` are the labels of duplicates merged into this run. ``stamps`` are what the identity rests on
    beside the config, and what is compared later to say what is stale: ``config_id`` (the hash of the config
    alone), ``weights_id``, ``numerics_version``, ``code_digest``. The store keeps them with the commit.
    """

    run_id: str
    config: RunConfig
    status: RunStatus
    reason: str = ""
    duplicates: int = 0
    aliases: tuple[str, ...] = ()
    stamps: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All runs of a sweep, merged and in spec order. ``todo`` is what ``run`` would run."""

    sweep: str
    runs: tuple[PlannedRun, ...]
    merged_duplicates: int = 0

    @property
    def todo(self) -> tuple[PlannedRun, ...]:
        return tuple(r for r in self.runs if r.status in (RunStatus.NEW, RunStatus.STALE))


class FailureClass(StrEnum):
    """Classes of failure; each has its own policy in ``orchestrator.attempts``."""

    CONFIG = "config"
    DATA = "data"
    CUDA_OOM = "cuda-oom"
    HOST_OOM = "host-oom"
    CUDA_STICKY = "cuda-sticky"
    WORKER_LOST = "worker-lost"
    NODE_LOST = "node-lost"
    TIMEOUT = "timeout"
    INFRASTRUCTURE = "infrastructure"
    ERROR = "error"
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why an attempt ended without a result. ``signature`` groups failures of one cause."""

    kind: FailureClass
    message: str
    signature: str = ""
    traceback: str = ""
    log_path: str = ""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of one run in flight. ``grain`` is "batches" or "samples" (see ``orchestrator.schema``)."""

    run_id: str
    grain: str
    batch: pa.RecordBatch


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """State of a run in mid-stream: ``blob`` (safetensors) restores it after ``step`` batches."""

    run_id: str
    step: int
    blob: bytes


@dataclass(frozen=True, kw_only=True)
class RunFinished:
    """A run's ``runs`` row, as far as the worker knows it (see ``orchestrator.schema.RUNS``)."""

    run_id: str
    row: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunFailed:
    """A run that failed while its group went on."""

    run_id: str
    failure: Failure


@dataclass(frozen=True, kw_only=True)
class LogText:
    """What a run printed."""

    run_id: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A pretraining checkpoint made during the sweep: the same bytes for every run that starts from it.

    ``key`` names the recipe and seed (``orchestrator.grouping.pretrain_key``). ``blob`` holds the safetensors
    file where it has to travel between hosts, and is empty where ``path`` can be read as it stands.
    """

    key: str
    path: str
    sha256: str
    blob: bytes = b""


@dataclass(frozen=True, kw_only=True)
class MemoryMeasured:
    """A group of ``runs`` runs took ``peak_bytes`` at most, resident images apart."""

    runs: int
    peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class Notice:
    """What the person who watches the sweep is to be told, once for each text.

    ``array`` is the prepared array that has no room on a worker's disk, if it is about one.
    """

    text: str
    array: str = ""


Message = Rows | Checkpoint | RunFinished | RunFailed | LogText | Artifact | MemoryMeasured | Notice


@dataclass(frozen=True, kw_only=True)
class GroupTask:
    """Runs that one worker executes side by side. ``attempts`` and ``resume`` are keyed by run_id.

    ``width`` is the R of their forwards: what the group has less of is filled up with copies (0: as many as the
    runs). ``locations`` are the paths of data and weights by name; ``artifacts`` are the checkpoints that the runs
    start from, by ``Artifact.key``. ``checkpoint_seconds`` is the time between checkpoints of a long run. ``ahead`` are
    runs of later tasks, one for each image set that may be prepared meanwhile, soonest first.
    """

    task_id: str
    runs: tuple[PlannedRun, ...]
    attempts: Mapping[str, int]
    resume: Mapping[str, Checkpoint] = field(default_factory=dict)
    locations: Mapping[str, str] = field(default_factory=dict)
    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    checkpoint_seconds: float = 120.0
    skip_bad: bool = False
    width: int = 0
    ahead: tuple[RunConfig, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ProbeTask:
    """Measures what memory a few steps of ``run`` take at small group sizes; yields ``MemoryMeasured``.

    ``ahead`` as in ``GroupTask``.
    """

    task_id: str
    run: PlannedRun
    locations: Mapping[str, str] = field(default_factory=dict)
    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    skip_bad: bool = False
    ahead: tuple[RunConfig, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PretrainTask:
    """Pretraining of one network, done once before the runs that start from it; yields an ``Artifact``."""

    task_id: str
    key: str
    model: str
    benchmark: str
    seed: int
    benchmark_options: Mapping[str, Any] = field(default_factory=dict)
    locations: Mapping[str, str] = field(default_factory=dict)


Task = GroupTask | ProbeTask | PretrainTask


@dataclass(frozen=True, kw_only=True)
class CommitInfo:
    """What the store knows of a committed run without reading its rows.

    ``stamps`` are those of its ``PlannedRun`` and the provenance columns of its ``runs`` row (schema.py).
    """

    run_id: str
    attempt: int
    finished_at: str
    stamps: Mapping[str, Any]


class Store(Protocol):
    """The result store of one sweep; one writer (the driver)."""

    root: str

    def write_spec(self, text: str, resolved: Mapping[str, Any]) -> None: ...

    def write_plan(self, plan: Plan) -> None:
        """Keep the plan: aggregates take labels and expected seeds from it."""

    def committed(self) -> Mapping[str, CommitInfo]: ...

    def failures(self) -> Mapping[str, Failure]:
        """The last failure of each run that has no commit."""

    def next_attempt(self, run_id: str) -> int: ...

    def begin(self, run: PlannedRun, attempt: int) -> None: ...

    def append(self, run_id: str, attempt: int, grain: str, batch: pa.RecordBatch) -> None: ...

    def append_log(self, run_id: str, attempt: int, text: str) -> None: ...

    def save_checkpoint(self, run_id: str, attempt: int, checkpoint: Checkpoint) -> None: ...

    def load_checkpoint(self, run_id: str) -> Checkpoint | None: ...

    def commit(self, run: PlannedRun, attempt: int, row: Mapping[str, Any]) -> bool:
        """Atomic, once: False if another attempt was committed before (this one is then superseded)."""

    def fail(self, run_id: str, attempt: int, failure: Failure) -> None: ...

    def log_path(self, run_id: str, attempt: int) -> str:
        """Where ``append_log`` of an attempt goes, to be shown with a failure."""

    def flush(self) -> None:
        """Make rows of running runs readable (marked partial), compact what is due, refresh aggregates."""

    def close(self) -> None: ...


class Tracker(Protocol):
    """Follows a sweep as it goes (MLflow, or nothing). No method may block or raise into the driver."""

    def sweep_started(self, sweep: str, plan: Plan, resolved_spec: Mapping[str, Any]) -> None: ...

    def run_started(self, run: PlannedRun, attempt: int) -> None: ...

    def rows(self, run_id: str, attempt: int, grain: str, batch: pa.RecordBatch) -> None: ...

    def run_finished(self, run: PlannedRun, attempt: int, row: Mapping[str, Any]) -> None: ...

    def run_failed(self, run: PlannedRun, attempt: int, failure: Failure) -> None: ...

    def sweep_finished(self, status: str) -> None: ...

    def degraded(self) -> str | None:
        """None, or the line to show while tracking does not keep up or is down."""

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A place where one group runs at a time: a GPU (or a share of one), or CPU cores."""

    slot_id: str
    node: str
    device: str
    gpu_name: str = ""
    memory_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class SlotJoined:
    slot: Slot


@dataclass(frozen=True, kw_only=True)
class SlotLost:
    slot_id: str
    failure: Failure


@dataclass(frozen=True, kw_only=True)
class TaskMessage:
    task_id: str
    message: Message


@dataclass(frozen=True, kw_only=True)
class TaskEnded:
    """The task's stream is over; ``failure`` says why if runs of it neither finished nor failed."""

    task_id: str
    slot_id: str
    failure: Failure | None = None


@dataclass(frozen=True, kw_only=True)
class SlotIdle:
    """The task's last messages, which follow, are on their way: its slot can take another task meanwhile."""

    task_id: str
    slot_id: str


Event = SlotJoined | SlotLost | SlotIdle | TaskMessage | TaskEnded


class Executor(Protocol):
    """Where groups run: in this process, on a Ray cluster, or simulated in virtual time.

    ``trouble`` says what last kept a worker from starting.
    """

    trouble: str

    def start(self, task: Task, slot: Slot) -> None: ...

    def poll(self, timeout: float) -> Sequence[Event]: ...

    def cancel(self, task_id: str) -> None: ...

    def expected(self) -> int:
        """How many slots there are, those included that are about to join."""

    def want(self, tasks: int) -> None:
        """How many slots the driver could use now; where sweeps share a cluster, others may have the rest."""

    def excuse(self) -> str:
        """Why there may be no slot yet though all is well (workers start, other sweeps go first); else empty."""

    def now(self) -> float:
        """Seconds; wall clock, or the simulation's."""

    def close(self) -> None: ...


def run_ids(runs: Iterable[PlannedRun]) -> tuple[str, ...]:
    """The identities of ``runs``, in order."""
    return tuple(r.run_id for r in runs)
