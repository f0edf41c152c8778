"""``run`` and the verbs around it, as a user's shell sees them: interrupted, killed, failed, gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_runs import write_spec
from trouble_package import install

from deyo.types import ConfigError
from orchestrator import open_results
from orchestrator.types import FailureClass

ROOT = Path(__file__).resolve().parents[2]
MAIN = "from orchestrator.cli.main import main; main()"
Shell = Callable[..., subprocess.CompletedProcess]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("site") / "site")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def environment(site: Path, cache: Path) -> dict[str, str]:
    path = os.pathsep.join([str(site), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "DEYO_CACHE": str(cache), "COLUMNS": "120"}


@pytest.fixture
def sweep(tmp_path: Path, environment: dict[str, str]) -> Shell:
    """``deyo-sweep VERB ...`` in a folder of its own."""

    def call(*words: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-c", MAIN, *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)

    return call


@pytest.fixture
def start(tmp_path: Path, environment: dict[str, str]) -> Callable[..., subprocess.Popen]:
    def call(*words: str) -> subprocess.Popen:
        command = [sys.executable, "-c", MAIN, *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True)

    return call


def troubles(tmp_path: Path, action: str, seeds: int, **settings: object) -> Path:
    listed = json.dumps({"name": "trouble", "settings": {"action": action, **settings}})
    return write_spec(tmp_path, methods=f"[{listed}]", seeds=list(range(seeds)))


def committed(tmp_path: Path) -> list[tuple[str, int]]:
    try:
        opened = open_results(str(tmp_path / "results"), "tiny")
    except ConfigError:
        return []  # nothing is stored yet
    return [(row["run_id"], row["attempt"]) for row in opened.runs(columns=["run_id", "attempt"]).to_pylist()]


def await_commits(tmp_path: Path, process: subprocess.Popen, count: int) -> None:
    until = time.monotonic() + 200
    while len(committed(tmp_path)) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_sweep_and_the_same_sweep_again(tmp_path: Path, sweep: Shell) -> None:
    write_spec(tmp_path, seeds=[0, 1])
    first = sweep("run", "tiny.yaml", "--in-process")
    assert first.returncode == 0, first.stderr
    assert "4 of 4 runs done" in first.stdout
    assert "No adapt." in first.stdout
    assert "Parquet: ./results/tiny/tables" in first.stdout
    again = sweep("run", "tiny.yaml", "--in-process")
    assert again.returncode == 0
    assert "0 to run, 4 of 4 runs were done before" in again.stdout
    more = sweep("run", "tiny.yaml", "--in-process", "--set", "seeds=[0, 1, 2]")
    assert "6 of 6 runs done (4 were done before)" in more.stdout
    assert all(attempt == 1 for _, attempt in committed(tmp_path))


def test_failures_are_shown_logged_and_tried_again(tmp_path: Path, sweep: Shell) -> None:
    troubles(tmp_path, "raise", 3, once=str(tmp_path))
    failed = sweep("run", "tiny.yaml", "--in-process")
    assert failed.returncode == 1
    assert "failed ×1 [error:" in failed.stdout
    assert "deyo-sweep retry tiny --failed" in failed.stderr
    log = next(word for word in failed.stdout.split() if word.endswith(".log"))
    assert "RuntimeError: trouble with image" in (tmp_path / log).read_text()

    told = sweep("status", "tiny")
    assert "0/3 done, 3 failed, 0 left" in told.stdout
    assert "3 × [error:" in told.stdout
    assert json.loads(sweep("status", "tiny", "--json").stdout)["failed"] == 3

    printed = sweep("logs", "tiny")
    assert printed.stdout.count("attempt 1") == 3
    assert "trouble: raise" in printed.stdout
    assert "Traceback" in printed.stdout

    same = sweep("run", "tiny.yaml", "--in-process")
    assert same.returncode == 1
    assert "0 to run" in same.stdout

    planned = sweep("plan", "tiny.yaml", "--no-preflight")
    assert "3 failed: error: RuntimeError: trouble with image 0\n" in planned.stdout
    none = sweep("retry", "tiny", "--failed", "--where", "seed=7", "--in-process")
    assert none.returncode == 2
    assert "none of the 3 failed runs has seed=7; they have seed: 0, 1, 2" in none.stderr
    one = sweep("retry", "tiny", "--failed", "--where", "seed=1", "--in-process")
    assert one.returncode == 1, one.stderr
    assert len(committed(tmp_path)) == 1
    rest = sweep("retry", "tiny.yaml", "--failed", "--in-process")
    assert rest.returncode == 0, rest.stderr
    assert {attempt for _, attempt in committed(tmp_path)} == {2}


def test_retry_says_what_it_needs(tmp_path: Path, sweep: Shell) -> None:
    write_spec(tmp_path)
    assert "--failed" in sweep("retry", "tiny.yaml").stderr
    wrong = sweep("retry", "tiny.yaml", "--failed", "--where", "metod=deyo", "--in-process")
    assert wrong.returncode == 2
    assert "method" in wrong.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_stops_in_order_and_the_same_command_goes_on(
    tmp_path: Path, sweep: Shell, start: Callable[..., subprocess.Popen], number: signal.Signals
) -> None:
    troubles(tmp_path, "none", 6, seconds=0.15)
    process = start("run", "tiny.yaml", "--in-process", "--quiet")
    await_commits(tmp_path, process, 2)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert number.name in errors
    before = committed(tmp_path)
    assert 2 <= len(before) < 6
    kinds = {f.kind for f in open_results(str(tmp_path / "results"), "tiny").failures().values()}
    assert kinds <= {FailureClass.CANCELLED}
    again = sweep("run", "tiny.yaml", "--in-process")
    assert again.returncode == 0, again.stderr
    assert set(before) < set(committed(tmp_path))
    assert len(committed(tmp_path)) == 6


def test_a_killed_driver_is_gone_on_with(tmp_path: Path, sweep: Shell, start: Callable[..., subprocess.Popen]) -> None:
    """hydra#1407: SIGKILL, the same command again, and only what is missing runs."""
    troubles(tmp_path, "none", 6, seconds=0.15)
    process = start("run", "tiny.yaml", "--in-process", "--quiet")
    await_commits(tmp_path, process, 2)
    process.kill()
    process.communicate(timeout=60)
    before = committed(tmp_path)
    assert "gone (killed" in sweep("status", "tiny").stdout
    again = sweep("run", "tiny.yaml", "--in-process")
    assert again.returncode == 0, again.stderr
    after = committed(tmp_path)
    assert set(before) < set(after)
    assert len(after) == len({run_id for run_id, _ in after}) == 6
    assert sum(attempt > 1 for _, attempt in after) <= 1  # the one in flight


def test_one_driver_a_sweep_and_cancel(tmp_path: Path, sweep: Shell, start: Callable[..., subprocess.Popen]) -> None:
    troubles(tmp_path, "none", 8, seconds=0.3)
    process = start("run", "tiny.yaml", "--in-process", "--quiet")
    await_commits(tmp_path, process, 1)
    second = sweep("run", "tiny.yaml", "--in-process")
    assert second.returncode == 2
    assert f"process {process.pid}" in second.stderr
    assert "running" in sweep("status", "tiny").stdout
    cancelled = sweep("cancel", "tiny")
    assert cancelled.returncode == 0, cancelled.stderr
    assert "stopped" in cancelled.stdout
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert "not running" in sweep("cancel", "tiny").stdout
    assert "ended at" in sweep("watch", "tiny").stdout
