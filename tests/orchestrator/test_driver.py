"""The driver's loop against scripted workers: attempts, retries, splits, breaker, stop, resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from exec_fakes import Lost, ScriptedExecutor, failure, finish_all, make_driver, planned, slot

from orchestrator import schema
from orchestrator.memory_store import MemoryStore
from orchestrator.outcome import SweepStatus
from orchestrator.progress import SilentProgress
from orchestrator.store.errors import StoreFullError
from orchestrator.types import (
    Checkpoint,
    FailureClass,
    GroupTask,
    LogText,
    PlannedRun,
    PretrainTask,
    Rows,
    RunFailed,
    RunFinished,
    RunStatus,
    Slot,
    SlotLost,
    TaskMessage,
)


def batch_rows(run_id: str, attempt: int, steps: int = 1) -> pa.RecordBatch:
    empty = dict.fromkeys(schema.BATCHES.names)
    rows = [{**empty, "run_id": run_id, "attempt": attempt, "step": k, "images": 5} for k in range(steps)]
    return pa.RecordBatch.from_pylist(rows, schema=schema.BATCHES)


def test_every_run_is_committed_once_under_its_attempt() -> None:
    driver = make_driver([planned(n) for n in range(7)], ScriptedExecutor(slots=[slot("a"), slot("b")]))
    outcome = driver.run()
    assert (outcome.status, outcome.committed, outcome.exit_code) == (SweepStatus.FINISHED, 7, 0)
    assert {a for a, _ in driver.store.commits.values()} == {1}
    assert driver.tally.line().startswith("test: 7/7 done, 0 failed, 0 left")


def test_done_and_failed_runs_of_the_plan_are_left_alone() -> None:
    runs = [planned(0, RunStatus.DONE), planned(1, RunStatus.FAILED), planned(2, RunStatus.STALE), planned(3)]
    driver = make_driver(runs, ScriptedExecutor())
    outcome = driver.run()
    assert set(driver.store.commits) == {runs[2].run_id, runs[3].run_id}
    assert (outcome.done, outcome.pending, outcome.earlier_failures) == (3, 0, 1)


def test_rows_logs_and_checkpoints_go_to_the_attempt_they_came_from() -> None:
    def answer(task: GroupTask, slot: Slot, number: int) -> Sequence[Any]:
        run_id = task.runs[0].run_id
        rows = Rows(run_id=run_id, grain="batches", batch=batch_rows(run_id, task.attempts[run_id]))
        begun = [rows, LogText(run_id=run_id, text="hello\n"), Checkpoint(run_id=run_id, step=64, blob=b"x")]
        if number == 0:
            return [*begun, Lost(failure(FailureClass.WORKER_LOST, "killed"))]
        assert task.resume[run_id].step == 64
        return [rows, RunFinished(run_id=run_id, row={})]

    executor = ScriptedExecutor(answer)
    driver = make_driver([planned(0)], executor)
    outcome = driver.run()
    store: MemoryStore = driver.store
    run_id = planned(0).run_id
    assert outcome.committed == 1
    assert store.commits[run_id][0] == 2
    assert len(store.rows[run_id, 1, "batches"]) == len(store.rows[run_id, 2, "batches"]) == 1
    assert store.logs[run_id, 1] == "hello\n"
    assert store.failed[run_id].kind is FailureClass.CANCELLED  # tried again: no verdict on the run
    assert "worker-lost" in store.failed[run_id].message


def test_messages_of_a_lost_slot_are_not_taken() -> None:
    executor = ScriptedExecutor(hold=True, slots=[slot("a")])
    driver = make_driver([planned(0)], executor)
    driver._enqueue()
    for event in executor.poll(0):
        driver._handle(event)
    driver._dispatch()
    task, place = executor.tasks[0]
    driver._handle(SlotLost(slot_id=place.slot_id, failure=failure(FailureClass.NODE_LOST)))
    late = RunFinished(run_id=planned(0).run_id, row={})
    driver._handle(TaskMessage(task_id=task.task_id, message=late))
    assert not driver.store.commits
    assert driver.scheduler.pending == 1


def test_one_bad_run_does_not_take_its_group_along() -> None:
    bad = planned(5).run_id

    def answer(task: GroupTask, slot: Slot, number: int) -> Sequence[Any]:
        return [failure()] if any(r.run_id == bad for r in task.runs) else finish_all(task, slot, number)

    executor = ScriptedExecutor(answer)
    driver = make_driver([planned(n) for n in range(8)], executor, lockstep=True, group_size=8)
    outcome = driver.run()
    assert outcome.committed == 7
    assert set(outcome.failures) == {bad}
    assert driver.store.failed[bad].kind is FailureClass.ERROR
    assert [len(t.runs) for t, _ in executor.tasks][:1] == [8]


def test_out_of_memory_halves_the_group_and_later_groups_stay_small() -> None:
    def answer(task: GroupTask, slot: Slot, number: int) -> Sequence[Any]:
        if len(task.runs) > 2:
            return [failure(FailureClass.CUDA_OOM, "CUDA out of memory")]
        return finish_all(task, slot, number)

    place = slot("g", gpu="NVIDIA H100", memory=1 << 30)
    executor = ScriptedExecutor(answer, slots=[place])
    driver = make_driver([planned(n) for n in range(16)], executor, lockstep=True)
    driver.memory.peaks[next(iter({_memory_key()}))] = {1: 1 << 20}
    outcome = driver.run()
    sizes = [len(t.runs) for t, _ in executor.tasks]
    assert outcome.committed == 16
    assert sizes[:4] == [16, 8, 4, 2]
    assert max(sizes[3:]) == 2


def _memory_key() -> str:
    from orchestrator.grouping import memory_key

    return memory_key(planned(0).config, 32)


def test_a_run_that_fails_alone_while_its_group_goes_on() -> None:
    def answer(task: GroupTask, slot: Slot, number: int) -> Sequence[Any]:
        first, *rest = task.runs
        done = [RunFinished(run_id=r.run_id, row={}) for r in rest]
        return [RunFailed(run_id=first.run_id, failure=failure(FailureClass.CONFIG, "ConfigError: x")), *done]

    driver = make_driver([planned(n) for n in range(4)], ScriptedExecutor(answer), lockstep=True, group_size=4)
    outcome = driver.run()
    assert outcome.committed == 3
    assert list(outcome.failures) == [planned(0).run_id]
    assert outcome.exit_code == 1


def test_the_breaker_leaves_the_rest_pending() -> None:
    executor = ScriptedExecutor(lambda task, slot, n: [failure()])
    driver = make_driver([planned(n) for n in range(50)], executor, breaker=3)
    outcome = driver.run()
    assert len(outcome.failures) == 3
    assert (outcome.pending, outcome.exit_code) == (47, 1)
    assert any("stay pending" in note for note in driver.progress.notes)


def test_failures_are_told_live_by_signature_with_the_log() -> None:
    executor = ScriptedExecutor(lambda task, slot, n: [failure(message=f"RuntimeError: image {n} is bad")])
    driver = make_driver([planned(n) for n in range(6)], executor, breaker=0)
    driver.run()
    told = [note for note in driver.progress.notes if note.startswith("failed ×")]
    assert [note.split()[1] for note in told] == ["×1", "×2", "×3", "×5"]
    assert "log: memory:" in told[0]
    assert len(driver.aftermath.board.lines()) == 1


def test_a_poisonous_run_is_given_up_after_its_retries() -> None:
    driver = make_driver(
        [planned(0), planned(1)],
        ScriptedExecutor(
            lambda task, slot, n: (
                [
                    LogText(run_id=task.runs[0].run_id, text="x"),
                    Lost(failure(FailureClass.WORKER_LOST, "segfault")),
                ]
                if task.runs[0].run_id == planned(0).run_id
                else finish_all(task, slot, n)
            )
        ),
    )
    outcome = driver.run()
    assert list(outcome.failures) == [planned(0).run_id]
    assert outcome.failures[planned(0).run_id].kind is FailureClass.WORKER_LOST
    assert outcome.committed == 1


@pytest.mark.parametrize(
    ("kind", "kept_as"),
    [(FailureClass.WORKER_LOST, FailureClass.CANCELLED), (FailureClass.ERROR, FailureClass.ERROR)],
)
def test_a_failure_at_the_stop_is_a_verdict_only_without_tries_left(kind: FailureClass, kept_as: FailureClass) -> None:
    executor = ScriptedExecutor(hold=True, slots=[slot("a")], respawn=False)
    driver = make_driver([planned(0)], executor)
    driver._enqueue()
    for event in executor.poll(0):
        driver._handle(event)
    driver._dispatch()
    driver.stop(message="stopped by SIGINT")
    _, place = executor.tasks[0]
    driver._handle(SlotLost(slot_id=place.slot_id, failure=failure(kind, "gone")))
    kept = driver.store.failed[planned(0).run_id]
    assert kept.kind is kept_as
    assert "gone" in kept.message
    assert bool(driver.failures) is (kept_as is FailureClass.ERROR)


def test_an_attempt_that_takes_too_long_is_given_up() -> None:
    executor = ScriptedExecutor(hold=True, tick=10.0, slots=[slot("a"), slot("b")])

    class Cancelling(ScriptedExecutor):
        def cancel(self, task_id: str) -> None:
            super().cancel(task_id)
            place = next(s for t, s in self.tasks if t.task_id == task_id)
            self._lose(place, failure(FailureClass.CANCELLED, "cancelled"))

    executor = Cancelling(hold=True, tick=10.0, slots=[slot("a")])
    driver = make_driver([planned(0)], executor, timeout=60.0)
    outcome = driver.run()
    assert outcome.failures[planned(0).run_id].kind is FailureClass.TIMEOUT
    assert len(executor.cancelled) == 2  # once more elsewhere, then failed


def test_a_stop_gives_up_what_is_in_flight_and_the_next_run_does_it() -> None:
    store = MemoryStore()
    executor = ScriptedExecutor(hold=True, slots=[slot("a"), slot("b")])
    driver = make_driver([planned(n) for n in range(4)], executor, store=store)
    driver.stop(message="stopped by SIGINT")
    driver._stop = None
    turns = iter(range(3))

    class Stopping(ScriptedExecutor):
        def poll(self, timeout: float) -> Sequence[Any]:
            if next(turns, None) is None:
                driver.stop(message="stopped by SIGINT")
            return super().poll(timeout)

    driver.executor = driver.upkeep.executor = Stopping(hold=True, slots=[slot("a"), slot("b")])
    outcome = driver.run()
    assert (outcome.status, outcome.exit_code, outcome.pending) == (SweepStatus.INTERRUPTED, 130, 4)
    assert len(driver.executor.cancelled) == 2
    assert {f.kind for f in store.failures().values()} == {FailureClass.CANCELLED}
    again = make_driver([planned(n) for n in range(4)], ScriptedExecutor(), store=store).run()
    assert again.committed == 4


def test_a_full_disk_stops_the_sweep_with_its_message() -> None:
    class Full(MemoryStore):
        def commit(self, *args: Any) -> bool:
            raise StoreFullError("no space left")

    driver = make_driver([planned(0), planned(1)], ScriptedExecutor(), store=Full())
    outcome = driver.run()
    assert (outcome.status, outcome.message, outcome.exit_code) == (SweepStatus.STOPPED, "no space left", 1)
    assert outcome.pending == 2


def test_a_sweep_without_a_fitting_worker_stops_and_says_so() -> None:
    driver = make_driver(
        [planned(0)], ScriptedExecutor(tick=1.0, slots=[slot("a", gpu="NVIDIA A100")]), gpu="H100", stuck_seconds=30
    )
    outcome = driver.run()
    assert outcome.status is SweepStatus.STOPPED
    assert "H100" in outcome.message


def test_a_sweep_waits_for_hosts_that_are_on_their_way_and_says_so() -> None:
    class Growing(ScriptedExecutor):
        def excuse(self) -> str:
            return "the autoscaler was asked" if self.now() < 2_000 else ""

    executor = Growing(tick=1.0, slots=[])
    driver = make_driver([planned(0)], executor, stuck_seconds=30)
    outcome = driver.run()
    assert outcome.status is SweepStatus.STOPPED
    assert executor.now() == pytest.approx(2_030, abs=3)
    assert isinstance(driver.progress, SilentProgress)
    assert driver.progress.notes == ["waiting: the autoscaler was asked"] * 4


def test_pretraining_is_done_once_and_handed_to_its_runs(tmp_path: Path) -> None:
    executor = ScriptedExecutor()
    driver = make_driver([planned(n, pretrain_seed=n % 2) for n in range(6)], executor)
    driver.cache = tmp_path
    outcome = driver.run()
    assert outcome.committed == 6
    pretraining = [t for t, _ in executor.tasks if isinstance(t, PretrainTask)]
    assert len(pretraining) == 2
    for task, _ in executor.tasks:
        if isinstance(task, GroupTask):
            (artifact,) = task.artifacts.values()
            assert Path(artifact.path).read_bytes() == b"weights"
            assert artifact.blob == b""


def test_failed_pretraining_leaves_its_runs_pending() -> None:
    class Failing(ScriptedExecutor):
        def _answer_pretraining(self, task: PretrainTask, slot: Slot) -> None:
            from orchestrator.types import TaskEnded

            self.emit(TaskEnded(task_id=task.task_id, slot_id=slot.slot_id, failure=failure(message="Error: no data")))

    driver = make_driver([planned(0, pretrain_seed=0), planned(1)], Failing())
    outcome = driver.run()
    assert (outcome.committed, outcome.pending, outcome.exit_code) == (1, 1, 1)
    assert "no data" in outcome.message


def test_a_slot_has_its_next_task_before_the_last_one_is_written_down() -> None:
    executor, started = ScriptedExecutor(releases=True), []

    class Watching(MemoryStore):
        def commit(self, run: PlannedRun, attempt: int, row: Mapping[str, Any]) -> bool:
            started.append(len(executor.tasks))
            return super().commit(run, attempt, row)

    outcome = make_driver([planned(n) for n in range(4)], executor, store=Watching(), group_size=1).run()
    assert outcome.committed == 4
    assert started == [2, 3, 4, 4]


def test_slots_that_are_free_early_take_nothing_twice() -> None:
    def answer(task: GroupTask, _: Slot, number: int) -> Sequence[Any]:
        if number % 5 == 2:
            return [failure(FailureClass.INFRASTRUCTURE)]
        return [Lost(failure(FailureClass.WORKER_LOST))] if number % 7 == 3 else finish_all(task, _, number)

    slots = [slot(name) for name in "abc"]
    executor, store = ScriptedExecutor(answer=answer, slots=slots, releases=True), MemoryStore()
    driver = make_driver([planned(n) for n in range(40)], executor, store=store, group_size=2)
    outcome = driver.run()
    assert outcome.committed == 40
    assert len(store.commits) == 40
    assert not store.superseded
    assert not driver.by_slot


def test_a_late_success_of_another_attempt_is_superseded() -> None:
    store = MemoryStore()
    store.begin(planned(0), 1)
    store.commit(planned(0), 1, {"accuracy": 1.0})
    driver = make_driver([planned(0)], ScriptedExecutor(), store=store)
    outcome = driver.run()
    assert outcome.committed == 0
    assert store.superseded == [(planned(0).run_id, 2)]
    assert store.commits[planned(0).run_id][0] == 1


@pytest.mark.parametrize("count", [0, 1])
def test_an_empty_plan_ends_at_once(count: int) -> None:
    runs = [planned(n, RunStatus.DONE) for n in range(count)]
    assert make_driver(runs, ScriptedExecutor()).run().exit_code == 0


def test_a_sweep_that_goes_on_starts_from_the_checkpoints_that_it_began_with(tmp_path: Path) -> None:
    from orchestrator.shelf import Shelf
    from orchestrator.store.local_tree import LocalTree

    shelf = Shelf(LocalTree(str(tmp_path / "sweep")), tmp_path / "cache")
    first = make_driver([planned(0, pretrain_seed=0)], ScriptedExecutor())
    first.shelf, first.cache = shelf, tmp_path / "cache"
    assert first.run().committed == 1
    elsewhere = Shelf(shelf.tree, tmp_path / "another host")
    executor = ScriptedExecutor()
    second = make_driver([planned(1, pretrain_seed=0)], executor)
    second.shelf, second.cache = elsewhere, tmp_path / "another host"
    assert second.run().committed == 1
    assert not [t for t, _ in executor.tasks if isinstance(t, PretrainTask)]
    (artifact,) = executor.tasks[0][0].artifacts.values()
    assert Path(artifact.path).read_bytes() == b"weights"
    assert "another host" in artifact.path
