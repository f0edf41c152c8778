"""What readers see: committed rows once, partial ones marked, old schemas as new, strays not at all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
import store_runs as sr

from deyo.types import ConfigError
from orchestrator import open_results, schema
from orchestrator.store import DamagedError, ParquetStore, attempt, compactor
from orchestrator.store.manifest import read_manifest
from orchestrator.store.snapshot import take

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def store(tmp_path: Path) -> ParquetStore:
    return ParquetStore(str(tmp_path / "results"), "sweep")


def seen(root: str, **options) -> tuple[set, set, set]:
    """Keys of all rows of the three grains, after checking that none is double."""
    r = open_results(root)
    return (
        sr.as_sets(r.runs(**options), ["run_id", "attempt"]),
        sr.as_sets(r.batches(**options), ["run_id", "attempt", "step"]),
        sr.as_sets(r.samples(**options), ["run_id", "attempt", "position"]),
    )


def expected(runs, steps: int = 4) -> tuple[set, set, set]:
    return (
        {(r.run_id, 1) for r in runs},
        {(r.run_id, 1, s) for r in runs for s in range(steps)},
        {(r.run_id, 1, p) for r in runs for p in range(8 * steps)},
    )


@pytest.mark.parametrize("inline", [0, 8192])
def test_every_committed_row_is_there_once_before_during_and_after_compaction(store, monkeypatch, inline):
    """Rows that were in files of their own, and rows that the commit marker held."""
    monkeypatch.setattr(attempt, "INLINE_BYTES", inline)
    monkeypatch.setattr(compactor, "CHUNK_RUNS", 4)
    monkeypatch.setattr(compactor, "PART_RUNS", 6)
    runs = list(sr.grid(range(3)))
    for run in runs:
        sr.run_once(store, run)
    assert seen(store.root) == expected(runs)
    assert len(list(Path(store.root).rglob("*.arrows"))) == (0 if inline else 2 * len(runs))
    left = [1]
    while left[-1]:
        left.append(compactor.compact(store.tree)[1])
        assert seen(store.root) == expected(runs)
    assert left == [1, 14, 10, 6, 2, 0]
    assert len(read_manifest(store.tree).parts["runs"]) == 3
    assert not list(Path(store.root).rglob("*.arrows"))  # compacted rows are stored once
    assert compactor.compact(store.tree) == (0, 0)


def test_rows_are_what_was_appended(store):
    run = sr.planned()
    sr.run_once(store, run)
    before = open_results(store.root)
    samples = before.samples()
    store.close()
    assert open_results(store.root).samples().equals(samples)
    assert samples.select(["position", "prediction", "entropy"]).equals(
        pa.Table.from_batches([sr.sample_rows(range(32))]).select(["position", "prediction", "entropy"])
    )
    assert open_results(store.root).batches()["correct"].to_pylist() == [0, 1, 2, 3]


def test_plain_parquet_readers_of_the_documented_folders_see_the_same(store):
    runs = list(sr.grid())
    for run in runs:
        sr.run_once(store, run, samples=run.config.label == "deyo")
    store.close()
    tables = Path(store.root) / "tables"
    for grain in schema.GRAINS:
        ours = getattr(open_results(store.root), grain)()
        plain = pads.dataset(str(tables / grain)).to_table()
        assert plain.replace_schema_metadata(None).equals(ours)
        frame = pd.read_parquet(tables / grain)
        assert len(frame) == len(ours)
        assert len(pads.dataset(str(tables / grain), format="parquet").files) == len(os.listdir(tables / grain))
    aggregates = pq.read_table(tables / "aggregates")
    assert aggregates.equals(open_results(store.root).aggregates().replace_schema_metadata(None))


def test_polars_reads_the_documented_folders(store):
    polars = pytest.importorskip("polars", reason="polars is not installed (it is in the test extra)")
    for run in sr.grid():
        sr.run_once(store, run, samples=run.config.label == "deyo")
    store.close()
    tables, results = Path(store.root) / "tables", open_results(store.root)
    for grain in (*schema.GRAINS, "aggregates"):
        frame = polars.read_parquet(tables / grain)
        ours = getattr(results, grain)()
        assert frame.columns == ours.column_names
        assert frame.height == len(ours) > 0
    accuracy = polars.scan_parquet(tables / "runs").group_by("label").agg(polars.col("accuracy").mean())
    found = dict(accuracy.collect().iter_rows())
    expected = results.pandas("runs").groupby("label").accuracy.mean()
    assert found == pytest.approx(expected.to_dict())


def test_plain_reads_work_before_anything_was_recorded(store):
    sr.run_once(store, sr.planned(), samples=False)
    store.close()
    empty = pads.dataset(f"{store.root}/tables/samples").to_table()
    assert (len(empty), empty.column_names) == (0, schema.SAMPLES.names)


def test_rows_of_running_runs_are_there_only_if_asked_for_and_marked(store):
    done, running = sr.planned(0), sr.planned(1)
    sr.run_once(store, done)
    store.begin(running, 1)
    store.append(running.run_id, 1, "batches", sr.batch_rows(range(3)))
    store.append(running.run_id, 1, "samples", sr.sample_rows(range(24)))
    store.flush()
    results = open_results(store.root)
    assert results.runs()["run_id"].to_pylist() == [done.run_id]
    assert "partial" not in results.runs().column_names
    partial = {r["run_id"]: r for r in results.runs(partial=True).to_pylist()}
    assert {k: r["partial"] for k, r in partial.items()} == {done.run_id: False, running.run_id: True}
    row = partial[running.run_id]
    assert (row["images"], row["accuracy"], row["seed"], row["label"]) == (24, 3 / 24, 1, "deyo")
    assert results.batches(partial=True).filter(pa.compute.field("partial")).num_rows == 3
    assert results.samples([running.run_id], partial=True).num_rows == 24
    store.append(running.run_id, 1, "batches", sr.batch_rows([3]))
    store.append(running.run_id, 1, "samples", sr.sample_rows(range(24, 32)))
    store.commit(running, 1, sr.row(32))
    assert open_results(store.root).batches(partial=True)["partial"].to_pylist() == [False] * 8


def test_partial_rows_are_of_one_attempt(store):
    run = sr.planned()
    for attempt_number, steps in ((1, 5), (2, 3)):
        store.begin(run, attempt_number)
        store.append(run.run_id, attempt_number, "batches", sr.batch_rows(range(steps)))
    store.flush()
    rows = open_results(store.root).batches(partial=True)
    assert (rows["attempt"].to_pylist(), rows["step"].to_pylist()) == ([2, 2, 2], [0, 1, 2])
    assert len(open_results(store.root).runs(partial=True)) == 1


def test_rows_become_readable_without_a_flush(store, monkeypatch):
    import orchestrator.store.writer as writer

    run = sr.planned()
    store.begin(run, 1)
    store.append(run.run_id, 1, "batches", sr.batch_rows([0]))
    assert len(open_results(store.root).batches(partial=True)) == 0
    later = writer.time.monotonic() + writer.READABLE_SECONDS + 1
    monkeypatch.setattr(writer.time, "monotonic", lambda: later)
    store.append(run.run_id, 1, "batches", sr.batch_rows([1]))
    assert len(open_results(store.root).batches(partial=True)) == 2


def test_a_stream_cut_anywhere_gives_the_rows_before_the_cut(store):
    run = sr.planned()
    store.begin(run, 1)
    for step in range(20):
        store.append(run.run_id, 1, "batches", sr.batch_rows([step]))
    store.flush()
    path = next(Path(store.root).rglob("*.arrows"))
    whole = path.read_bytes()
    counts = []
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        steps = open_results(store.root).batches(partial=True)["step"].to_pylist()
        assert steps == list(range(len(steps)))
        counts.append(len(steps))
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] >= 18


def test_strays_disturb_no_reader(store, monkeypatch):
    monkeypatch.setattr(attempt, "INLINE_BYTES", 0)
    runs = list(sr.grid())
    for run in runs[:10]:
        sr.run_once(store, run)
    store.close()
    for run in runs[10:]:
        sr.run_once(store, run)
    before = seen(store.root)
    root = Path(store.root)
    part = (root / "tables/runs/part-00000.parquet").read_bytes()
    for place in ("tables/runs", "tables/batches", "tables/samples", "commits/ab", "attempts/ab", "failures/ab", "tmp"):
        folder = root / place
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "part-00007.parquet").write_bytes(part)
        (folder / "cut.parquet").write_bytes(part[: len(part) // 2])
        (folder / "empty.parquet").write_bytes(b"")
        (folder / "0123456789abcdef.json.tmp").write_bytes(b"{")
        (folder / "notes.txt").write_text("hello")
    (root / "commits/ab/ab23456789abcdef.json").write_bytes(b"")  # a marker cut short is none
    (root / "failures/ab/ab23456789abcdef.json").write_bytes(b"{")
    assert seen(store.root) == before == expected(runs)
    assert len(store.committed()) == len(runs)
    assert store.failures() == {}
    store.close()
    assert seen(store.root) == before


def test_a_damaged_listed_part_is_an_error_that_says_so(store):
    sr.run_once(store, sr.planned())
    store.close()
    path = Path(store.root) / "tables/runs/part-00000.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DamagedError, match=r"part-00000.*fsck --repair"):
        open_results(store.root).runs()


def test_replaced_runs_are_left_out_unless_asked_for(store):
    old = sr.planned(0, run_id="a" * 16, stamps={"config_id": "c" * 16, "numerics_version": 1})
    new = sr.planned(0, run_id="b" * 16, stamps={"config_id": "c" * 16, "numerics_version": 2})
    sr.run_once(store, old, finished_at="2026-01-01T00:00:00Z")
    sr.run_once(store, new, finished_at="2026-01-02T00:00:00Z")
    results = open_results(store.root)
    assert results.runs()["run_id"].to_pylist() == ["b" * 16]
    assert results.batches()["run_id"].unique().to_pylist() == ["b" * 16]
    assert len(results.runs(replaced=True)) == 2
    assert set(store.committed()) == {"a" * 16, "b" * 16}


def test_columns_and_runs_can_be_chosen(store):
    runs = list(sr.grid())
    for run in runs:
        sr.run_once(store, run)
    results = open_results(store.root)
    some = results.batches([runs[0].run_id], columns=["step", "correct"])
    assert some.column_names == ["step", "correct"]
    assert some["step"].to_pylist() == [0, 1, 2, 3]
    assert results.pandas("batches").shape == (72, len(schema.BATCHES))
    with pytest.raises(ConfigError, match="no column 'colour'"):
        results.runs(columns=["colour"])
    with pytest.raises(ConfigError, match="expected one of"):
        results.pandas("epochs")


def test_several_sweeps_are_read_together(tmp_path):
    for name in ("one", "two"):
        store = ParquetStore(str(tmp_path), name)
        sr.run_once(store, sr.planned(label=name))
        store.close()
    (tmp_path / "mlflow.db").write_bytes(b"")
    (tmp_path / "elsewhere").mkdir()
    both = open_results(str(tmp_path))
    assert both.sweeps == ("one", "two")
    assert both.runs()["sweep"].to_pylist() == ["one", "two"]
    assert set(both.aggregates()["sweep"].to_pylist()) == {"one", "two"}
    assert open_results(str(tmp_path), "two").runs()["sweep"].to_pylist() == ["two"]
    with pytest.raises(ConfigError, match=r"no sweep 'three' .* there: one, two"):
        open_results(str(tmp_path), "three")
    with pytest.raises(ConfigError, match="no results under"):
        open_results(str(tmp_path / "elsewhere"))


# Schema


def test_the_schema_only_grows():
    """The columns of version 1, frozen in a file, are all there with their types."""
    first = json.loads((FIXTURES / "schema_v1.json").read_text())
    now = {**schema.GRAINS, "aggregates": schema.AGGREGATES}
    for grain, columns in first.items():
        names = list(columns)
        assert now[grain].names[: len(names)] == names
        assert {n: str(now[grain].field(n).type) for n in names} == columns


def test_a_store_of_version_1_is_read_as_one_of_today():
    results = open_results(str(FIXTURES / "store_v1"), "old")
    runs = results.runs()
    assert runs.schema.equals(schema.RUNS)
    assert runs["schema_version"].unique().to_pylist() == [1]
    assert sorted(runs["seed"].to_pylist()) == [0, 1, 2, 3, 4]
    assert runs["config_id"].null_count == 5
    assert runs.select(["config_id"]).num_rows == results.runs(columns=["config_id"]).num_rows == 5
    assert (results.batches().num_rows, results.samples().num_rows) == (20, 32)
    accuracy = results.aggregates().filter(pa.compute.field("metric") == "accuracy").to_pylist()
    assert len(accuracy) == 1
    assert (accuracy[0]["n"], accuracy[0]["seeds"]) == (5, [0, 1, 2, 3, 4])
    assert accuracy[0]["mean"] == pytest.approx(0.7)


def test_a_store_of_version_1_is_continued_and_brought_up_to_date(tmp_path):
    shutil.copytree(FIXTURES / "store_v1", tmp_path / "r")
    store = ParquetStore(str(tmp_path / "r"), "old")
    assert len(store.committed()) == 5
    sr.run_once(store, sr.planned(7, "tent"))
    store.close()
    assert len(open_results(str(tmp_path / "r"), "old").runs()) == 6
    plain = pads.dataset(str(tmp_path / "r/old/tables/runs")).to_table()
    assert plain.column_names == schema.RUNS.names
    assert plain["config_id"].null_count == 5


# Beside a writer

_READER = """
import sys, time
from orchestrator import open_results
root, seconds = sys.argv[1], float(sys.argv[2])
end, looks, last = time.time() + seconds, 0, 0
while time.time() < end:
    r = open_results(root)
    runs = r.runs(columns=["run_id"])["run_id"].to_pylist()
    assert len(set(runs)) == len(runs), "a run twice"
    assert len(runs) >= last, "a run vanished"
    batches = r.batches(columns=["run_id", "step"]).to_pydict()
    keys = list(zip(batches["run_id"], batches["step"]))
    assert len(set(keys)) == len(keys), "a batch twice"
    assert len(keys) % 4 == 0 and len(keys) >= 4 * len(runs), "rows of a run missing"
    last, looks = len(runs), looks + 1
print(looks, last)
"""


def test_readers_in_other_processes_see_no_run_twice_torn_or_gone_while_compaction_goes_on(store, monkeypatch):
    monkeypatch.setattr(compactor, "PART_RUNS", 40)
    sr.run_once(store, sr.planned(10_000))
    command = [sys.executable, "-c", _READER, store.root, "4"]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    seed = 0
    while reader.poll() is None:
        monkeypatch.setattr(attempt, "INLINE_BYTES", 8192 * (seed % 2))
        sr.run_once(store, sr.planned(seed))
        seed += 1
        if seed % 7 == 0:
            compactor.compact(store.tree)
    out, err = reader.communicate()
    assert reader.returncode == 0, err
    looks, last = map(int, out.split())
    assert looks > 2
    assert 1 < last <= seed + 1


def test_numbers_survive_bit_for_bit(store):
    values = np.random.default_rng(0).normal(size=50)
    for seed, value in enumerate(values):
        sr.run_once(store, sr.planned(seed), accuracy=float(value))
    store.close()
    table = open_results(store.root).runs(columns=["seed", "accuracy"]).sort_by("seed")
    assert table["accuracy"].to_pylist() == values.tolist()


def test_rows_that_are_compacted_while_a_reader_is_at_work_are_not_lost(store, monkeypatch):
    """The snapshot is taken, then everything is compacted, then the rows are read."""
    monkeypatch.setattr(attempt, "INLINE_BYTES", 0)
    runs = list(sr.grid())
    for number, run in enumerate(runs):
        sr.run_once(store, run)
        if number == 5:
            compactor.compact(store.tree)
    snapshot = take(store.tree)
    sr.run_once(store, sr.planned(99))
    store.close()
    for grain, key in (("runs", "attempt"), ("batches", "step"), ("samples", "position")):
        table = pa.Table.from_batches(snapshot.batches(grain), schema.GRAINS[grain])
        assert set(table["run_id"].to_pylist()) == {r.run_id for r in runs}
        assert len(sr.as_sets(table, ["run_id", key])) == len(runs) * {"runs": 1, "batches": 4, "samples": 32}[grain]
