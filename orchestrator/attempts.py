"""Why attempts fail, and what is done about it: classes of failure, their policies, the circuit breaker.

The driver owns attempts: executors never retry by themselves. NaN predictions and collapsed runs are results,
not failures. Only ``cancelled`` is no verdict on a run: such a run is started again by the next ``run``.
"""

from __future__ import annotations

import errno
import hashlib
import re
import traceback as traceback_module
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from deyo.types import ConfigError, DataError
from orchestrator.types import Failure, FailureClass


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What follows a failure of one class.

    ``retries``: further attempts of a run after failures of this class. ``split``: a failed group of several
    runs is halved first, at no cost in retries, so that one bad run (or one group too large) does not take
    its neighbours along. ``elsewhere``: the next attempt avoids the node. ``new_process``: the worker's
    process is not used again. ``smaller``: later groups of this kind stay below the size that failed.
    """

    retries: int = 0
    split: bool = False
    elsewhere: bool = False
    new_process: bool = False
    smaller: bool = False


POLICIES: Mapping[FailureClass, Policy] = {
    FailureClass.CONFIG: Policy(split=True),
    FailureClass.DATA: Policy(retries=1, split=True, elsewhere=True),
    FailureClass.CUDA_OOM: Policy(retries=1, split=True, elsewhere=True, smaller=True),
    FailureClass.HOST_OOM: Policy(retries=1, split=True, new_process=True, smaller=True),
    FailureClass.CUDA_STICKY: Policy(retries=1, split=True, new_process=True),
    FailureClass.WORKER_LOST: Policy(retries=5, new_process=True),
    FailureClass.NODE_LOST: Policy(retries=10, new_process=True),
    FailureClass.TIMEOUT: Policy(retries=1, elsewhere=True, new_process=True),
    FailureClass.INFRASTRUCTURE: Policy(retries=5, elsewhere=True, new_process=True),
    FailureClass.ERROR: Policy(split=True),
    FailureClass.CANCELLED: Policy(new_process=True),
}

_SPLIT_AFTER_LOSSES = 2
"""A group that lost its worker this often is halved too: one of its runs may be what kills workers."""

_NARROW_AFTER_LOSSES = 4
"""Runs that lost their worker this often go at width 1: the width itself may be what kills workers."""

_WIDTH_MAY_MATTER = frozenset({FailureClass.ERROR, FailureClass.CUDA_STICKY, FailureClass.TIMEOUT})
"""A run that fails like this alone, in a forward filled up with copies, gets one more attempt without them."""


def classify(error: BaseException, *, log_path: str = "") -> Failure:
    """The failure that an exception raised in a worker stands for."""
    kind = _kind(error)
    text = "".join(traceback_module.format_exception(error))
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    where = _place(error)
    return make_failure(kind, message, traceback=text, log_path=log_path, where=where)


def make_failure(
    kind: FailureClass, message: str, *, traceback: str = "", log_path: str = "", where: str = ""
) -> Failure:
    """A failure with its signature: equal for failures of one cause, whatever numbers and paths they name."""
    return Failure(
        kind=kind,
        message=message,
        signature=signature(kind, message, where),
        traceback=traceback,
        log_path=log_path,
    )


def signature(kind: FailureClass, message: str, where: str = "") -> str:
    """``kind`` and 8 hex digits over the message's first line with numbers, hex, paths and a GPU's users left out."""
    first = message.strip().splitlines()[0] if message.strip() else ""
    plain = re.sub(r"(/[\w.\-]+)+", "PATH", first)
    plain = re.sub(r"\b0x[0-9a-f]+\b|\b[0-9a-f]{8,}\b", "HEX", plain, flags=re.IGNORECASE)
    plain = re.sub(
        r"(Process \d+|Including non-PyTorch memory, this process) has [^.]+\.\d+ \w+ memory in use\.", "", plain
    )
    plain = re.sub(r" {2,}", " ", plain)
    plain = re.sub(r"\d+(\.\d+)?( [KMGT]iB)?", "N", plain)
    return f"{kind.value}:{hashlib.sha256(f'{plain}|{where}'.encode()).hexdigest()[:8]}"


_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EIO})
"""Errors of a host's disk: another host may have the data, or the room."""


def _kind(error: BaseException) -> FailureClass:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, ConfigError):
        return FailureClass.CONFIG
    if isinstance(error, DataError) or (isinstance(error, OSError) and error.errno in _DISK):
        return FailureClass.DATA
    if _is_cuda_memory(error):
        return FailureClass.CUDA_OOM
    if isinstance(error, MemoryError) or re.search(r"DefaultCPUAllocator|Cannot allocate memory", text):
        return FailureClass.HOST_OOM
    if re.search(r"CUDA error|device-side assert|CUBLAS_STATUS|CUDNN_STATUS|cudaError", text):
        return FailureClass.CUDA_STICKY
    if isinstance(error, KeyboardInterrupt):
        return FailureClass.CANCELLED
    if isinstance(error, ConnectionError) or type(error).__name__ == "WrongDeviceError":
        return FailureClass.INFRASTRUCTURE
    return FailureClass.ERROR


def _is_cuda_memory(error: BaseException | None) -> bool:
    """Whether a GPU's memory did not suffice, or did not while ``error`` came up: a broken graph capture hides it."""
    if error is None:
        return False
    of_torch = type(error).__module__.partition(".")[0] == "torch"  # Ray has an OutOfMemoryError too, of the host
    if of_torch and type(error).__name__ == "OutOfMemoryError":
        return True
    if re.search(r"CUDA out of memory|CU(BLAS|DNN)_STATUS_ALLOC_FAILED", str(error)):
        return True
    return "CUDA" in str(error) and _is_cuda_memory(error.__context__)


def _place(error: BaseException) -> str:
    """File and function where the exception was raised; line numbers are left out, they move with edits."""
    frames = traceback_module.extract_tb(error.__traceback__)
    return f"{frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].name}" if frames else ""


def pretraining_retries(kind: FailureClass) -> int:
    """Further attempts at a checkpoint: nothing tells it to avoid a host, so what a host lacks is not tried again."""
    return 0 if kind is FailureClass.DATA else POLICIES[kind].retries


def pretraining_words(failure: Failure) -> str:
    """What is said of a checkpoint that was not made: of a bug the traceback too, of a dead worker its last words."""
    return f"{failure.message}\n{failure.traceback}".strip() if failure.kind in _UNEXPLAINED else failure.message


_UNEXPLAINED = frozenset({FailureClass.ERROR, FailureClass.HOST_OOM, FailureClass.WORKER_LOST, FailureClass.NODE_LOST})


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What becomes of a failed run: tried again (not on ``avoid``, in groups of at most ``limit``) or failed.

    ``narrow``: the next attempt is alone in its forward, which may round differently.
    """

    again: bool
    narrow: bool = False
    limit: int | None = None
    avoid: str | None = None


@dataclass
class AttemptLedger:
    """Failures of each run by class, and what is due after one more.

    ``extra_retries`` gives failures of class ``error`` that many further attempts (off by default: the same
    code on the same numbers fails again).
    """

    extra_retries: int = 0
    _counts: dict[str, Counter[FailureClass]] = field(default_factory=dict)
    _narrowed: set[str] = field(default_factory=set)

    def judge(self, run_id: str, failure: Failure, *, group_size: int, node: str, width: int = 1) -> Verdict:
        """The verdict on one run of a group of ``group_size``, filled up to ``width``, that failed on ``node``."""
        policy = POLICIES[failure.kind]
        avoid = node if policy.elsewhere else None
        if failure.kind is FailureClass.CANCELLED:
            return Verdict(again=False)
        if policy.split and group_size > 1:
            return Verdict(again=True, limit=max(1, group_size // 2))
        counts = self._counts.setdefault(run_id, Counter())
        lost_often = counts[FailureClass.WORKER_LOST] + 1 >= _NARROW_AFTER_LOSSES
        may_matter = failure.kind in _WIDTH_MAY_MATTER or (failure.kind is FailureClass.WORKER_LOST and lost_often)
        if may_matter and width > 1 and run_id not in self._narrowed:
            self._narrowed.add(run_id)
            return Verdict(again=True, limit=1, narrow=True, avoid=avoid)
        counts[failure.kind] += 1
        allowed = policy.retries + (self.extra_retries if failure.kind is FailureClass.ERROR else 0)
        losses = counts[FailureClass.WORKER_LOST]
        limit = max(1, group_size // 2) if losses >= _SPLIT_AFTER_LOSSES and group_size > 1 else None
        return Verdict(again=counts[failure.kind] <= allowed, limit=limit, avoid=avoid)


@dataclass
class CircuitBreaker:
    """Stops a kind of runs whose first ``threshold`` failures share one signature, with no success in between.

    The runs of a stopped kind stay pending: they are started by the next ``run``, once the cause is mended.
    ``threshold`` 0 switches it off.
    """

    threshold: int = 5
    stopped: dict[Hashable, Failure] = field(default_factory=dict)
    _row: dict[Hashable, tuple[str, int]] = field(default_factory=dict)

    def succeeded(self, kind: Hashable) -> None:
        self._row.pop(kind, None)

    def failed(self, kind: Hashable, failure: Failure) -> bool:
        """True if this failure stops the kind."""
        before, count = self._row.get(kind, (failure.signature, 0))
        count = count + 1 if before == failure.signature else 1
        self._row[kind] = (failure.signature, count)
        if not self.threshold or count < self.threshold or kind in self.stopped:
            return False
        self.stopped[kind] = failure
        return True
