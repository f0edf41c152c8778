"""The store under SIGKILL, a full disk, and many writers at once."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
import store_runs as sr

from orchestrator import open_results
from orchestrator.store import ParquetStore, StoreFullError, attempt, compactor, fsck, local_tree, writer

HERE = Path(__file__).parent

_WRITER = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import store_runs as sr
from orchestrator.store import ParquetStore, writer, compactor
writer.COMPACT_RUNS, compactor.PART_RUNS = 5, 25
root, first, last = sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
store = ParquetStore(root, "sweep")
done = store.committed()
for seed in range(first, last):
    run = sr.planned(seed)
    if run.run_id in done:
        continue
    attempt = store.next_attempt(run.run_id)
    store.begin(run, attempt)
    for step in range(4):
        store.append(run.run_id, attempt, "batches", sr.batch_rows([step]))
        store.append(run.run_id, attempt, "samples", sr.sample_rows(range(8 * step, 8 * step + 8)))
        if step == 2:
            store.flush()
    store.append_log(run.run_id, attempt, "done")
    assert store.commit(run, attempt, sr.row(32, seed / 1000)), "committed twice"
    print(seed, flush=True)
store.close()
print("end", flush=True)
"""


def start_writer(root: Path, first: int, last: int) -> subprocess.Popen:
    repository = str(HERE.parent.parent)
    command = [sys.executable, "-c", _WRITER, str(HERE), repository, str(root), str(first), str(last)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check_whole(root: Path) -> dict[int, int]:
    """Every committed run has all of its rows, once, of one attempt; commits by seed."""
    results = open_results(str(root), "sweep")
    runs = results.runs().to_pylist()
    attempts = {r["run_id"]: r["attempt"] for r in runs}
    assert len(attempts) == len(runs)
    assert all(r["accuracy"] == r["seed"] / 1000 and r["images"] == 32 for r in runs)
    batches = sr.as_sets(results.batches(), ["run_id", "attempt", "step"])
    assert batches == {(r, a, s) for r, a in attempts.items() for s in range(4)}
    samples = sr.as_sets(results.samples(), ["run_id", "attempt", "position"])
    assert samples == {(r, a, p) for r, a in attempts.items() for p in range(32)}
    return {r["seed"]: r["attempt"] for r in runs}


def test_a_killed_writer_leaves_whole_commits_and_the_next_one_finishes(tmp_path):
    """Five writers are killed, each a seeded random time after it began to commit; the sixth may finish."""
    dice = random.Random(7)
    acknowledged: set[int] = set()
    for kill in (True, True, True, True, True, False):
        process = start_writer(tmp_path, 0, 60)
        lines = [process.stdout.readline().strip()]  # it is at work
        if kill:
            time.sleep(dice.uniform(0, 0.05))
            process.send_signal(signal.SIGKILL)
        out, err = process.communicate()
        assert not err, err
        acknowledged |= {int(x) for x in [*lines, *out.split()] if x.isdigit()}
        assert acknowledged <= set(check_whole(tmp_path)), "a commit that was reported is gone"
    assert process.returncode == 0
    assert set(check_whole(tmp_path)) == set(range(60))
    kinds = Counter(f.kind for f in fsck.check(ParquetStore(str(tmp_path), "sweep").tree))
    assert not {"damaged", "stray", "zero-byte"} & set(kinds), kinds


class Crash(BaseException):
    """The process ends here."""


class CrashAt:
    """From call number ``at`` on, no file operation is carried out any more, as after a power cut."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int) -> None:
        self.calls, self.at = 0, at
        for name in ("write", "fsync", "link", "replace", "unlink", "mkdir"):
            patch.setattr(local_tree.os, name, self.counted(getattr(os, name)))

    def counted(self, call):
        def wrapped(*args):
            self.calls += 1
            if self.calls > self.at:
                raise Crash
            return call(*args)

        return wrapped


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_a_crash_at_any_file_operation_tears_nothing(tmp_path, monkeypatch, step):
    """Every ``step``-th of all file operations of a small sweep with two compactions is the last one, once."""
    monkeypatch.setattr(compactor, "PART_RUNS", 3)
    monkeypatch.setattr(attempt, "INLINE_BYTES", 0)

    def sweep(root: Path, acknowledged: list[int]) -> None:
        store = ParquetStore(str(root), "sweep")
        done = store.committed()
        for seed in range(5):
            if sr.planned(seed).run_id not in done:
                assert sr.run_once(store, sr.planned(seed), accuracy=seed / 1000)
                acknowledged.append(seed)
            if seed == 2:
                compactor.compact(store.tree)
        store.close()

    at, crashed = 0, True
    while crashed:
        root, acknowledged = tmp_path / str(at), []
        with monkeypatch.context() as patch:
            CrashAt(patch, at)
            try:
                sweep(root, acknowledged)
                crashed = False
            except Crash:
                pass
        if (root / "sweep/attempts").is_dir():
            assert set(acknowledged) <= set(check_whole(root))
        sweep(root, [])
        assert set(check_whole(root)) == set(range(5))
        at += step
    assert at > 90


@pytest.mark.slow
def test_sixteen_processes_commit_640_of_640(tmp_path):
    processes = [start_writer(tmp_path, 40 * i, 40 * i + 40) for i in range(16)]
    for process in processes:
        out, err = process.communicate()
        assert process.returncode == 0, err
        assert out.split()[-1] == "end"
    assert set(check_whole(tmp_path)) == set(range(640))


def test_of_many_writers_of_the_same_run_exactly_one_commits(tmp_path):
    """Four processes race over the same 25 runs, each with its own attempt numbers."""
    code = _WRITER.replace(
        'assert store.commit(run, attempt, sr.row(32, seed / 1000)), "committed twice"',
        "won = store.commit(run, attempt, sr.row(32, seed / 1000))",
    )
    code = code.replace("print(seed, flush=True)", "print(seed, won, flush=True)")
    code = code.replace("store.next_attempt(run.run_id)", "int(sys.argv[6])").replace(
        "done = store.committed()", "done = ()"
    )
    command = [sys.executable, "-c", code, str(HERE), str(HERE.parent.parent), str(tmp_path), "0", "25"]
    processes = [
        subprocess.Popen([*command, str(attempt)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for attempt in range(1, 5)
    ]
    wins: Counter[str] = Counter()
    for process in processes:
        out, err = process.communicate()
        assert process.returncode == 0, err
        wins.update(line.split()[0] for line in out.splitlines() if line.endswith("True"))
    assert dict(wins) == {str(seed): 1 for seed in range(25)}
    assert set(check_whole(tmp_path)) == set(range(25))


@pytest.mark.parametrize("commits", [5, pytest.param(40, marks=pytest.mark.slow)])
def test_sixteen_threads_lose_no_commit(tmp_path, commits):
    from concurrent.futures import ThreadPoolExecutor

    def work(first: int) -> int:
        store = ParquetStore(str(tmp_path), "sweep")
        won = sum(sr.run_once(store, sr.planned(first + i), accuracy=(first + i) / 1000) for i in range(commits))
        store.close()
        return won

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(work, range(0, 16 * commits, commits))) == 16 * commits
    assert set(check_whole(tmp_path)) == set(range(16 * commits))


class FullDisk:
    """Lets ``budget`` bytes through ``os.write``, then raises ENOSPC (after writing what fits, as a disk does)."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._write = os.write

    def __call__(self, descriptor: int, data) -> int:
        if self.budget <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        fits = bytes(data[: self.budget])
        self.budget -= len(fits)
        return self._write(descriptor, fits)


@pytest.mark.parametrize("budget", [0, 1, 100, 700, 1500, 2500, 4000, 6000, 9000, 12_000])
def test_a_full_disk_is_said_clearly_and_tears_nothing(tmp_path, monkeypatch, budget):
    monkeypatch.setattr(attempt, "INLINE_BYTES", 8192 * (budget % 1000 == 0))
    store = ParquetStore(str(tmp_path), "sweep")
    sr.run_once(store, sr.planned(0), accuracy=0.0)
    store.close()
    with monkeypatch.context() as patch:
        patch.setattr(local_tree.os, "write", FullDisk(budget))
        with pytest.raises(StoreFullError, match=r"no space left.*run the same command again"):
            [sr.run_once(store, sr.planned(seed), accuracy=seed / 1000) for seed in range(1, 30)]
        before = check_whole(tmp_path)
        assert set(before) == set(range(len(before)))
        with pytest.raises(StoreFullError):
            store.tree.replace("spec.yaml", b"x" * 20_000)
        assert check_whole(tmp_path) == before
    again = ParquetStore(str(tmp_path), "sweep")  # space was made, and the same command runs again
    for seed in range(1, 30):
        if sr.planned(seed).run_id not in again.committed():
            assert sr.run_once(again, sr.planned(seed), accuracy=seed / 1000)
    again.close()
    assert set(check_whole(tmp_path)) == set(range(30))
    assert not [f for f in fsck.check(again.tree) if f.kind in ("damaged", "stray", "zero-byte")]


def test_a_full_disk_during_compaction_loses_nothing(tmp_path, monkeypatch):
    store = ParquetStore(str(tmp_path), "sweep")
    for seed in range(5):
        sr.run_once(store, sr.planned(seed), accuracy=seed / 1000)

    class Full(pa.OSFile):
        def __init__(self, *args):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(local_tree.pa, "OSFile", Full)
        with pytest.raises(StoreFullError):
            store.close()
    assert len(check_whole(tmp_path)) == 5
    store.close()
    assert len(check_whole(tmp_path)) == 5


def test_rows_that_did_not_fit_are_written_when_there_is_space_again(tmp_path, monkeypatch):
    store = ParquetStore(str(tmp_path), "sweep")
    run = sr.planned(0)
    store.begin(run, 1)
    store.append(run.run_id, 1, "batches", sr.batch_rows(range(2)))
    store.flush()
    store.append(run.run_id, 1, "batches", sr.batch_rows(range(2, 4)))
    store.append(run.run_id, 1, "samples", sr.sample_rows(range(32)))
    stream = next(tmp_path.rglob("*.batches.arrows"))
    size = stream.stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr(local_tree.os, "write", FullDisk(50))
        with pytest.raises(StoreFullError):
            store.flush()
    assert stream.stat().st_size == size
    assert len(open_results(str(tmp_path), "sweep").batches(partial=True)) == 2  # not torn in the middle
    assert store.commit(run, 1, sr.row(32, 0.0))
    assert set(check_whole(tmp_path)) == {0}


def test_a_file_system_without_hard_links_still_commits_once(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(local_tree.os, "link", refuse)
    store = ParquetStore(str(tmp_path), "sweep")
    run = sr.planned(0)
    store.begin(run, 7)
    assert sr.run_once(store, run, accuracy=0.0) is True
    assert store.commit(run, 7, sr.row(0)) is False
    assert set(check_whole(tmp_path)) == {0}


def test_memory_of_the_writer_does_not_hold_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "COMPACT_RUNS", 20)
    store = ParquetStore(str(tmp_path), "sweep")
    for seed in range(60):
        sr.run_once(store, sr.planned(seed))
        store.flush()
    assert not store._open
    assert not store._logs
    assert store._uncompacted < 20


def test_memory_of_the_writer_is_bounded_over_all_runs_in_flight(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "WAITING_BYTES", 20_000)
    store = ParquetStore(str(tmp_path), "sweep")
    runs = [sr.planned(seed) for seed in range(30)]
    most = 0
    for run in runs:
        store.begin(run, 1)
    for step in range(6):
        for run in runs:
            store.append(run.run_id, 1, "batches", sr.batch_rows([step]))
            most = max(most, sum(s.buffer.size for a in store._open.values() for s in a._streams.values()))
    assert most < 60_000
    assert all(store.commit(run, 1, sr.row(48)) for run in runs)
    assert len(open_results(str(tmp_path), "sweep").batches()) == 180
