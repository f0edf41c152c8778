"""fsck: what it lists, what it deletes, what it repairs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import store_runs as sr

from orchestrator import open_results
from orchestrator.cli.main import run as cli
from orchestrator.store import ParquetStore, attempt, fsck, layout
from orchestrator.types import Checkpoint, Failure, FailureClass, Plan


@pytest.fixture(autouse=True)
def rows_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "INLINE_BYTES", 0)


@pytest.fixture
def store(tmp_path: Path) -> ParquetStore:
    return ParquetStore(str(tmp_path), "sweep")


def kinds(store: ParquetStore) -> dict[str, str]:
    return {f.path: f.kind for f in fsck.check(store.tree)}


def test_a_healthy_sweep_has_no_findings(store):
    for run in sr.grid():
        sr.run_once(store, run)
        assert not kinds(store) or run.config.seed
    store.begin(sr.planned(50), 1)
    store.append(sr.planned(50).run_id, 1, "batches", sr.batch_rows([0]))
    store.append_log(sr.planned(50).run_id, 1, "x")
    store.begin(sr.planned(51), 1)
    store.append(sr.planned(51).run_id, 1, "batches", sr.batch_rows([0]))
    store.fail(sr.planned(51).run_id, 1, Failure(kind=FailureClass.ERROR, message="m"))
    store.flush()
    assert kinds(store) == {}
    store.close()
    assert kinds(store) == {}


def test_every_kind_of_odd_file_is_listed(store):
    first, second, third = sr.planned(0), sr.planned(1), sr.planned(2)
    store.begin(first, 5)
    store.append(first.run_id, 5, "batches", sr.batch_rows([0]))
    sr.run_once(store, first)
    assert not store.commit(first, 5, sr.row(8))
    sr.run_once(store, second)
    store.close()
    store.begin(third, 1)
    store.append(third.run_id, 1, "batches", sr.batch_rows(range(3)))
    store.flush()
    ParquetStore(store.root.rpartition("/")[0], "sweep").flush()  # the next driver knows nothing of attempt 1
    root = Path(store.root)
    (root / "tables/runs/part-00009.parquet").write_bytes((root / "tables/runs/part-00000.parquet").read_bytes())
    (root / "tables/batches/cut.parquet").write_bytes(b"PAR1")
    (root / "tables/batches/nothing.parquet").write_bytes(b"")
    (root / "notes.txt").write_text("x")
    (root / "attempts/zz").mkdir()
    (root / "attempts/zz/0001.log").write_text("x")
    (root / "tmp" / "elsewhere~12~3").write_text("x")
    (root / "tmp" / "junk").write_text("x")
    store.tree.replace(layout.failure(second.run_id), b"{")
    found = kinds(store)
    assert found == {
        layout.attempt_file(first.run_id, 5, "superseded.json"): "superseded",
        layout.attempt_file(first.run_id, 5, "batches.arrows"): "superseded",
        layout.attempt_file(third.run_id, 1, "batches.arrows"): "truncated",
        layout.failure(second.run_id): "truncated",
        "tables/runs/part-00009.parquet": "stray",
        "tables/batches/cut.parquet": "stray",
        "tables/batches/nothing.parquet": "zero-byte",
        "notes.txt": "stray",
        "attempts/zz/0001.log": "stray",
        "tmp/elsewhere~12~3": "unfinished",
        "tmp/junk": "left over",
    }
    before = open_results(store.root).runs()
    fsck.clean(store.tree)
    assert set(kinds(store).values()) == {"truncated", "unfinished"}
    assert open_results(store.root).runs().equals(before)


def test_leftovers_of_a_crash_after_compaction_are_listed(store):
    run = sr.planned()
    sr.run_once(store, run)
    path = Path(store.root) / layout.attempt_file(run.run_id, 1, "batches.arrows")
    rows = path.read_bytes()
    store.close()
    path.write_bytes(rows)  # as if killed before it was deleted
    store.tree.replace(layout.checkpoint(run.run_id, 1, 4), b"x")
    assert kinds(store) == {
        layout.attempt_file(run.run_id, 1, "batches.arrows"): "left over",
        layout.checkpoint(run.run_id, 1, 4): "left over",
    }


@pytest.mark.parametrize("how", ["cut", "flip", "gone"])
@pytest.mark.parametrize("grain", ["runs", "batches", "samples"])
def test_a_damaged_part_is_found_and_repaired_by_running_again_what_is_lost(store, grain, how):
    runs = list(sr.grid())
    for run in runs:
        sr.run_once(store, run, samples=run.config.label == "deyo")
    store.close()
    path = Path(store.root) / f"tables/{grain}/part-00000.parquet"
    data = bytearray(path.read_bytes())
    if how == "gone":
        path.unlink()
    else:
        data[60] ^= 255
        path.write_bytes(data[:-50] if how == "cut" else data)
    assert kinds(store)[f"tables/{grain}/part-00000.parquet"] == "damaged"
    lost = set(fsck.repair(store.tree))
    by_samples = {r.run_id for r in runs if r.config.label == "deyo"}
    assert lost == {"runs": set(), "batches": {r.run_id for r in runs}, "samples": by_samples}[grain]
    assert set(store.committed()) == {r.run_id for r in runs} - lost
    for run in runs:
        if run.run_id in lost:
            assert sr.run_once(store, run, samples=run.config.label == "deyo")
    store.close()
    assert len(open_results(store.root).runs()) == len(runs)
    assert len(open_results(store.root).batches()) == 4 * len(runs)
    assert "damaged" not in kinds(store).values()


@pytest.mark.parametrize("grain", ["runs", "batches", "samples"])
def test_rows_that_stand_in_their_commits_come_back_without_running_again(store, grain, monkeypatch):
    monkeypatch.setattr(attempt, "INLINE_BYTES", 1 << 20)
    for run in sr.grid():
        sr.run_once(store, run)
    store.close()
    results = open_results(store.root)
    before = {g: getattr(results, g)().sort_by([("run_id", "ascending")]) for g in ("runs", "batches", "samples")}
    path = Path(store.root) / f"tables/{grain}/part-00000.parquet"
    path.write_bytes(path.read_bytes()[:-50])
    assert "damaged" in kinds(store).values()
    assert fsck.repair(store.tree) == []
    fsck.clean(store.tree)
    for _ in range(2):  # from the commits, and compacted again
        after = open_results(store.root)
        assert all(getattr(after, g)().sort_by([("run_id", "ascending")]).equals(before[g]) for g in before)
        assert "damaged" not in kinds(store).values()
        store.close()


def test_a_repair_that_forgot_rows_is_found(store, monkeypatch):
    monkeypatch.setattr(attempt, "INLINE_BYTES", 1 << 20)
    run = sr.planned()
    sr.run_once(store, run)
    store.close()
    manifest = Path(store.root) / layout.MANIFEST
    content = json.loads(manifest.read_text())
    content["parts"]["batches"] = []
    manifest.write_text(json.dumps(content))
    assert kinds(store)[layout.commit(run.run_id)] == "damaged"
    assert fsck.repair(store.tree) == []
    assert len(open_results(store.root).batches()) == 4
    assert kinds(store) == {}


def test_a_damaged_manifest_is_rebuilt(store):
    for run in sr.grid():
        sr.run_once(store, run)
    store.close()
    before = open_results(store.root).batches()
    (Path(store.root) / layout.MANIFEST).write_text("{")
    assert kinds(store) == {layout.MANIFEST: "damaged"}
    assert fsck.repair(store.tree) == []
    assert open_results(store.root).batches().equals(before)
    assert kinds(store) == {}


def test_damaged_plan_and_aggregates_are_listed_and_written_again(store):
    sr.run_once(store, sr.planned())
    store.write_plan(Plan(sweep="sweep", runs=(sr.planned(),)))
    store.close()
    for path in (layout.PLAN, layout.AGGREGATES):
        file = Path(store.root) / path
        file.write_bytes(file.read_bytes()[:-9])
    assert kinds(store) == {layout.PLAN: "damaged", layout.AGGREGATES: "damaged"}
    store.write_plan(Plan(sweep="sweep", runs=(sr.planned(),)))
    store.close()
    assert kinds(store) == {}


def test_damaged_rows_of_a_commit_are_listed(store):
    run = sr.planned()
    sr.run_once(store, run)
    path = Path(store.root) / layout.attempt_file(run.run_id, 1, "samples.arrows")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    findings = fsck.check(store.tree)
    assert [(f.kind, f.run_id) for f in findings] == [("damaged", run.run_id)]
    assert fsck.repair(store.tree) == [run.run_id]
    assert store.committed() == {}
    assert sr.run_once(store, run)
    assert len(open_results(store.root).samples()) == 32


def test_the_verb_says_what_it_found_and_exits_accordingly(store, tmp_path, capsys):
    sr.run_once(store, sr.planned())
    store.close()
    assert cli(["fsck", "--results", str(tmp_path)]) == 0
    assert "nothing amiss (1 committed runs)" in capsys.readouterr().out
    (Path(store.root) / "stray.txt").write_text("x")
    assert cli(["fsck", "sweep", "--results", str(tmp_path), "--json"]) == 1
    listed = json.loads(capsys.readouterr().out)
    assert [(f["sweep"], f["kind"], f["path"]) for f in listed] == [("sweep", "stray", "stray.txt")]
    assert cli(["fsck", "--results", str(tmp_path), "--clean"]) == 1
    assert "stray.txt" in capsys.readouterr().out
    assert cli(["fsck", "--results", str(tmp_path)]) == 0


def test_checkpoints_of_open_runs_are_no_finding(store):
    run = sr.planned()
    store.begin(run, 1)
    store.save_checkpoint(run.run_id, 1, Checkpoint(run_id=run.run_id, step=1, blob=b"x"))
    assert kinds(store) == {}
