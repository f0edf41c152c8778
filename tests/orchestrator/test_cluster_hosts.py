"""Sweeps over three hosts with their own addresses: hosts die, are cut off and come back; the driver and the head die.

Every time each run is committed exactly once, with the numbers of an undisturbed sweep.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_runs import write_spec
from trouble_package import install

from experiments.benchmarks.overhead import descendants
from orchestrator import open_results

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("hosts.sh")
ADDRESS = "10.78.0.1:6379"
RUNS = 60
NUMBERS = ("accuracy", "mean_entropy", "forwards", "images", "stream_digest", "weights_sha256", "data_fingerprint")


def missing() -> str | None:
    """Why there can be no hosts here, or None."""
    if os.geteuid():
        return "needs root"
    for tool in ("ip", "nsenter", "unshare"):
        if not shutil.which(tool):
            return f"needs {tool}"
    made = subprocess.run(["ip", "netns", "add", "dst-try"], capture_output=True)
    subprocess.run(["ip", "netns", "del", "dst-try"], capture_output=True)
    return None if made.returncode == 0 else "network namespaces cannot be made here"


class Hosts:
    """The three hosts, and sweeps that are driven from the head."""

    def __init__(self, folder: Path, spec: Path) -> None:
        self.folder = folder
        self.spec = spec
        path = os.pathsep.join([str(install(folder / "site")), str(ROOT)])
        self.environment = {
            **os.environ,
            "HOSTS_DIR": tempfile.mkdtemp(prefix="dh", dir="/tmp"),  # short: Ray's sockets lie there
            "RAY_AUTH_TOKEN": "test-" + "0" * 40,
            "PYTHONPATH": path,
            "OMP_NUM_THREADS": "1",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        }

    def do(self, *words: str) -> None:
        done = subprocess.run([str(SCRIPT), *words], env=self.environment, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, f"hosts.sh {' '.join(words)}: {done.stdout}{done.stderr}"

    def start_sweep(self, results: str) -> subprocess.Popen:
        words = ["run", str(self.spec), "--results", results, "--no-preflight", "--address", ADDRESS]
        program = f"from orchestrator.cli.main import main; main({words!r})"
        log = open(self.log(results), "a")  # noqa: SIM115  (the child keeps it)
        command = [str(SCRIPT), "run", sys.executable, "-c", program]
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=log, stderr=log)

    def log(self, results: str) -> Path:
        return self.folder / f"{results}.log"

    def commits(self, results: str) -> int:
        return sum(1 for _ in (self.folder / results / "tiny" / "commits").rglob("*.json"))

    def await_commits(self, results: str, count: int, driver: subprocess.Popen) -> None:
        until = time.monotonic() + 240
        while self.commits(results) < count:
            assert driver.poll() is None, self.log(results).read_text()[-3000:]
            assert time.monotonic() < until, self.log(results).read_text()[-3000:]
            time.sleep(0.2)

    def finish(self, driver: subprocess.Popen, results: str) -> dict[str, dict]:
        assert driver.wait(timeout=600) == 0, self.log(results).read_text()[-3000:]
        return self.table(results)

    def table(self, results: str) -> dict[str, dict]:
        opened = open_results(str(self.folder / results), "tiny")
        rows = opened.runs(columns=["run_id", "attempt", "host", "finished_at", *NUMBERS]).to_pylist()
        assert len(rows) == len({row["run_id"] for row in rows}) == RUNS
        assert opened.batches(columns=["step"]).num_rows == RUNS * 4
        return {row["run_id"]: row for row in rows}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    if reason := missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("c")
    methods = json.dumps([{"name": "trouble", "settings": {"action": "none", "seconds": 0.5}}])
    spec = write_spec(folder, methods=methods, seeds=list(range(RUNS)))
    spec.write_text(spec.read_text().replace("mlflow: false", "mlflow: true"))
    made = Hosts(folder, spec)
    made.do("up")
    try:
        made.do("start")
        yield made
    finally:
        made.do("down")
        shutil.rmtree(made.environment["HOSTS_DIR"], ignore_errors=True)


@pytest.fixture(scope="module")
def expected(hosts: Hosts) -> dict[str, dict]:
    """An undisturbed sweep, which used all three hosts."""
    found = hosts.finish(hosts.start_sweep("calm"), "calm")
    assert {row["host"] for row in found.values()} == {"head", "w1", "w2"}
    assert {row["attempt"] for row in found.values()} == {1}
    assert len({row["weights_sha256"] for row in found.values()}) == 1
    return found


def check_same(found: dict[str, dict], expected: dict[str, dict]) -> None:
    assert found.keys() == expected.keys()
    for run_id, row in expected.items():
        assert {n: found[run_id][n] for n in NUMBERS} == {n: row[n] for n in NUMBERS}


def check_no_ghosts(hosts: Hosts, results: str) -> None:
    """MLflow shows no run RUNNING."""
    with sqlite3.connect(f"file:{hosts.folder / results / 'mlflow.db'}?mode=ro", uri=True) as database:
        states = Counter(state for (state,) in database.execute("select status from runs"))
    assert states["FINISHED"] >= RUNS
    assert not states["RUNNING"], states


def test_a_host_that_loses_power_and_comes_back(hosts: Hosts, expected: dict[str, dict]) -> None:
    driver = hosts.start_sweep("power")
    hosts.await_commits("power", 4, driver)
    hosts.do("poweroff", "w1")
    hosts.await_commits("power", 10, driver)
    hosts.do("rejoin", "w1")
    found = hosts.finish(driver, "power")
    check_same(found, expected)
    order = sorted(found.values(), key=lambda row: row["finished_at"])
    assert "w1" in {row["host"] for row in order[10:]}, "the host that came back was not used"
    check_no_ghosts(hosts, "power")


def test_a_host_that_is_cut_off_and_comes_back(hosts: Hosts, expected: dict[str, dict]) -> None:
    driver = hosts.start_sweep("cut")
    hosts.await_commits("cut", 4, driver)
    hosts.do("partition", "w2")
    hosts.await_commits("cut", 34, driver)  # long enough for Ray to give the host up
    hosts.do("heal", "w2")
    found = hosts.finish(driver, "cut")
    check_same(found, expected)
    assert max(row["attempt"] for row in found.values()) > 1, "what ran on the host that was cut off was not begun anew"
    check_no_ghosts(hosts, "cut")
    hosts.do("poweroff", "w2")  # Ray does not take a host back that it has given up
    hosts.do("rejoin", "w2")


def test_a_driver_that_dies(hosts: Hosts, expected: dict[str, dict]) -> None:
    driver = hosts.start_sweep("driver")
    hosts.await_commits("driver", 6, driver)
    for pid in descendants(driver.pid):
        os.kill(pid, signal.SIGKILL)
    driver.wait(timeout=30)
    before = hosts.commits("driver")
    assert before < RUNS
    check_same(hosts.finish(hosts.start_sweep("driver"), "driver"), expected)
    check_no_ghosts(hosts, "driver")


def test_a_head_that_dies(hosts: Hosts, expected: dict[str, dict]) -> None:
    driver = hosts.start_sweep("head")
    hosts.await_commits("head", 6, driver)
    hosts.do("poweroff", "head")  # the driver ran there
    driver.wait(timeout=60)
    for name in ("w1", "w2"):
        hosts.do("poweroff", name)
    hosts.do("start")
    check_same(hosts.finish(hosts.start_sweep("head"), "head"), expected)
    check_no_ghosts(hosts, "head")


def test_a_missing_or_wrong_token_is_told_within_seconds(hosts: Hosts) -> None:
    for token in ("", "wrong-" + "1" * 40):
        command = [str(SCRIPT), "run", "env", f"RAY_AUTH_TOKEN={token}", sys.executable, "-c"]
        program = (
            "import time; from orchestrator.cluster import check_cluster; from orchestrator.probe import ClusterError\n"
            "before = time.monotonic()\n"
            f"try: check_cluster({ADDRESS!r})\n"
            "except ClusterError as error: print('told', time.monotonic() - before, error)"
        )
        done = subprocess.run([*command, program], env=hosts.environment, capture_output=True, text=True, timeout=60)
        assert done.stdout.startswith("told"), done.stdout + done.stderr
        assert "RAY_AUTH_MODE" in done.stdout
