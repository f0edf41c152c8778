"""The store on pyarrow's file systems, as it runs on s3:// and gs:// roots."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pytest
import store_runs as sr

from orchestrator.query import query
from orchestrator.results import Results, open_results, sweeps
from orchestrator.store import ParquetStore, StoreError, attempt, compactor, fsck
from orchestrator.store.object_tree import ObjectTree
from orchestrator.store.tree import join, open_tree
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
    fsck.clean(tree)
    assert fsck.check(tree) == []
    assert results(tree).samples().equals(before)


def test_options_of_a_uri_stay_at_its_end():
    assert join("s3://b/r?region=x&scheme=http", "sweep", "tables") == "s3://b/r/sweep/tables?region=x&scheme=http"
    assert join("s3://b/r/", "sweep") == "s3://b/r/sweep"
    assert join("/", "sweep") == "/sweep"
    assert join("odd?name", "sweep") == "odd?name/sweep"


def test_keys_in_a_uri_are_refused():
    with pytest.raises(StoreError, match="in the environment") as caught:
        open_tree("s3://AKIA:secret@bucket/results")
    with pytest.raises(StoreError, match="in the environment"):
        open_tree("gs://anonymous:secret@bucket/results")
    assert "secret" not in str(caught.value)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def served(command: list[str], port: int) -> Iterator[None]:
    """A server in a process of its own, once it listens on ``port``."""
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # the environment need not be activated
    program = shutil.which(command[0], path=beside)
    if program is None:
        pytest.skip(f"needs {command[0]}, which is in the test extra")
    process = subprocess.Popen([program, *command[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(150):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def s3_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URI of an empty prefix on a local S3 server (moto)."""
    for name, value in {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}.items():
        monkeypatch.setenv(name, value)
    port = free_port()
    with served(["moto_server", "-H", "127.0.0.1", "-p", str(port)], port):
        options = {"endpoint_override": f"127.0.0.1:{port}", "scheme": "http", "region": "us-east-1"}
        pafs.S3FileSystem(**options, allow_bucket_creation=True).create_dir("bucket")
        yield f"s3://bucket/results?{'&'.join(f'{k}={v}' for k, v in options.items())}"


@pytest.fixture
def gs_root() -> Iterator[str]:
    """The URI of an empty prefix on a local server that speaks Google's protocol (gcp-storage-emulator)."""
    if not hasattr(pafs, "GcsFileSystem"):
        pytest.skip("this build of pyarrow has no GcsFileSystem")
    port = free_port()
    command = ["gcp-storage-emulator", "start", "--host", "127.0.0.1", "--port", str(port), "--in-memory"]
    with served([*command, "--default-bucket", "bucket"], port):
        yield f"gs://anonymous@bucket/results?scheme=http&endpoint_override=127.0.0.1:{port}&retry_limit_seconds=20"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_a_sweep_on_a_server(kind, request):
    root = request.getfixturevalue(f"{kind}_root")
    store = ParquetStore(root, "sweep")
    runs = list(sr.grid(range(2)))
    store.write_plan(Plan(sweep="sweep", runs=tuple(runs)))
    for run in runs[1:]:
        assert sr.run_once(store, run)
    running, failed = sr.planned(9), sr.planned(10)
    store.begin(failed, 1)
    store.fail(failed.run_id, 1, Failure(kind=FailureClass.TIMEOUT, message="late"))
    store.begin(running, 1)
    for step in range(3):
        store.append(running.run_id, 1, "batches", sr.batch_rows([step]))
        store.append_log(running.run_id, 1, f"{step} ")
        store.flush()
    store.save_checkpoint(running.run_id, 1, Checkpoint(run_id=running.run_id, step=3, blob=b"state"))
    assert open_results(root).batches([running.run_id], partial=True)["step"].to_pylist() == [0, 1, 2]
    assert len(open_results(root).runs()) == 11
    store.close()
    assert sr.run_once(store, runs[0])
    again = ParquetStore(root, "sweep")
    assert set(again.committed()) == {r.run_id for r in runs}, "compacted and not"
    assert again.failures()[failed.run_id].message == "late"
    assert again.next_attempt(running.run_id) == 2
    assert again.load_checkpoint(running.run_id).blob == b"state"
    again.begin(runs[0], 7)
    assert not again.commit(runs[0], 7, sr.row(0))
    again.close()
    assert sweeps(root) == ["sweep"]
    read = open_results(root, "sweep")
    assert (len(read.runs()), len(read.batches()), len(read.samples())) == (12, 48, 384)
    assert read.log(running.run_id, 1) == "0 1 2 "
    assert [a.state for a in read.attempts(failed.run_id)] == ["failed"]
    assert query(read, "SELECT count(*) AS n FROM samples").to_pylist() == [{"n": 384}]
    filesystem, base = pafs.FileSystem.from_uri(join(root, "sweep", "tables", "runs"))
    assert pads.dataset(base, filesystem=filesystem).count_rows() == 12
    assert {f.kind for f in fsck.check(again.tree)} <= {"left over", "superseded", "truncated"}


def test_roots_that_no_file_system_knows_are_refused():
    with pytest.raises(StoreError, match="cannot be opened"):
        open_tree("ftp4://somewhere/results")
