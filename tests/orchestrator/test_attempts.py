"""Classes of failure, what follows each, signatures, the circuit breaker."""

from __future__ import annotations

import errno

import pytest
import torch
from exec_fakes import failure

from deyo.types import ConfigError, DataError
from orchestrator.attempts import POLICIES, AttemptLedger, CircuitBreaker, Verdict, classify, signature
from orchestrator.types import FailureClass


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConfigError("no such method"), FailureClass.CONFIG),
        (DataError("49,999 images"), FailureClass.DATA),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), FailureClass.CUDA_OOM),
        (RuntimeError("CUDA error: device-side assert triggered"), FailureClass.CUDA_STICKY),
        (RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED"), FailureClass.CUDA_STICKY),
        (MemoryError(), FailureClass.HOST_OOM),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), FailureClass.HOST_OOM),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), FailureClass.HOST_OOM),
        (torch.cuda.OutOfMemoryError("CUDA out of memory"), FailureClass.CUDA_OOM),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), FailureClass.CUDA_OOM),
        (torch.AcceleratorError("CUDA error: an illegal memory access"), FailureClass.CUDA_STICKY),
        (OSError(errno.ENOSPC, "No space left on device", "/cache/x"), FailureClass.DATA),
        (PermissionError(errno.EACCES, "Permission denied", "/cache/x"), FailureClass.DATA),
        (ConnectionResetError("gone"), FailureClass.INFRASTRUCTURE),
        (ValueError("shapes differ"), FailureClass.ERROR),
    ],
)
def test_classes(error: BaseException, kind: FailureClass) -> None:
    found = classify(raised(error))
    assert found.kind is kind
    assert type(error).__name__ in found.message
    assert "test_attempts.py" in found.traceback


def test_memory_that_ran_out_in_a_capture_is_seen_behind_the_broken_capture() -> None:
    broken, unrelated = torch.AcceleratorError("CUDA error: operation failed during capture"), ValueError("shapes")
    for error in (broken, unrelated):
        try:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        except torch.cuda.OutOfMemoryError as memory:
            error.__context__ = memory
    assert classify(broken).kind is FailureClass.CUDA_OOM
    assert classify(unrelated).kind is FailureClass.ERROR


def test_every_class_has_a_policy() -> None:
    assert set(POLICIES) == set(FailureClass)


def test_a_signature_forgets_who_else_uses_the_gpu() -> None:
    """As torch 2.11 worded it where ten workers shared a card."""

    def text(size: str, *users: str) -> str:
        start = (
            f"OutOfMemoryError: CUDA out of memory. Tried to allocate {size}. GPU 0 has a total capacity of 139.80 GiB "
        )
        return start + "of which 99.64 GiB is free. " + " ".join(f"{u} memory in use." for u in users) + " Of the rest"

    own = "Including non-PyTorch memory, this process has 14.67 GiB"
    kind = FailureClass.CUDA_OOM
    one = signature(kind, text("84.00 MiB", "Process 7532 has 788.00 MiB", own, "Process 7533 has 1.31 GiB"))
    assert one == signature(kind, text("1.29 GiB", own, "Process 9 has 2.01 GiB"))
    assert one != signature(kind, text("84.00 MiB", own).replace("Tried", "Failed"))


def test_a_signature_forgets_numbers_paths_and_addresses() -> None:
    kind = FailureClass.ERROR
    one = signature(kind, "ValueError: /tmp/a/b.npy: 17 images at 0x7fe1, run 0123456789abcdef", "loop.py:adapt")
    other = signature(kind, "ValueError: /data/c.npy: 4 images at 0x1, run fedcba9876543210", "loop.py:adapt")
    assert one == other
    assert one != signature(kind, "ValueError: /tmp/a/b.npy: 17 labels at 0x7fe1", "loop.py:adapt")
    assert one != signature(FailureClass.DATA, "ValueError: /tmp/a/b.npy: 17 images at 0x7fe1", "loop.py:adapt")


def judge(ledger: AttemptLedger, kind: FailureClass, size: int = 1) -> Verdict:
    return ledger.judge("r", failure(kind), group_size=size, node="n0")


@pytest.mark.parametrize("kind", [FailureClass.CONFIG, FailureClass.ERROR])
def test_what_fails_by_itself_is_not_tried_again(kind: FailureClass) -> None:
    assert not judge(AttemptLedger(), kind).again


def test_errors_are_tried_again_only_if_asked() -> None:
    ledger = AttemptLedger(extra_retries=1)
    assert judge(ledger, FailureClass.ERROR).again
    assert not judge(ledger, FailureClass.ERROR).again


@pytest.mark.parametrize("kind", [FailureClass.CUDA_OOM, FailureClass.ERROR, FailureClass.CONFIG, FailureClass.DATA])
def test_a_failed_group_is_halved_until_it_is_one_run(kind: FailureClass) -> None:
    ledger = AttemptLedger()
    assert judge(ledger, kind, 8).limit == 4
    assert judge(ledger, kind, 4).limit == 2
    assert judge(ledger, kind, 2).limit == 1


def test_out_of_memory_alone_goes_elsewhere_once() -> None:
    ledger = AttemptLedger()
    first = judge(ledger, FailureClass.CUDA_OOM)
    assert (first.again, first.avoid) == (True, "n0")
    assert not judge(ledger, FailureClass.CUDA_OOM).again


def test_a_lost_worker_is_forgiven_a_few_times() -> None:
    ledger = AttemptLedger()
    allowed = POLICIES[FailureClass.WORKER_LOST].retries
    verdicts = [judge(ledger, FailureClass.WORKER_LOST).again for _ in range(allowed + 1)]
    assert verdicts == [True] * allowed + [False]


def test_a_group_that_keeps_killing_its_worker_is_split() -> None:
    ledger = AttemptLedger()
    assert judge(ledger, FailureClass.WORKER_LOST, 4).limit is None
    assert judge(ledger, FailureClass.WORKER_LOST, 4).limit == 2


def test_cancelled_runs_are_left() -> None:
    assert not judge(AttemptLedger(), FailureClass.CANCELLED, 4).again


def test_the_breaker_trips_on_k_equal_failures_in_a_row() -> None:
    breaker = CircuitBreaker(3)
    assert [breaker.failed("k", failure()) for _ in range(4)] == [False, False, True, False]


def test_other_failures_and_successes_keep_the_breaker_closed() -> None:
    breaker = CircuitBreaker(2)
    for message in ("RuntimeError: a", "RuntimeError: b", "RuntimeError: a"):
        assert not breaker.failed("k", failure(message=message))
    breaker.succeeded("k")
    assert not breaker.failed("k", failure(message="RuntimeError: a"))
    assert not breaker.failed("other", failure(message="RuntimeError: a"))


def test_a_breaker_of_zero_never_trips() -> None:
    breaker = CircuitBreaker(0)
    assert not any(breaker.failed("k", failure()) for _ in range(50))
