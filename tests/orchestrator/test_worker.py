"""A worker's task with the real engine, in this process: rows, groups, checkpoints, failures, devices."""

from __future__ import annotations

import copy
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_runs import tiny_plan

from deyo.types import ImageSet
from orchestrator import group_run
from orchestrator.executors.guard import captured
from orchestrator.executors.inline import InlineExecutor
from orchestrator.group_run import BLOCK
from orchestrator.memory_store import MemoryStore
from orchestrator.types import (
    Artifact,
    Checkpoint,
    Failure,
    FailureClass,
    GroupTask,
    LogText,
    PlannedRun,
    PretrainTask,
    Rows,
    RunFailed,
    RunFinished,
    TaskEnded,
)
from orchestrator.worker import Resident, WorkerState, WrongDeviceError, execute, keep_compiled_code


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> WorkerState:
    return WorkerState(cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def artifacts(state: WorkerState) -> dict[str, Artifact]:
    """The checkpoint that the runs start from, by the worker's own pretraining task."""
    from orchestrator.grouping import pretrain_key

    config = tiny_plan().runs[0].config
    task = PretrainTask(
        task_id="p",
        key=pretrain_key(config),
        model=config.model,
        benchmark=config.benchmark,
        benchmark_options=config.benchmark_options,
        seed=config.pretrain_seed,
    )
    (artifact,) = execute(task, state)
    assert isinstance(artifact, Artifact)
    assert Path(artifact.path).read_bytes() == artifact.blob
    return {artifact.key: replace(artifact, blob=b"")}


def group(runs: tuple[PlannedRun, ...], artifacts: dict[str, Artifact], **fields: object) -> GroupTask:
    attempts = {run.run_id: 1 for run in runs}
    return GroupTask(**{"task_id": "t", "runs": runs, "attempts": attempts, "artifacts": artifacts, **fields})


def finished(messages: list) -> dict[str, dict]:
    return {m.run_id: dict(m.row) for m in messages if isinstance(m, RunFinished)}


NUMBERS = ("accuracy", "mean_entropy", "forwards", "backwards", "selected", "images", "stream_digest")


def test_a_run_hands_out_all_its_rows_and_then_its_numbers(state: WorkerState, artifacts: dict) -> None:
    run = tiny_plan(extra="samples: true\n").runs[1]
    messages = list(execute(group((run,), artifacts), state))
    batches = [m.batch for m in messages if isinstance(m, Rows) and m.grain == "batches"]
    samples = [m.batch for m in messages if isinstance(m, Rows) and m.grain == "samples"]
    row = finished(messages)[run.run_id]
    assert [s for b in batches for s in b.column("step").to_pylist()] == [0, 1, 2, 3]
    assert sum(n for b in batches for n in b.column("images").to_pylist()) == row["images"] == 64
    assert sum(n for b in batches for n in b.column("correct").to_pylist()) == round(row["accuracy"] * 64)
    assert [p for b in samples for p in b.column("position").to_pylist()] == list(range(64))
    assert row["weights_sha256"] == next(iter(artifacts.values())).sha256
    assert row["code_digest"]
    assert row["data_fingerprint"]
    assert isinstance(messages[-1], RunFinished)


def test_runs_side_by_side_give_the_numbers_of_runs_alone(state: WorkerState, artifacts: dict) -> None:
    runs = tiny_plan(seeds=[0, 1, 2], methods="[tent]", corruptions="[contrast, gaussian_noise]").runs
    together = finished(list(execute(group(runs, artifacts), state)))
    assert {row["group_size"] for row in together.values()} == {6}
    for run in runs:
        alone = finished(list(execute(group((run,), artifacts), state)))[run.run_id]
        assert alone["stream_digest"] == together[run.run_id]["stream_digest"]
        assert alone["accuracy"] == together[run.run_id]["accuracy"]
        assert alone["mean_entropy"] == pytest.approx(together[run.run_id]["mean_entropy"], rel=1e-5)


def test_one_anchored_run_is_enough_to_bring_a_group_its_clean_images(state: WorkerState, artifacts: dict) -> None:
    """EATA with and without its Fisher anchor side by side: the first run does not decide for the others."""
    run = tiny_plan(methods="[eata]").runs[0]
    strengths = {"without": 0.0, "with": 2000.0}
    configs = {
        name: replace(run.config, settings={**run.config.settings, "fisher_strength": value})
        for name, value in strengths.items()
    }
    runs = tuple(replace(run, run_id=name, config=config) for name, config in configs.items())
    assert set(finished(list(execute(group(runs, artifacts), state)))) == set(strengths)


def test_a_run_resumed_from_a_checkpoint_gives_the_numbers_of_an_undisturbed_one(
    state: WorkerState, artifacts: dict
) -> None:
    runs = tiny_plan(seeds=[0, 1], images=2 * BLOCK + 10, methods="[tent]", batch=1, extra="samples: true\n").runs
    whole = list(execute(group(runs, artifacts, checkpoint_seconds=0.0), state))
    saved = [m for m in whole if isinstance(m, Checkpoint)]
    assert Counter(c.run_id for c in saved) == {run.run_id: 2 for run in runs}
    middle = {c.run_id: c for c in saved if c.step == BLOCK}
    again = group(runs, artifacts, resume=middle, attempts={run.run_id: 2 for run in runs})
    resumed = list(execute(again, state))
    for run in runs:
        for grain in ("batches", "samples"):
            before, after = _rows(whole, run, grain), _rows(resumed, run, grain)
            assert [_number(r) for r in before] == [_number(r) for r in after]
            assert {r["attempt"] for r in after} == {2}
        one, other = finished(whole)[run.run_id], finished(resumed)[run.run_id]
        assert {n: one[n] for n in NUMBERS} == {n: other[n] for n in NUMBERS}


def test_checkpoints_are_taken_where_the_method_is_not_ahead_of_its_records(
    state: WorkerState, artifacts: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where steps are queued while records are read. A clock that ticks when it is looked at."""

    class Saving(group_run._Saving):
        ticks = 0

        def _over(self) -> bool:
            Saving.ticks += 1
            return Saving.ticks >= 3

        def done(self) -> None:
            Saving.ticks = 0

    def on_device(self: WorkerState, *of: object) -> ImageSet:
        images = image_set(self, *of)
        return replace(images, pixels=torch.from_numpy(np.array(images.pixels)))

    image_set = WorkerState.image_set
    runs = tiny_plan(seeds=[0, 1], images=4 * BLOCK + 10, methods="[tent]", batch=1, extra="samples: true\n").runs
    expected = list(execute(group(runs, artifacts), state))
    monkeypatch.setattr(WorkerState, "image_set", on_device)
    monkeypatch.setattr(group_run, "_Saving", lambda seconds, *, ahead: Saving(seconds, ahead=True))
    whole = list(execute(group(runs, artifacts), state))
    saved = {m.run_id: m for m in whole if isinstance(m, Checkpoint)}
    assert {c.step for c in saved.values()} == {3 * BLOCK}
    Saving.ticks = 0
    resumed = list(execute(group(runs, artifacts, resume=saved, attempts={run.run_id: 2 for run in runs}), state))
    for run in runs:
        for messages in (whole, resumed):
            for grain in ("batches", "samples"):
                one, other = _rows(expected, run, grain), _rows(messages, run, grain)
                assert [_number(r) for r in one] == [_number(r) for r in other]


def _rows(messages: list, run: PlannedRun, grain: str) -> list[dict]:
    found = [m.batch for m in messages if isinstance(m, Rows) and (m.run_id, m.grain) == (run.run_id, grain)]
    return [row for batch in found for row in batch.to_pylist()]


def _number(row: dict) -> str:
    return repr({k: v for k, v in row.items() if k not in ("attempt", "recorded_at")})


def test_runs_of_different_length_in_one_task_run_one_after_the_other(state: WorkerState, artifacts: dict) -> None:
    short, long = tiny_plan(methods="[tent]").runs[0], tiny_plan(methods="[tent]", images=80).runs[0]
    rows = finished(list(execute(group((short, long), artifacts), state)))
    assert [rows[r.run_id]["images"] for r in (short, long)] == [64, 80]
    assert {row["group_size"] for row in rows.values()} == {1}


def test_labels_that_the_network_has_no_classes_for_are_refused(
    state: WorkerState, artifacts: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    def more_classes(self: WorkerState, *of: object) -> ImageSet:
        images = image_set(self, *of)
        return replace(images, labels=images.labels + 1)

    image_set = WorkerState.image_set
    monkeypatch.setattr(WorkerState, "image_set", more_classes)
    said = captured(group(tiny_plan(methods="[tent]").runs[:1], artifacts), state)
    (failure,) = [message for message in said if isinstance(message, Failure)]
    assert failure.kind is FailureClass.CONFIG
    assert "has 10 classes, and labels of" in failure.message


def test_folders_that_are_not_the_network_s_classes_are_refused(
    state: WorkerState, artifacts: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_plan(methods="[tent]").runs[0]
    benchmark = WorkerState.benchmark
    for shown, refused in ((10, False), (9, True)):

        def with_folders(self: WorkerState, *of: object, shown: int = shown) -> object:
            found = copy.copy(benchmark(self, *of))
            found.shown_classes = shown
            return found

        monkeypatch.setattr(WorkerState, "benchmark", with_folders)
        failures = [m for m in captured(group((run,), artifacts), state) if isinstance(m, Failure)]
        assert [f.kind for f in failures] == [FailureClass.CONFIG] * refused
        assert not refused or "10 classes, and digits-c 9 class folders" in failures[0].message


def test_a_run_without_data_fails_alone(state: WorkerState, artifacts: dict) -> None:
    good = tiny_plan(methods="[tent]").runs[0]
    bad = replace(good, run_id="f" * 16, config=replace(good.config, corruption="no_such_thing"))
    messages = list(execute(group((good, bad), artifacts), state))
    (failed,) = [m for m in messages if isinstance(m, RunFailed)]
    assert failed.run_id == bad.run_id
    assert failed.failure.kind in (FailureClass.CONFIG, FailureClass.DATA)
    assert list(finished(messages)) == [good.run_id]


def test_a_task_that_fails_ends_with_its_failure_and_its_log(state: WorkerState, artifacts: dict) -> None:
    good = tiny_plan(methods="[tent]").runs[0]
    bad = replace(good, config=replace(good.config, model="no-such-network"))
    messages = list(captured(group((bad,), artifacts), state))
    assert isinstance(messages[-1], Failure)
    assert messages[-1].kind is FailureClass.CONFIG
    assert any(isinstance(m, LogText) and "Traceback" in m.text for m in messages)


def test_what_a_run_prints_is_its_log(
    state: WorkerState, artifacts: dict, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from orchestrator import engine

    original = engine.make_stream

    def talkative(*args: object, **options: object) -> object:
        print("a stream is made")
        return original(*args, **options)

    monkeypatch.setattr(engine, "make_stream", talkative)
    run = tiny_plan(methods="[tent]").runs[0]
    messages = list(captured(group((run,), artifacts), state))
    assert "a stream is made" in "".join(m.text for m in messages if isinstance(m, LogText))
    assert "a stream is made" not in capsys.readouterr().out


def test_networks_and_images_stay_between_tasks(state: WorkerState, artifacts: dict) -> None:
    run = tiny_plan(methods="[tent]").runs[0]
    list(execute(group((run,), artifacts), state))
    held = dict(state.networks._held)
    list(execute(group((run,), artifacts), state))
    assert {k: id(v[0]) for k, v in state.networks._held.items()} == {k: id(v[0]) for k, v in held.items()}


def test_residents_leave_in_order_of_use() -> None:
    held: Resident[str] = Resident(10)
    for name in "abc":
        held.get(name, lambda name=name: name * 4, len)
    made = []
    held.get("a", lambda: made.append("a") or "aaaa", len)
    held.get("c", lambda: made.append("c") or "cccc", len)
    assert made == ["a"]
    assert held.used <= 10


def test_a_changed_device_is_noticed(state: WorkerState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(WrongDeviceError, match="CUDA_VISIBLE_DEVICES"):
        list(execute(group((), {}), state))


def test_compiled_code_is_kept_with_the_cache_unless_it_has_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    keep_compiled_code(tmp_path)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/elsewhere"
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    keep_compiled_code(tmp_path)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "compiled")


def test_a_sweep_in_process(state: WorkerState) -> None:
    from exec_fakes import make_driver

    runs = tiny_plan(seeds=[0, 1], methods="[no-adapt, tent]").runs
    executor = InlineExecutor(WorkerState(cache=state.cache))
    driver = make_driver(runs, executor, store=MemoryStore(), lockstep=True, group_size=2)
    driver.cache = state.cache
    outcome = driver.run()
    executor.close()
    assert (outcome.committed, outcome.exit_code) == (4, 0)
    assert {row["group_size"] for _, row in driver.store.commits.values()} == {2}


def test_a_task_cancelled_in_process_ends(state: WorkerState, artifacts: dict) -> None:
    run = tiny_plan(methods="[tent]").runs[0]
    executor = InlineExecutor(state)
    executor.start(group((run,), artifacts), executor.slot)
    executor.cancel("another")
    executor.cancel("t")
    (ended,) = [event for event in executor.poll(0.0) if isinstance(event, TaskEnded)]
    assert ended.failure is not None
    assert (ended.task_id, ended.failure.kind) == ("t", FailureClass.CANCELLED)
    assert executor.poll(0.0) == []
