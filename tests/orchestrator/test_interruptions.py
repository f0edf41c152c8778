"""``deyo-sweep run`` on its own Ray, disturbed in every way, and the same command again: each run done exactly once,
with the numbers of an undisturbed sweep."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_runs import write_spec
from trouble_package import install

from deyo.types import ConfigError
from experiments.benchmarks.overhead import descendants
from orchestrator import open_results

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
MAIN = "from orchestrator.cli.main import main; main()"
RUNS, STEPS = 12, 4
NUMBERS = ("accuracy", "mean_entropy", "forwards", "images", "stream_digest", "weights_sha256", "data_fingerprint")


class Command:
    """``deyo-sweep run tiny.yaml`` in a folder, with results under ``results``."""

    def __init__(self, folder: Path, results: Path, *, extra: tuple[str, ...] = (), **variables: str) -> None:
        self.folder, self.results = folder, results
        path = os.pathsep.join([str(folder / "site"), str(ROOT)])
        fixed = {"PYTHONPATH": path, "DEYO_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
        self.environment = {**os.environ, **fixed, **variables}
        words = ["run", "tiny.yaml", "--results", str(results), "--no-preflight", *extra]
        self.command = [sys.executable, "-c", MAIN, *words]

    def start(self) -> subprocess.Popen:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self.command, cwd=self.folder, env=self.environment, stdout=pipe, stderr=subprocess.STDOUT, text=True
        )

    def again(self) -> None:
        """The same command to its end."""
        process = self.start()
        printed, _ = process.communicate(timeout=400)
        assert process.returncode == 0, printed

    def commits(self) -> int:
        return sum(1 for _ in (self.results / "tiny" / "commits").rglob("*.json"))

    def await_commits(self, process: subprocess.Popen, count: int) -> None:
        until = time.monotonic() + 300
        while self.commits() < count:
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < until
            time.sleep(0.1)

    def table(self) -> dict[str, dict]:
        """Each run's numbers; each is there once, and so is each of its batches."""
        opened = open_results(str(self.results), "tiny")
        rows = opened.runs(columns=["run_id", *NUMBERS]).to_pylist()
        assert len(rows) == len({row["run_id"] for row in rows}) == RUNS
        steps = opened.batches(columns=["run_id", "step"]).to_pylist()
        assert len(steps) == len({(row["run_id"], row["step"]) for row in steps}) == RUNS * STEPS
        return {row["run_id"]: row for row in rows}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("interrupted")
    install(made / "site")
    methods = json.dumps([{"name": "trouble", "settings": {"action": "none", "seconds": 0.3}}])
    resources = "resources: {workers: 2, cpus_per_worker: 0.5}\n"
    write_spec(made, methods=methods, seeds=list(range(RUNS)), images=16 * STEPS, extra=resources)
    return made


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, dict]:
    calm = Command(folder, folder / "calm")
    calm.again()
    return calm.table()


def once(process: subprocess.Popen, number: signal.Signals) -> None:
    process.send_signal(number)


def twice(process: subprocess.Popen, number: signal.Signals) -> None:
    process.send_signal(number)
    time.sleep(0.3)
    process.send_signal(number)


@pytest.mark.parametrize(
    ("disturb", "number", "code"),
    [
        (once, signal.SIGINT, 130),
        (twice, signal.SIGINT, 130),
        (once, signal.SIGTERM, 130),
        (once, signal.SIGKILL, -9),
    ],
    ids=["ctrl-c", "ctrl-c twice", "SIGTERM", "SIGKILL"],
)
def test_a_signal(
    folder: Path,
    tmp_path: Path,
    expected: dict[str, dict],
    disturb: Callable[[subprocess.Popen, signal.Signals], None],
    number: signal.Signals,
    code: int,
) -> None:
    command = Command(folder, tmp_path / "results")
    process = command.start()
    command.await_commits(process, 3)
    family = descendants(process.pid)
    disturb(process, number)
    printed, _ = process.communicate(timeout=200)
    assert process.returncode == code, printed
    assert "Traceback" not in printed
    assert 3 <= command.commits() < RUNS
    await_gone(family)
    command.again()
    assert command.table() == expected


SIGNALLED = """
import os, signal
from {module} import {place} as place
begun = place.{name}
def and_then(*words, **named):
    made = begun(*words, **named)
    os.kill(os.getpid(), signal.SIGTERM)
    return made
place.{name} = and_then
from orchestrator.cli.main import main; main()
"""


@pytest.mark.parametrize(
    ("module", "place", "name"),
    [("ray._private.node", "Node", "start_head_processes"), ("ray._private", "worker", "connect")],
    ids=["its processes", "joining them"],
)
def test_sigterm_while_ray_starts(folder: Path, tmp_path: Path, module: str, place: str, name: str) -> None:
    """Ray has handlers of its own, which would end the command with 1 or with 15."""
    command = Command(folder, tmp_path / "results")
    command.command[2] = SIGNALLED.format(module=module, place=place, name=name)
    process = command.start()
    printed, _ = process.communicate(timeout=200)
    assert process.returncode == 130, printed
    assert "Traceback" not in printed
    assert command.commits() == 0
    await_gone(processes_naming(f"deyo-ray-{process.pid}-"))


def processes_naming(text: str) -> set[int]:
    """Those with ``text`` in their command line."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text in path.read_text(errors="replace"):
                found.add(int(path.parent.name))
        except OSError:
            continue
    return found


def await_gone(pids: set[int]) -> None:
    """What the sweep started ends by itself."""
    until = time.monotonic() + 200  # Ray's log monitor gives up after 75 s
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < until, left
        time.sleep(0.5)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"needs a file system of its own: {made.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk(folder: Path, small_disk: Path, expected: dict[str, dict]) -> None:
    command = Command(folder, small_disk / "results")
    process = command.start()
    command.await_commits(process, 2)
    with open(small_disk / "ballast", "wb", buffering=0) as ballast:
        try:
            while ballast.write(bytes(4096)):
                pass
        except OSError:
            pass
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 1, printed
    assert "no space left" in printed
    assert "Traceback" not in printed
    assert command.commits() < RUNS
    (small_disk / "ballast").unlink()
    command.again()
    assert command.table() == expected


def test_mlflow_is_down(folder: Path, tmp_path: Path, expected: dict[str, dict]) -> None:
    """It costs nothing but a line; the results are the same, and complete at once."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{taken.getsockname()[1]}"  # bound, but nobody listens
        changes = ("--set", "mlflow={tracking_uri: '" + uri + "'}")
        command = Command(folder, tmp_path / "results", extra=changes)
        process = command.start()
        printed, _ = process.communicate(timeout=400)
    assert process.returncode == 0, printed
    assert "sync-mlflow" in printed
    assert command.table() == expected
    with pytest.raises(ConfigError):
        open_results(str(tmp_path / "results"), "other")
