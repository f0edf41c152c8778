"""200 short runs on 4 workers while a seeded script kills workers every few seconds and the driver three times."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from engine_runs import write_spec
from trouble_package import install

from experiments.benchmarks.overhead import descendants
from experiments.benchmarks.sweep_watch import workers_of
from orchestrator import open_results
from orchestrator.session import process_birth

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

ROOT = Path(__file__).resolve().parents[2]
RUNS, WORKERS, DRIVER_KILLS = 200, 4, 3
NUMBERS = ("accuracy", "mean_entropy", "forwards", "images", "stream_digest", "weights_sha256", "data_fingerprint")


def start(folder: Path, results: str, environment: dict[str, str]) -> subprocess.Popen:
    words = ["run", "tiny.yaml", "--results", results, "--quiet", "--no-preflight"]
    program = f"from orchestrator.cli.main import main; main({words!r})"
    log = open(folder / f"{results}.log", "a")  # noqa: SIM115  (the child keeps it)
    return subprocess.Popen([sys.executable, "-c", program], cwd=folder, env=environment, stdout=log, stderr=log)


def commits(folder: Path, results: str) -> int:
    return sum(1 for _ in (folder / results / "tiny" / "commits").rglob("*.json"))


def table(folder: Path, results: str, runs: int = RUNS) -> dict[str, dict]:
    opened = open_results(str(folder / results), "tiny")
    rows = opened.runs(columns=["run_id", "attempt", "group_size", *NUMBERS]).to_pylist()
    assert len(rows) == len({row["run_id"] for row in rows}) == runs
    return {row["run_id"]: row for row in rows}


def torment(
    folder: Path, driver: subprocess.Popen, draw: random.Random, kill_driver_at: int | None, left: dict[int, str]
) -> list[str]:
    """Kill a random worker every few seconds, and the driver once so many runs are committed.

    On a machine so slow that nothing was committed since the last kill, the next one waits. What a killed driver had
    started (with its birth) goes into ``left``.
    """
    killed: list[str] = []
    seen = commits(folder, "chaos")
    due = time.monotonic() + 2
    while driver.poll() is None:
        time.sleep(0.2)
        if kill_driver_at is not None and commits(folder, "chaos") >= kill_driver_at:
            left.update({pid: process_birth(pid) for pid in descendants(driver.pid)})
            driver.kill()
            driver.wait()
            return [*killed, "driver"]
        moved = commits(folder, "chaos") > seen
        if moved and time.monotonic() >= due and (alive := workers_of(driver.pid)):
            os.kill(draw.choice(alive), signal.SIGKILL)
            killed.append("worker")
            seen = commits(folder, "chaos")
            due = time.monotonic() + draw.uniform(4, 7)
    return killed


def await_gone(left: dict[int, str]) -> None:
    """What a killed driver started must end by itself."""
    until = time.monotonic() + 200  # Ray's log monitor gives up after 75 s
    while any(birth and process_birth(pid) == birth for pid, birth in left.items()):
        assert time.monotonic() < until, "processes of a killed driver are left"
        time.sleep(0.5)


def environment_of(folder: Path) -> dict[str, str]:
    path = os.pathsep.join([str(install(folder / "site")), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "DEYO_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}


def test_chaos(tmp_path: Path) -> None:
    methods = json.dumps([{"name": "trouble", "settings": {"action": "none", "seconds": 0.1}}])
    write_spec(
        tmp_path,
        methods=methods,
        seeds=list(range(RUNS)),
        extra=f"resources: {{workers: {WORKERS}, cpus_per_worker: 0.5}}\n",
    )
    environment = environment_of(tmp_path)
    draw = random.Random(20)
    killed: list[str] = []
    left: dict[int, str] = {}
    for target in (40, 90, 140, None):
        driver = start(tmp_path, "chaos", environment)
        time.sleep(2)
        killed += torment(tmp_path, driver, draw, target, left)
        if target is None:
            assert driver.returncode == 0, (tmp_path / "chaos.log").read_text()[-3000:]
    assert killed.count("driver") == DRIVER_KILLS
    assert killed.count("worker") >= 8
    calm = start(tmp_path, "calm", environment)
    assert calm.wait() == 0, (tmp_path / "calm.log").read_text()[-3000:]
    disturbed, expected = table(tmp_path, "chaos"), table(tmp_path, "calm")
    assert disturbed.keys() == expected.keys()
    for run_id, row in expected.items():
        assert {n: disturbed[run_id][n] for n in NUMBERS} == {n: row[n] for n in NUMBERS}
    assert max(row["attempt"] for row in disturbed.values()) > 1
    batches = open_results(str(tmp_path / "chaos"), "tiny").batches(columns=["run_id", "attempt", "step"])
    assert batches.num_rows == RUNS * 4  # no attempt is mixed with another, none is there twice
    assert left
    await_gone(left)


def test_groups_torn_apart_give_the_same_bits(tmp_path: Path) -> None:
    """Runs side by side at batch size 1, killed and resumed in other company, on another number of workers."""
    groups, width, images = 8, 6, 48
    runs = groups * width
    environment = environment_of(tmp_path)
    draw = random.Random(7)
    fields = {"methods": "[deyo]", "seeds": list(range(runs)), "images": images, "batch": 1}
    resources = "resources: {{workers: {}, cpus_per_worker: 0.5, group_size: 6}}\n"
    write_spec(tmp_path, **fields, extra=resources.format(3))
    killed: list[str] = []
    left: dict[int, str] = {}
    for target in (12, None):
        driver = start(tmp_path, "chaos", environment)
        killed += torment(tmp_path, driver, draw, target, left)
    assert driver.returncode == 0, (tmp_path / "chaos.log").read_text()[-3000:]
    assert killed.count("driver") == 1
    write_spec(tmp_path, **fields, extra=resources.format(1))
    calm = start(tmp_path, "calm", environment)
    assert calm.wait() == 0, (tmp_path / "calm.log").read_text()[-3000:]
    disturbed, expected = table(tmp_path, "chaos", runs), table(tmp_path, "calm", runs)
    assert {row["group_size"] for row in expected.values()} == {width}
    assert max(row["attempt"] for row in disturbed.values()) > 1
    for run_id, row in expected.items():
        for name in (*NUMBERS, "group_size"):
            assert disturbed[run_id][name] == row[name]
    await_gone(left)
