"""The store on pyarrow's file systems, as it runs on s3:// and gs:// roots."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pytest
import store_runs as sr

from orchestrator.results import Results
from orchestrator.store import ParquetStore, StoreError, attempt, compactor, fsck
from orchestrator.store.object_tree import ObjectTree
from orchestrator.store.tree import open_tree
from orchestrator.types import Checkpoint, Failure, FailureClass, Plan


@pytest.fixture(autouse=True)
def rows_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "INLINE_BYTES", 0)


@pytest.fixture
def tree(tmp_path: Path) -> ObjectTree:
    bucket = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    return ObjectTree(bucket, "bucket/results/sweep", "s3://bucket/results/sweep")


@pytest.fixture
def store(tree: ObjectTree) -> ParquetStore:
    return ParquetStore("s3://bucket/results", "sweep", tree=tree)


def results(tree: ObjectTree) -> Results:
    return Results({"sweep": tree})


def test_a_sweep_from_plan_to_tables(store, tree, tmp_path):
    runs = list(sr.grid())
    store.write_spec("name: sweep", {"name": "sweep"})
    store.write_plan(Plan(sweep="sweep", runs=tuple(runs)))
    for run in runs[:-1]:
        assert sr.run_once(store, run)
    store.begin(runs[-1], 1)
    store.append(runs[-1].run_id, 1, "batches", sr.batch_rows(range(2)))
    store.flush()
    store.append(runs[-1].run_id, 1, "batches", sr.batch_rows(range(2, 3)))
    store.flush()
    assert results(tree).batches([runs[-1].run_id], partial=True)["step"].to_pylist() == [0, 1, 2]
    keys = sr.as_sets(results(tree).batches(), ["run_id", "step"])
    store.close()
    assert sr.as_sets(results(tree).batches(), ["run_id", "step"]) == keys
    assert len(results(tree).runs()) == len(runs) - 1
    accuracy = results(tree).aggregates().filter(pads.field("metric") == "accuracy").to_pylist()
    assert [r["missing_seeds"] for r in accuracy if r["missing_seeds"]] == [[2], [2], [2]]  # the condition, 2 averages
    plain = pads.dataset(str(tmp_path / "bucket/results/sweep/tables/samples")).to_table()
    assert len(plain) == 32 * (len(runs) - 1)


def test_a_second_commit_is_refused(store, tree):
    run = sr.planned()
    store.begin(run, 9)
    assert sr.run_once(store, run)
    assert not store.commit(run, 9, sr.row(0))
    assert results(tree).runs()["attempt"].to_pylist() == [10]


def test_parts_are_only_added_never_rewritten(store, tree, monkeypatch):
    monkeypatch.setattr(compactor, "CHUNK_RUNS", 4)
    for run in sr.grid():
        sr.run_once(store, run)
    store.close()
    parts = tree.children("tables/runs")
    assert len(parts) == 5
    before = {name: tree.read(f"tables/runs/{name}") for name in parts}
    sr.run_once(store, sr.planned(77))
    store.close()
    assert {name: tree.read(f"tables/runs/{name}") for name in parts} == before
    assert len(results(tree).runs()) == 19


def test_attempts_logs_failures_and_checkpoints(store, tree):
    run = sr.planned()
    store.begin(run, 1)
    store.append_log(run.run_id, 1, "one ")
    store.flush()
    store.append_log(run.run_id, 1, "two")
    store.save_checkpoint(run.run_id, 1, Checkpoint(run_id=run.run_id, step=3, blob=b"state"))
    store.fail(run.run_id, 1, Failure(kind=FailureClass.TIMEOUT, message="late"))
    again = ParquetStore("s3://bucket/results", "sweep", tree=tree)
    assert again.next_attempt(run.run_id) == 2
    assert again.load_checkpoint(run.run_id).blob == b"state"
    assert again.failures()[run.run_id].message == "late"
    assert results(tree).log(run.run_id, 1) == "one two"
    assert results(tree).attempts(run.run_id)[0].state == "failed"


def test_fsck_lists_strays(store, tree):
    sr.run_once(store, sr.planned())
    store.close()
    assert {f.kind for f in fsck.check(tree)} == {"left over"}  # objects are deleted by `fsck --clean` alone
    tree.replace("tables/runs/other.parquet", b"")
    serious = [(f.kind, f.path) for f in fsck.check(tree) if f.serious]
    assert serious == [("zero-byte", "tables/runs/other.parquet")]
    before = results(tree).samples()
    fsck.clean(tree, fsck.check(tree))
    assert fsck.check(tree) == []
    assert results(tree).samples().equals(before)


def test_roots_that_no_file_system_knows_are_refused():
    with pytest.raises(StoreError, match="cannot be opened"):
        open_tree("ftp4://somewhere/results")
