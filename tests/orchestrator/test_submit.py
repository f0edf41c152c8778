"""Ray Jobs on a cluster that ``orchestrator/deploy/head.sh`` starts: submit, attach, watch, cancel, go on."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from engine_runs import write_spec
from trouble_package import install

from orchestrator import open_results

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
HEAD = ROOT / "orchestrator" / "deploy" / "head.sh"
MAIN = "from orchestrator.cli.main import main; main()"


@dataclass
class Cluster:
    dashboard: str
    address: str
    folder: Path
    environment: dict[str, str]

    def sweep(self, *words: str) -> subprocess.CompletedProcess:
        """``deyo-sweep VERB ...`` as on the laptop of someone who has the token."""
        command = [sys.executable, "-c", MAIN, *words]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=300
        )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("jobs")
    home, port, dashboard = folder / "home", free_port(), free_port()
    home.mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "DEYO_"))}
    environment = {
        **kept,
        "HOME": str(home),
        "PORT": str(port),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(install(folder / "site")),
        "DEYO_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    ports = [f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={free_port()}"]
    temporary = f"/tmp/djt-{os.getpid()}"  # short: Ray's sockets live there
    words = [str(HEAD), "127.0.0.1", *ports, "--num-cpus=2", f"--temp-dir={temporary}"]
    loopback = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # as head.sh has it without an address
    log = folder / "head.log"
    with open(log, "w") as file:
        head = subprocess.Popen(words, env=environment | loopback, stdout=file, stderr=file, start_new_session=True)
    try:
        until = time.monotonic() + 120
        while "Ray runtime started" not in log.read_text():
            assert head.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.3)
        token = home / ".ray" / "auth_token"
        assert token.stat().st_mode & 0o777 == 0o600
        laptop = {**environment, "PYTHONPATH": os.pathsep.join([environment["PYTHONPATH"], str(ROOT)])}
        yield Cluster(f"http://127.0.0.1:{dashboard}", f"127.0.0.1:{port}", folder, laptop)
    finally:
        os.killpg(head.pid, signal.SIGTERM)
        head.wait(timeout=60)
        subprocess.run(["rm", "-rf", temporary], check=True)


def troubles(seeds: int, **settings: object) -> dict[str, object]:
    return {"methods": json.dumps([{"name": "trouble", "settings": settings}]), "seeds": list(range(seeds))}


def await_that(condition: Callable[[], bool], seconds: float = 400) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.5)


def await_end(cluster: Cluster, spec: str) -> None:
    """Until Ray says that the sweep's last job has ended: its driver goes a moment after its last words."""
    ended = re.compile("SUCCEEDED|FAILED|STOPPED")
    await_that(lambda: bool(ended.search(cluster.sweep("status", spec, "--address", cluster.dashboard).stdout)))


def commits(results: Path) -> int:
    return sum(1 for _ in (results / "tiny" / "commits").rglob("*.json"))


def test_a_sweep_is_submitted_once_watched_and_gone_on_with(cluster: Cluster) -> None:
    results = cluster.folder / "results"
    spec = str(write_spec(cluster.folder, **troubles(8, seconds=0.5)))
    to = ("--address", cluster.dashboard)
    first = cluster.sweep("submit", spec, *to, "--results", str(results))
    assert first.returncode == 0, first.stderr
    assert "was submitted as deyo-sweep-tiny" in first.stdout
    again = cluster.sweep("submit", spec, *to, "--results", str(results))
    assert "is running already" in again.stdout
    elsewhere = cluster.sweep("submit", spec, *to, "--results", str(cluster.folder / "elsewhere"))
    assert elsewhere.returncode == 2
    assert f"writes to {results}" in elsewhere.stderr
    await_that(lambda: commits(results) >= 2)
    cancelled = cluster.sweep("cancel", spec, *to)
    assert "STOPPED" in cancelled.stdout, cancelled.stdout + cancelled.stderr
    done = commits(results)
    assert done < 8
    assert "STOPPED" in cluster.sweep("status", "tiny", "--results", str(results), *to).stdout
    resumed = cluster.sweep("submit", spec, *to, "--results", str(results))
    assert "was submitted as deyo-sweep-tiny@2" in resumed.stdout
    watched = cluster.sweep("watch", spec, *to)
    assert watched.returncode == 0
    assert "8 of 8 runs done" in watched.stdout, watched.stdout + watched.stderr
    assert open_results(str(results), "tiny").runs().num_rows == 8


def test_a_closed_laptop_does_not_end_the_sweep(cluster: Cluster) -> None:
    results = cluster.folder / "closed"
    spec = str(write_spec(cluster.folder, **troubles(8, seconds=0.3)))
    await_end(cluster, spec)
    words = ["submit", spec, "--address", cluster.dashboard, "--results", str(results), "--follow"]
    laptop = subprocess.Popen(
        [sys.executable, "-c", MAIN, *words], cwd=cluster.folder, env=cluster.environment, stdout=subprocess.DEVNULL
    )
    await_that(lambda: commits(results) >= 1)
    assert laptop.poll() is None
    laptop.kill()
    laptop.wait()
    assert commits(results) < 8
    await_that(lambda: commits(results) == 8)
    watched = cluster.sweep("watch", spec, "--address", cluster.dashboard)
    assert "8 of 8 runs done" in watched.stdout, watched.stdout + watched.stderr


def test_failed_runs_are_tried_again_through_jobs(cluster: Cluster) -> None:
    results = str(cluster.folder / "again")
    spec = str(write_spec(cluster.folder, **troubles(3, action="raise", once=str(cluster.folder))))
    await_end(cluster, spec)
    to = ("--address", cluster.dashboard)
    first = cluster.sweep("submit", spec, *to, "--results", results, "--follow")
    assert first.returncode == 1, first.stdout + first.stderr  # as `run` does where runs failed
    assert "3 to run" in first.stdout
    assert open_results(results, "tiny").runs().num_rows == 0
    one = cluster.sweep("retry", spec, "--failed", "--where", "seed=1", *to, "--results", results)
    assert "was submitted" in one.stdout, one.stderr
    shown = cluster.sweep("watch", spec, *to)
    assert "1 to run" in shown.stdout, shown.stdout + shown.stderr
    assert "3 to run" not in shown.stdout  # which the job before it printed
    rows = open_results(results, "tiny").runs(columns=["seed", "attempt"]).to_pylist()
    assert rows == [{"seed": 1, "attempt": 2}]
    rest = cluster.sweep("retry", "tiny", "--failed", *to, "--results", results)
    assert "was submitted" in rest.stdout, rest.stderr
    assert cluster.sweep("watch", "tiny", *to).returncode == 0
    assert open_results(results, "tiny").runs().num_rows == 3


def test_results_on_the_head_are_asked_for_there(cluster: Cluster) -> None:
    """The laptop sees no results: counts, logs and reasons come through the dashboard."""
    results, to = str(cluster.folder / "remote"), ("--address", cluster.dashboard)
    written = write_spec(cluster.folder, **troubles(2, action="raise"))
    spec = str(written.with_name("remote.yaml"))
    Path(spec).write_text(written.read_text().replace("name: tiny", "name: remote"))
    assert cluster.sweep("submit", spec, *to, "--results", results, "--follow").returncode == 1
    status = cluster.sweep("status", spec, *to)
    assert "remote: 0/2 done, 2 failed, 0 left" in status.stdout, status.stdout + status.stderr
    assert re.search(r"job: deyo-sweep-remote FAILED", status.stdout)
    facts = json.loads(cluster.sweep("status", spec, "--json", *to).stdout)
    assert (facts["failed"], facts["total"]) == (2, 2)
    logs = cluster.sweep("logs", spec, *to)
    assert logs.stdout.count("RuntimeError: trouble with image") >= 2, logs.stdout + logs.stderr
    run = re.search(r"=== ([0-9a-f]+) attempt", logs.stdout)[1]
    one = cluster.sweep("logs", "remote", run[:6], "--tail", "1", *to)
    assert one.stdout.count("===") == 1, one.stderr
    explained = cluster.sweep("explain", run, spec, *to)
    assert f"{run}: failed" in explained.stdout, explained.stdout + explained.stderr
    counted = cluster.sweep("query", "SELECT count(*) AS n FROM runs", spec, "--json", *to)
    assert json.loads(counted.stdout) == [{"n": 0}], counted.stderr
    output = cluster.folder / "table.md"
    table = cluster.sweep("table", spec, "--format", "markdown", "--output", str(output), *to)
    assert output.read_text().startswith("**remote: accuracy (%)"), table.stdout + table.stderr
    unknown = cluster.sweep("logs", "remote", "zzz", *to)
    assert unknown.returncode == 2
    assert "no run begins with 'zzz'" in unknown.stderr
    assert "Traceback" not in unknown.stderr
    folder = cluster.folder / "page"
    report = cluster.sweep("report", spec, "--output", str(folder), *to)
    assert report.returncode == 0, report.stderr
    assert "<html" in (folder / "report.html").read_text()


@pytest.mark.parametrize("verb", ["watch", "cancel", "status"])
def test_a_job_that_was_never_submitted(cluster: Cluster, verb: str) -> None:
    told = cluster.sweep(verb, "never", "--address", cluster.dashboard, "--results", str(cluster.folder / "none"))
    assert told.returncode == 2
    assert "has no job deyo-sweep-never" in told.stderr
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize("verb", ["watch", "cancel", "status"])
def test_the_reduced_form_of_a_sweep_has_a_job_of_its_own(cluster: Cluster, verb: str) -> None:
    spec = str(write_spec(cluster.folder, **troubles(1)))
    told = cluster.sweep(verb, spec, "--smoke", "--address", cluster.dashboard, "--results", "none")
    assert told.returncode == 2
    assert "has no job deyo-sweep-tiny-smoke" in told.stderr


def test_results_must_mean_the_same_on_the_cluster(cluster: Cluster) -> None:
    spec = str(write_spec(cluster.folder, **troubles(1)))
    refused = cluster.sweep("submit", spec, "--address", cluster.dashboard)
    assert refused.returncode == 2
    assert "absolute path" in refused.stderr


def test_without_the_token_it_is_told_within_seconds(cluster: Cluster) -> None:
    spec = str(write_spec(cluster.folder, **troubles(1)))
    stranger = Cluster(
        cluster.dashboard, cluster.address, cluster.folder, {**cluster.environment, "HOME": "/nonexistent"}
    )
    for words in (
        ("submit", spec, "--address", cluster.dashboard, "--results", "/tmp/never"),
        ("run", spec, "--address", cluster.address, "--no-preflight", "--results", str(cluster.folder / "never")),
    ):
        refused = stranger.sweep(*words)
        assert refused.returncode == 2, refused.stdout
        assert "RAY_AUTH_MODE" in refused.stderr


def test_two_sweeps_share_the_cluster_by_priority(cluster: Cluster) -> None:
    """While the urgent sweep has work for both workers, the other has none; then it goes on."""
    for name, runs, priority in (("low", 30, 0), ("high", 40, 5)):
        extra = f"resources: {{priority: {priority}}}\n"
        text = write_spec(cluster.folder, **troubles(runs, seconds=0.4), extra=extra).read_text()
        (cluster.folder / f"{name}.yaml").write_text(text.replace("name: tiny", f"name: {name}"))

    def start(name: str) -> subprocess.Popen:
        words = ["run", f"{name}.yaml", "--address", cluster.address, "--quiet", "--no-preflight"]
        command = [sys.executable, "-c", MAIN, *words]
        return subprocess.Popen(command, cwd=cluster.folder, env=cluster.environment)

    first = start("low")
    results = cluster.folder / "results"
    await_that(lambda: sum(1 for _ in (results / "low" / "commits").rglob("*.json")) >= 1)
    second = start("high")
    assert second.wait(timeout=400) == 0
    assert first.wait(timeout=400) == 0
    times = {
        name: [row["finished_at"] for row in open_results(str(results), name).runs().to_pylist()]
        for name in ("low", "high")
    }
    assert (len(times["low"]), len(times["high"])) == (30, 40)
    # Workers change hands as groups end, and a new one takes seconds to start: the first half leaves time for that.
    during = [t for t in times["low"] if sorted(times["high"])[20] < t < max(times["high"])]
    assert len(during) <= 3, "the less urgent sweep kept its workers"


def test_a_job_shows_no_secret(cluster: Cluster) -> None:
    token = (cluster.folder / "home" / ".ray" / "auth_token").read_text().strip()
    assert re.fullmatch(r"[0-9a-f]{64}", token)
    tables = 0
    for path in (cluster.folder / "results").rglob("*"):
        if path.is_file():
            assert token.encode() not in path.read_bytes(), path
        if path.suffix == ".parquet":  # compressed: a token inside a longer text would not be found in its bytes
            tables += 1
            assert token not in str(pq.read_table(path).to_pydict()), path
    assert tables
