"""After a failed task a worker holds nothing of it; a GPU's memory is tried once more without old graphs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

from orchestrator.executors import guard
from orchestrator.types import Failure, FailureClass


class Held:
    """Stands for a method with its graphs."""


class FakeState:
    """What ``guarded`` asks of a worker's state."""

    def __init__(self, methods: int = 0, *, lost: bool = False) -> None:
        self.methods, self.lost, self.broken = [Held()] * methods, lost, False
        self.held: list[weakref.ref[Held]] = []
        self.alive_at_recovery: list[bool] = []

    def recover(self) -> None:
        self.alive_at_recovery += [ref() is not None for ref in self.held]
        self.methods = []
        if self.lost:
            raise RuntimeError("CUDA error: unspecified launch failure")


def run(
    monkeypatch: pytest.MonkeyPatch, state: FakeState, *failures: Callable[[], Exception] | None, begun: int = 0
) -> list[object]:
    """``guarded`` over a task that fails like this, attempt by attempt, after ``begun`` messages."""
    attempts = iter(failures)

    def execute(task: object, state: FakeState) -> Iterator[str]:
        method = Held()
        state.held.append(weakref.ref(method))
        for _ in range(begun):
            yield "rows"
        if (make := next(attempts)) is not None:
            raise make()
        yield "finished"

    monkeypatch.setattr(guard, "execute", execute)
    return list(guard.guarded(SimpleNamespace(), state))


def out_of_memory() -> Exception:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def kinds(said: list[object]) -> list[object]:
    return [m.kind if isinstance(m, Failure) else m for m in said]


def test_when_a_worker_recovers_nothing_of_the_failed_task_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    state = FakeState()
    assert kinds(run(monkeypatch, state, lambda: ValueError("wrong"))) == [FailureClass.ERROR]
    assert state.alive_at_recovery == [False]
    assert not state.broken


def test_memory_that_old_graphs_took_is_no_verdict_on_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kinds(run(monkeypatch, FakeState(1), out_of_memory, None)) == ["finished"]


def test_a_group_that_is_too_large_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kinds(run(monkeypatch, FakeState(1), out_of_memory, out_of_memory)) == [FailureClass.CUDA_OOM]
    assert kinds(run(monkeypatch, FakeState(0), out_of_memory)) == [FailureClass.CUDA_OOM]


def test_what_has_begun_is_not_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kinds(run(monkeypatch, FakeState(1), out_of_memory, begun=1)) == ["rows", FailureClass.CUDA_OOM]


def test_other_failures_are_not_tried_again_here(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kinds(run(monkeypatch, FakeState(1), MemoryError)) == [FailureClass.HOST_OOM]


def test_a_device_that_cannot_recover_is_said_to_be_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    state = FakeState(1, lost=True)
    assert kinds(run(monkeypatch, state, out_of_memory)) == [FailureClass.CUDA_OOM]
    assert state.broken
