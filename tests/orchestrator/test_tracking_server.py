"""The tracker against servers: MLflow's own (on SQLite and PostgreSQL), and ones that fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tracking_drive import Drive, all_runs, by_key, check_whole_sweep, client, steps_of, sweep_of, wait_for
from tracking_services import failing_server, mlflow_server, postgres, postgres_binaries
from typer.testing import CliRunner

from orchestrator.cli.main import make_app
from orchestrator.tracking.options import sqlite_uri
from orchestrator.tracking.preflight import check_tracking
from orchestrator.tracking.server import free_port
from orchestrator.tracking.sync import LiveError, sync

HOST = "Invalid Host header - possible DNS rebinding attack detected"


@pytest.fixture(autouse=True)
def _no_uri_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def sync_mlflow(root: Path, *arguments: str) -> tuple[int, str]:
    """``deyo-sweep sync-mlflow demo``: exit code and output."""
    command = ["sync-mlflow", "demo", "--results", str(root), *arguments]
    result = CliRunner().invoke(make_app(["sync-mlflow", "ui"]), command)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    # mlflow, if another test imported it first, logs to stderr at its own level.
    return result.exit_code, result.output if result.exit_code else result.stdout


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (403, HOST, "403 (Invalid Host header)"),
        pytest.param(500, "oops", "500", marks=pytest.mark.slow),
        pytest.param(401, "", "MLFLOW_TRACKING_USERNAME", marks=pytest.mark.slow),
    ],
)
def test_a_failing_server_degrades_and_sync_makes_up(tmp_path: Path, status: int, body: str, words: str) -> None:
    runs = sweep_of(3)
    with failing_server(status, body) as url:
        assert f"answers {status}" in (check_tracking(url) or "")
        drive = Drive(tmp_path, url, runs, close_seconds=20)
        drive.begin()
        for run in runs:
            drive.whole(run)
        wait_for(lambda: words in (drive.tracker.degraded() or ""))
        drive.end()
        banner = drive.tracker.degraded() or ""
        assert "3 finished runs wait" in banner
        assert "deyo-sweep sync-mlflow demo" in banner
    uri = sqlite_uri(tmp_path / "mlflow.db")
    assert sync_mlflow(tmp_path, "--uri", uri) == (0, f"demo: 3 runs published to {uri}, 3 in the store\n")
    check_whole_sweep(uri, runs)


@pytest.mark.slow
def test_a_server_that_is_down_or_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    assert "does not answer" in (check_tracking("http://127.0.0.1:9") or "")
    runs = sweep_of(1)
    with failing_server(200, "{}", delay=5) as slow:
        for url in ("http://127.0.0.1:9", slow):
            drive = Drive(tmp_path / url[-5:], url, runs, close_seconds=20)
            drive.begin()
            drive.whole(runs[0])
            wait_for(lambda d=drive: "degraded" in (d.tracker.degraded() or ""))
            drive.end()
            assert "1 finished runs wait" in (drive.tracker.degraded() or "")


def life_of_a_sweep(folder: Path, database: str) -> None:
    """Down at first, then up; a run deleted by hand; sync, twice; restore."""
    port = free_port(0)
    url = f"http://127.0.0.1:{port}"
    runs = sweep_of(3)
    drive = Drive(folder, url, runs)
    drive.begin()
    drive.whole(runs[0])
    wait_for(lambda: drive.tracker.degraded() is not None)
    with mlflow_server(folder, database, port):
        wait_for(lambda: drive.tracker.degraded() is None)
        attempt = drive.start(runs[1])
        drive.stream(runs[1], attempt, range(8))
        wait_for(lambda: len(all_runs(url)) == 3 and _steps(url, runs[1].run_id) == 8)
        with pytest.raises(LiveError):
            sync(url, str(folder), "demo")
        client(url).delete_run(by_key(url)[runs[0].run_id].info.run_id)
        drive.stream(runs[1], attempt, range(8, 12))
        drive.finish(runs[1], attempt)
        drive.whole(runs[2])
        drive.end()
        check_whole_sweep(url, runs[1:])

        code, output = sync_mlflow(folder, "--uri", url)
        assert code == 0
        assert "0 runs published" in output
        assert "1 runs were deleted there by hand" in output
        check_whole_sweep(url, runs[1:])
        code, output = sync_mlflow(folder, "--uri", url, "--restore")
        assert code == 0
        assert "1 brought back" in output
        check_whole_sweep(url, runs)
        parent = by_key(url)["demo"]
        assert "tables/table.md" in {a.path for a in client(url).list_artifacts(parent.info.run_id, "tables")}


def _steps(url: str, key: str) -> int:
    return len(steps_of(url, by_key(url)[key], "stream/running_accuracy"))


@pytest.mark.slow
def test_a_server_on_sqlite(tmp_path: Path) -> None:
    life_of_a_sweep(tmp_path, sqlite_uri(tmp_path / "server.db"))


@pytest.mark.slow
def test_a_real_server_that_does_not_know_our_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_SERVER_ALLOWED_HOSTS", "mlflow.example.org")
    with mlflow_server(tmp_path, sqlite_uri(tmp_path / "server.db")) as url:
        assert "--allowed-hosts" in (check_tracking(url) or "")
        code, output = _sync_after_a_sweep(tmp_path, url)
        assert code == 2
        assert "Invalid Host header" in output


def _sync_after_a_sweep(folder: Path, url: str) -> tuple[int, str]:
    drive = Drive(folder, "http://127.0.0.1:9", sweep_of(1), close_seconds=1)
    drive.begin()
    drive.whole(drive.runs[0])
    drive.end()
    return sync_mlflow(folder, "--uri", url)


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    pytest.importorskip("psycopg2", reason="psycopg2 is not installed (pip install 'deyo-sweep[postgres]')")
    binaries = postgres_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    with postgres(binaries) as uri:
        yield uri


@pytest.mark.postgres
def test_a_server_on_postgresql(tmp_path: Path, database: str) -> None:
    life_of_a_sweep(tmp_path, database)


@pytest.mark.postgres
def test_postgresql_without_a_server_between(tmp_path: Path, database: str) -> None:
    runs = sweep_of(2)
    drive = Drive(tmp_path, database, runs, experiment="direct")
    drive.begin()
    for run in runs:
        drive.whole(run)
    drive.end()
    assert drive.tracker.degraded() is None
    found = all_runs(database, "direct")
    assert [r.info.status for r in found] == ["FINISHED"] * 3
