"""The tracker with its publisher's process, a real store and MLflow on SQLite."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tracking_drive import Drive, all_runs, by_key, check_whole_sweep, client, steps_of, sweep_of, wait_for

from orchestrator.tracking.options import sqlite_uri
from orchestrator.tracking.remote import OutageError
from orchestrator.tracking.sync import sync
from orchestrator.types import RunStatus


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with MLflow's tables; making them takes seconds."""
    path = tmp_path_factory.mktemp("mlflow") / "empty.db"
    client(sqlite_uri(path)).search_experiments(max_results=1)
    return path


@pytest.fixture
def uri(tmp_path: Path, empty_database: Path) -> str:
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    return sqlite_uri(tmp_path / "mlflow.db")


def test_a_sweep_on_sqlite(tmp_path: Path, uri: str, capfd: pytest.CaptureFixture[str]) -> None:
    runs = sweep_of(4)
    drive = Drive(tmp_path, uri, runs)
    drive.begin()
    for run in runs:
        drive.whole(run)
    drive.end()
    assert drive.tracker.degraded() is None
    assert capfd.readouterr() == ("", "")
    check_whole_sweep(uri, runs)
    found = by_key(uri)
    parent, run = found["demo"], found[runs[0].run_id]
    by_filter = client(uri).search_runs([parent.info.experiment_id], "tags.`deyo.kind` = 'sweep'")
    assert [r.info.run_id for r in by_filter] == [parent.info.run_id]
    counted = "tags.`deyo.label` = 'Tent' and tags.`deyo.stale` != 'true'"
    assert len(client(uri).search_runs([parent.info.experiment_id], counted)) == 2
    assert parent.data.metrics["accuracy/Tent gaussian_noise-5 small-resnet-bn digits-c mild batch 64 official tf32"]
    assert "Tent" in parent.data.tags["mlflow.note.content"]
    assert run.data.params["seed"] == "0"
    assert run.inputs.dataset_inputs[0].dataset.digest == "f" * 36
    artifacts = {a.path for a in client(uri).list_artifacts(parent.info.run_id, "tables")}
    assert {"tables/table.md", "tables/table.csv", "tables/table.html"} <= artifacts
    page = Path(client(uri).download_artifacts(parent.info.run_id, "tables/table.html", str(tmp_path)))
    assert "border-collapse" in page.read_text(), "the fragment brings the report's looks along"
    assert {a.path for a in client(uri).list_artifacts(parent.info.run_id, "spec")} == {
        "spec/resolved.json",
        "spec/resolved.yaml",
    }
    assert not (Path.cwd() / "mlruns").exists()


@pytest.mark.slow
def test_resume_after_the_death_of_driver_and_publisher(tmp_path: Path, uri: str) -> None:
    runs = sweep_of(2)
    first = Drive(tmp_path, uri, runs)
    first.begin()
    first.whole(runs[0])
    attempt = first.start(runs[1])
    first.stream(runs[1], attempt, range(8))
    wait_for(lambda: _streamed(uri, runs[1].run_id, 8))
    process = first.tracker._process
    assert process is not None
    first.tracker._broken = "killed by the test"
    process.kill()
    process.wait()
    assert by_key(uri)[runs[1].run_id].info.status == "RUNNING"
    before = by_key(uri)[runs[1].run_id].info.run_id
    first.tracker.close()
    first.store.close()

    second = Drive(tmp_path, uri, runs)
    second.begin()
    second.whole(runs[1])
    second.end()
    check_whole_sweep(uri, runs)
    assert by_key(uri)[runs[1].run_id].info.run_id == before


def _streamed(uri: str, key: str, steps: int) -> bool:
    if client(uri).get_experiment_by_name("demo") is None:
        return False
    found = by_key(uri)
    return key in found and len(steps_of(uri, found[key], "stream/running_accuracy")) == steps


_DRIVER = """
import sys
sys.path[:0] = [{tests!r}]
from pathlib import Path
from tracking_drive import Drive, sweep_of
runs = sweep_of(2)
drive = Drive(Path(sys.argv[1]), sys.argv[2], runs)
drive.begin()
drive.whole(runs[0])
attempt = drive.start(runs[1])
drive.stream(runs[1], attempt, range(8))
print("streaming", flush=True)
import time
time.sleep(120)
"""


@pytest.mark.parametrize("sign", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_killed_driver_leaves_no_run_running(tmp_path: Path, uri: str, sign: signal.Signals) -> None:
    script = _DRIVER.format(tests=str(Path(__file__).parent))
    here = str(Path(__file__).resolve().parents[2])
    driver = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), uri],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": here},
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == b"streaming\n"
    wait_for(lambda: client(uri).get_experiment_by_name("demo") is not None and len(all_runs(uri)) == 3)
    driver.send_signal(sign)
    driver.wait()
    driver.stdout.close()
    wait_for(lambda: "RUNNING" not in {r.info.status for r in all_runs(uri)})
    assert {r.data.tags["deyo.kind"]: r.info.status for r in all_runs(uri)}["sweep"] == "KILLED"


@pytest.mark.slow
def test_a_publisher_that_dies_is_replaced(tmp_path: Path, uri: str) -> None:
    runs = sweep_of(3)
    drive = Drive(tmp_path, uri, runs)
    drive.begin()
    drive.whole(runs[0])
    attempt = drive.start(runs[1])
    drive.stream(runs[1], attempt, range(4))
    wait_for(lambda: _streamed(uri, runs[1].run_id, 4))
    assert drive.tracker._process is not None
    drive.tracker._process.kill()
    drive.tracker._process.wait()
    drive.stream(runs[1], attempt, range(4, 12))
    drive.finish(runs[1], attempt)
    drive.whole(runs[2])
    drive.end()
    check_whole_sweep(uri, runs)


_OPEN = """
import sys
from orchestrator.tracking.remote import Remote
print(Remote(sys.argv[1]).experiment("demo", tags={}, artifacts=None))
"""


@pytest.mark.slow
def test_first_use_of_a_fresh_database_by_eight_processes(tmp_path: Path) -> None:
    uri = sqlite_uri(tmp_path / "fresh.db")
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    opened = [
        subprocess.Popen([sys.executable, "-c", _OPEN, uri], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=here)
        for _ in range(8)
    ]
    answers = [p.communicate(timeout=400) for p in opened]
    assert [p.returncode for p in opened] == [0] * 8, answers
    assert len({out for out, _ in answers}) == 1


@pytest.mark.slow
def test_groups_on_sqlite(tmp_path: Path, uri: str) -> None:
    runs = sweep_of(6)
    drive = Drive(tmp_path, uri, runs, granularity="group")
    drive.begin()
    for run in runs:
        drive.whole(run)
    drive.end()
    found = [r for r in all_runs(uri) if r.data.tags["deyo.kind"] == "group"]
    assert len(found) == 2
    for group in found:
        assert group.info.status == "FINISHED"
        assert steps_of(uri, group, "by_seed/accuracy") == [0, 1, 2]
        assert group.data.metrics["seeds"] == 3


def test_nothing_to_run_and_all_published_starts_no_process(tmp_path: Path, uri: str) -> None:
    runs = sweep_of(1)
    drive = Drive(tmp_path, uri, runs)
    drive.begin()
    drive.whole(runs[0])
    drive.end()
    again = Drive(tmp_path, uri, [replace(runs[0], status=RunStatus.DONE)])
    again.begin()
    assert again.tracker._feeder is None
    again.end()
    assert again.tracker.degraded() is None
    check_whole_sweep(uri, runs)


@pytest.mark.slow
def test_an_experiment_deleted_by_hand_comes_back_on_request_only(tmp_path: Path, uri: str) -> None:
    runs = sweep_of(1)
    drive = Drive(tmp_path, uri, runs)
    drive.begin()
    drive.whole(runs[0])
    drive.end()
    mlflow = client(uri)
    mlflow.delete_experiment(mlflow.get_experiment_by_name("demo").experiment_id)
    with pytest.raises(OutageError, match="was deleted in MLflow; `deyo-sweep sync-mlflow demo --restore`"):
        sync(uri, str(tmp_path), "demo")
    sync(uri, str(tmp_path), "demo", restore=True)
    check_whole_sweep(uri, runs)
