"""Attempts and commits: once, whole, and nothing mixed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import store_runs as sr

from orchestrator import open_results, schema
from orchestrator.store import ParquetStore, StoreError, layout
from orchestrator.store import attempt as store_attempt
from orchestrator.types import Checkpoint, Failure, FailureClass, Plan


@pytest.fixture
def store(tmp_path: Path) -> ParquetStore:
    return ParquetStore(str(tmp_path), "sweep")


def results(store: ParquetStore):
    return open_results(store.root)


def test_a_commit_is_readable_at_once_with_its_identity_and_provenance(store):
    run = sr.planned(seed=3, aliases=("also",))
    assert sr.run_once(store, run, accuracy=0.25, device_name="H100", libraries='{"torch": "2.11"}')
    row = results(store).runs().to_pylist()[0]
    expected = {
        "run_id": run.run_id,
        "attempt": 1,
        "sweep": "sweep",
        "seed": 3,
        "label": "deyo",
        "settings": '{"lr": 0.001}',
        "accuracy": 0.25,
        "device_name": "H100",
        "code_digest": "c1",
        "config_id": run.stamps["config_id"],
        "aliases": ["also"],
        "schema_version": schema.VERSION,
    }
    assert {name: row[name] for name in expected} == expected
    assert list(row) == schema.RUNS.names
    info = store.committed()[run.run_id]
    assert (info.attempt, info.stamps["weights_id"], info.stamps["device_name"]) == (1, "w1", "H100")
    assert info.finished_at == row["finished_at"]


def test_the_second_commit_of_a_run_is_refused_and_kept_aside(store):
    run = sr.planned()
    store.begin(run, 1)
    store.begin(run, 2)  # a late twin, given up and then heard of again
    for attempt, steps in ((2, 4), (1, 3)):
        store.append(run.run_id, attempt, "batches", sr.batch_rows(range(steps)))
    assert store.commit(run, 2, sr.row(32, 0.75))
    assert not store.commit(run, 1, sr.row(24, 0.5))
    store.close()
    runs, batches = results(store).runs(), results(store).batches()
    assert (runs["attempt"].to_pylist(), runs["accuracy"].to_pylist()) == ([2], [0.75])
    assert batches["attempt"].unique().to_pylist() == [2]
    assert len(batches) == 4
    aside = json.loads(store.tree.read(layout.attempt_file(run.run_id, 1, "superseded.json")))
    assert aside["row"]["accuracy"] == 0.5
    assert [a.state for a in results(store).attempts(run.run_id)] == ["superseded", "committed"]


def test_attempts_count_up_across_drivers_and_are_begun_once(store, tmp_path):
    run = sr.planned()
    assert store.next_attempt(run.run_id) == 1
    store.begin(run, 1)
    again = ParquetStore(str(tmp_path), "sweep")
    assert again.next_attempt(run.run_id) == 2
    with pytest.raises(StoreError, match="begun before"):
        again.begin(run, 1)
    with pytest.raises(StoreError, match="begin it first"):
        again.append(run.run_id, 1, "batches", sr.batch_rows(range(1)))


def test_rows_with_a_gap_or_of_another_kind_are_refused(store):
    run = sr.planned()
    store.begin(run, 1)
    store.append(run.run_id, 1, "batches", sr.batch_rows(range(2)))
    with pytest.raises(StoreError, match="go on at step 2"):
        store.append(run.run_id, 1, "batches", sr.batch_rows([3]))
    with pytest.raises(StoreError, match="expected one of"):
        store.append(run.run_id, 1, "epochs", sr.batch_rows([2]))
    strange = sr.batch_rows([2]).rename_columns([*schema.BATCHES.names[:-1], "colour"])
    with pytest.raises(StoreError, match="colour"):
        store.append(run.run_id, 1, "batches", strange)


def test_a_run_whose_batches_were_lost_on_the_way_is_not_committed(store):
    run = sr.planned()
    store.begin(run, 1)
    store.append(run.run_id, 1, "batches", sr.batch_rows(range(3)))
    with pytest.raises(StoreError, match="counts 32 images, but its batches 24"):
        store.commit(run, 1, sr.row(32))
    assert len(results(store).runs()) == 0


def test_rows_of_a_run_must_fit_the_schema(store):
    run = sr.planned()
    store.begin(run, 1)
    with pytest.raises(StoreError, match=r"unknown columns .'top5'."):
        store.commit(run, 1, {**sr.row(0), "top5": 1.0})
    with pytest.raises(StoreError, match="accuracy should be double"):
        store.commit(run, 1, {**sr.row(0), "accuracy": "high"})
    assert store.commit(run, 1, {**sr.row(0), "accuracy": np.float32(0.5), "aurc": float("nan")})
    row = results(store).runs().to_pylist()[0]
    assert row["accuracy"] == 0.5
    assert np.isnan(row["aurc"])
    assert row["worst_group_accuracy"] is None


def test_failures_are_the_last_of_runs_without_a_commit(store):
    runs = [sr.planned(seed) for seed in range(3)]
    for run in runs:
        store.begin(run, 1)
        store.append_log(run.run_id, 1, "before\n")
        store.fail(run.run_id, 1, Failure(kind=FailureClass.ERROR, message="first", signature="s"))
    store.begin(runs[0], 2)
    store.fail(runs[0].run_id, 2, Failure(kind=FailureClass.CUDA_OOM, message="second", traceback="T"))
    assert sr.run_once(store, runs[1])
    found = store.failures()
    assert set(found) == {runs[0].run_id, runs[2].run_id}
    assert found[runs[0].run_id] == Failure(kind=FailureClass.CUDA_OOM, message="second", traceback="T")
    states = [(a.attempt, a.state, a.failure and a.failure.message) for a in results(store).attempts(runs[0].run_id)]
    assert states == [(1, "failed", "first"), (2, "failed", "second")]
    assert results(store).failures() == found


def test_logs_can_be_read_while_the_attempt_runs_and_after_it_was_cut_off(store, tmp_path):
    run = sr.planned()
    store.begin(run, 1)
    store.append_log(run.run_id, 1, "one\n")
    store.append_log(run.run_id, 1, "two µ\n")
    assert results(store).log(run.run_id, 1) == "one\ntwo µ\n"
    again = ParquetStore(str(tmp_path), "sweep")
    again.begin(run, 2)
    again.append_log(run.run_id, 2, "again\n")
    assert again.commit(run, 2, sr.row(0))
    again.append_log(run.run_id, 2, "a last word\n")
    again.flush()
    assert results(store).log(run.run_id, 1) == "one\ntwo µ\n"
    assert results(store).log(run.run_id, 2) == "again\na last word\n"
    assert [a.state for a in results(store).attempts(run.run_id)] == ["open", "committed"]


def test_checkpoints_come_back_newest_first_and_whole(store, tmp_path):
    run = sr.planned()
    store.begin(run, 1)
    for step in (10, 20, 30):
        store.save_checkpoint(run.run_id, 1, Checkpoint(run_id=run.run_id, step=step, blob=bytes([step]) * 50))
    again = ParquetStore(str(tmp_path), "sweep")
    assert again.load_checkpoint(run.run_id) == Checkpoint(run_id=run.run_id, step=30, blob=bytes([30]) * 50)
    newest = Path(store.root) / layout.checkpoint(run.run_id, 1, 30)
    newest.write_bytes(newest.read_bytes()[:-7])  # cut short
    assert again.load_checkpoint(run.run_id).step == 20
    assert not (Path(store.root) / layout.checkpoint(run.run_id, 1, 10)).exists()
    assert store.commit(run, 1, sr.row(0))
    assert store.load_checkpoint(run.run_id) is None


def test_the_plan_comes_back_as_it_was(store):
    runs = tuple(sr.planned(seed, corruption=None, corruptions=("fog", "snow"), aliases=("x",)) for seed in range(2))
    plan = Plan(sweep="sweep", runs=runs)
    store.write_plan(plan)
    assert results(store).plan() == plan


@pytest.mark.parametrize("name", ["../evil", "a/b", "", ".hidden", "x" * 200, "ünicode"])
def test_sweep_names_that_are_no_folder_names_are_refused(tmp_path, name):
    with pytest.raises(StoreError, match="sweep name"):
        ParquetStore(str(tmp_path), name)


def test_a_damaged_commit_does_not_count_and_gives_way_to_a_new_one(store):
    run = sr.planned()
    assert sr.run_once(store, run)
    marker = Path(store.root) / layout.commit(run.run_id)
    marker.write_bytes(marker.read_bytes()[:40])
    assert run.run_id not in store.committed()
    assert sr.run_once(store, run, accuracy=0.875)
    assert results(store).runs()["accuracy"].to_pylist() == [0.875]
    assert results(store).runs()["attempt"].to_pylist() == [2]


def test_a_commit_whose_rows_were_lost_does_not_count(store, monkeypatch):
    monkeypatch.setattr(store_attempt, "INLINE_BYTES", 0)
    run, other = sr.planned(0), sr.planned(1)
    assert sr.run_once(store, run)
    assert sr.run_once(store, other)
    (Path(store.root) / layout.attempt_file(run.run_id, 1, "batches.arrows")).write_bytes(b"")
    assert set(store.committed()) == {other.run_id}
    assert results(store).batches()["run_id"].unique().to_pylist() == [other.run_id]
    assert sr.run_once(store, run)
    assert set(store.committed()) == {run.run_id, other.run_id}
