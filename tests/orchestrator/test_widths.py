"""Widths of groups are kept with the sweep, and narrowed where they do not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from engine_runs import tiny_plan
from exec_fakes import Lost, ScriptedExecutor, failure, finish_all, make_driver, planned, slot

from orchestrator.executors.inline import InlineExecutor
from orchestrator.memory_store import MemoryStore
from orchestrator.store import layout
from orchestrator.store.tree import open_tree
from orchestrator.types import (
    FailureClass,
    GroupTask,
    MemoryMeasured,
    ProbeTask,
    Rows,
    RunFinished,
    SlotJoined,
    TaskEnded,
    TaskMessage,
)
from orchestrator.widths import Widths
from orchestrator.worker import WorkerState, execute

GPU = slot("g0", gpu="NVIDIA H100", memory=80 << 30)
GIB = 1 << 30


def test_widths_outlive_the_process(tmp_path: Path) -> None:
    tree = open_tree(str(tmp_path / "sweep"))
    widths = Widths.of(tree)
    widths.decide(("tent", 64), "H100", 8)
    widths.decide(("deyo", None), "", 3)
    again = Widths.of(tree)
    assert (again.get(("tent", 64), "H100"), again.get(("deyo", None), "")) == (8, 3)
    assert again.get(("tent", 64), "A100") is None
    tree.replace(layout.WIDTHS, b"{torn")
    assert Widths.of(tree).kept == {}


def test_a_plan_that_grew_or_another_size_asked_for_lets_a_width_be_decided_anew() -> None:
    widths = Widths(planned={("a",): 4})
    widths.decide(("a",), "", 4)
    for runs, asked, found in ((4, None, 4), (2, None, 4), (5, None, None), (4, 2, None)):
        assert Widths(widths.kept, planned={("a",): runs}, asked=asked).get(("a",), "") == found


def test_a_trial_of_one_seed_does_not_keep_the_whole_sweep_narrow() -> None:
    store, widths = MemoryStore(), Widths()
    for runs, expected in ((1, [(1, 1)]), (4, [(4, 4)]), (4, [(4, 4)])):
        executor = Probed({1: GIB, 2: 2 * GIB})
        plan = [planned(n, batch_size=1) for n in range(runs)]
        driver = make_driver(plan, executor, store=store, lockstep=True)
        replace(driver, widths=Widths(widths.kept)).run()
        assert executor.widths == expected


def test_a_width_is_halved_once_by_all_that_tried_it() -> None:
    widths = Widths()
    widths.decide(("a",), "", 8)
    widths.halve(("a",), "", 8)
    widths.halve(("a",), "", 8)
    assert widths.get(("a",), "") == 4
    widths.halve(("b",), "", 1)
    assert widths.get(("b",), "") == 1


class Probed(ScriptedExecutor):
    """Answers probes by ``peaks`` or ``ends``, and remembers the groups' widths."""

    def __init__(self, peaks: dict[int, int], ends: object = None, **fields: object) -> None:
        super().__init__(slots=(GPU,), **fields)
        self.peaks, self.ends = peaks, ends
        self.probes = 0
        self.widths: list[tuple[int, int]] = []

    def start(self, task: object, slot: object) -> None:
        if isinstance(task, ProbeTask):
            self.probes += 1
            if isinstance(self.ends, Lost):
                self._lose(slot, self.ends.failure)
                self._events[-1] = SlotJoined(slot=GPU)
                return
            for runs, peak in self.peaks.items():
                message = MemoryMeasured(runs=runs, peak_bytes=peak)
                self._events.append(TaskMessage(task_id=task.task_id, message=message))
            self._events.append(TaskEnded(task_id=task.task_id, slot_id=slot.slot_id, failure=self.ends))
            return
        if isinstance(task, GroupTask):
            self.widths.append((len(task.runs), task.width))
        super().start(task, slot)


def driver_of(executor: Probed, runs: int = 6) -> object:
    return make_driver([planned(n, batch_size=1) for n in range(runs)], executor, lockstep=True)


def test_a_probe_measures_before_the_first_group_and_is_no_attempt() -> None:
    executor = Probed({1: 12 * GIB, 2: 22 * GIB})  # 2 GiB and 10 GiB for each run: 4 fit into 55 % of 80 GiB
    driver = driver_of(executor)
    outcome = driver.run()
    assert (executor.probes, executor.widths) == (1, [(3, 3), (3, 3)])
    assert outcome.committed == 6
    assert set(driver.store.attempts.values()) == {1}


def test_a_probe_that_fails_lets_the_run_go_alone() -> None:
    executor = Probed({}, failure(FailureClass.DATA, "DataError: no such folder"))
    driver = driver_of(executor)
    outcome = driver.run()
    assert executor.probes == 1
    assert {width for _, width in executor.widths} == {1}
    assert outcome.committed == 6
    assert not driver.widths.kept  # once the data is there, the next sweep measures


def test_a_run_alone_measures_too() -> None:
    def answer(task: GroupTask, slot: object, number: int) -> object:
        row = {"images": 10, "seconds": 0.1, "group_size": task.width, "group_memory_bytes": GIB * task.width}
        return [RunFinished(run_id=run.run_id, row=row) for run in task.runs]

    executor = Probed({}, failure(FailureClass.INFRASTRUCTURE, "no"), answer=answer)
    assert driver_of(executor, runs=7).run().committed == 7
    assert executor.widths == [(1, 1), (6, 7)]


def test_a_probe_counts_only_once_it_has_ended() -> None:
    driver = driver_of(Probed({}, hold=True), runs=64)
    driver._enqueue()
    driver._handle(SlotJoined(slot=GPU))
    driver._dispatch()
    (task_id,) = driver.flights
    driver._handle(TaskMessage(task_id=task_id, message=MemoryMeasured(runs=1, peak_bytes=22 * GIB)))
    assert not driver.memory.peaks
    driver._handle(TaskMessage(task_id=task_id, message=MemoryMeasured(runs=2, peak_bytes=24 * GIB)))
    driver._handle(TaskEnded(task_id=task_id, slot_id=GPU.slot_id))
    assert driver.scheduler.next().width == 11  # 20 GiB and 2 GiB for each, of 44: 12, in 6 groups of one size


def test_a_probe_without_a_peak_is_not_repeated() -> None:
    executor = Probed({1: 0, 2: 0})
    assert driver_of(executor).run().committed == 6
    assert executor.probes == 1


@pytest.mark.parametrize("kind", [FailureClass.ERROR, FailureClass.CUDA_STICKY, FailureClass.WORKER_LOST])
def test_what_fails_for_its_width_alone_goes_narrow_in_the_end(kind: FailureClass) -> None:
    def answer(task: GroupTask, slot: object, number: int) -> object:
        if task.width == 1:
            return finish_all(task, slot, number)
        return [Lost(failure(kind))] if kind is FailureClass.WORKER_LOST else [failure(kind)]

    executor = ScriptedExecutor(answer=answer)
    driver = make_driver([planned(n) for n in range(8)], executor, lockstep=True, group_size=4, breaker=0)
    assert driver.run().committed == 8


def test_a_probe_that_costs_its_worker_is_tried_again_once() -> None:
    executor = Probed({}, Lost(failure(FailureClass.WORKER_LOST, "killed")))
    outcome = driver_of(executor).run()
    assert executor.probes == 2
    assert {width for _, width in executor.widths} == {1}
    assert outcome.committed == 6


def test_a_group_too_large_for_memory_is_halved_and_goes_on() -> None:
    def answer(task: GroupTask, slot: object, number: int) -> object:
        if task.width > 2:
            return [failure(FailureClass.CUDA_OOM, "OutOfMemoryError: CUDA out of memory")]
        return finish_all(task, slot, number)

    executor = Probed({1: GIB, 2: 2 * GIB}, answer=answer)
    driver = driver_of(executor, runs=8)
    outcome = driver.run()
    assert executor.widths[:2] == [(8, 8), (4, 4)]
    assert {width for _, width in executor.widths[2:]} <= {2, 4}
    assert executor.widths[-1][1] == 2
    assert outcome.committed == 8


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> WorkerState:
    return WorkerState(cache=tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("method", ["tent", "deyo"])
def test_a_run_has_the_same_bits_in_any_company_of_one_width(method: str, state: WorkerState) -> None:
    """Alone with copies, with others, in another place among them: the rows are equal bit by bit."""
    runs = tiny_plan(seeds=[0, 1, 2, 3], methods=f"[{method}]", batch=1, images=24).runs
    runs = tuple(r for r in runs)
    executor = InlineExecutor(state)
    store = MemoryStore()
    driver = make_driver(runs, executor, store=store, lockstep=True, group_size=4)
    driver.cache = state.cache
    assert driver.run().committed == 4
    artifacts = dict(driver.artifacts)
    whole = {run_id: row for run_id, (_, row) in store.commits.items()}
    for members in (runs[1:2], (runs[2], runs[1]), runs[::-1]):
        task = GroupTask(
            task_id="t",
            runs=members,
            attempts={r.run_id: 1 for r in members},
            artifacts=artifacts,
            width=4,
        )
        messages = list(execute(task, state))
        rows = {m.run_id: m.row for m in messages if isinstance(m, RunFinished)}
        assert set(rows) == {r.run_id for r in members}
        for run_id, row in rows.items():
            assert row["group_size"] == 4
            assert row["mean_entropy"] == whole[run_id]["mean_entropy"]
            after = [b for m in messages if isinstance(m, Rows) and m.run_id == run_id for b in m.batch.to_pylist()]
            before = [b for batch in store.rows[run_id, 1, "batches"] for b in batch.to_pylist()]
            assert [_numbers(b) for b in after] == [_numbers(b) for b in before]


def _numbers(row: dict) -> str:
    return repr({k: v for k, v in row.items() if k not in ("attempt", "recorded_at")})


def test_a_probe_of_the_real_engine_measures_one_run_and_two(state: WorkerState) -> None:
    runs = tiny_plan(methods="[no-adapt]", batch=1, images=8).runs
    driver = make_driver(runs, InlineExecutor(state), lockstep=True)
    driver.cache = state.cache
    driver.run()
    task = ProbeTask(task_id="t", run=runs[0], artifacts=driver.artifacts)
    messages = list(execute(task, state))
    assert [m.runs for m in messages] == [1, 2]
    assert all(m.peak_bytes > 0 for m in messages)
