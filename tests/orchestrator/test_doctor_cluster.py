"""Doctor and preflight against a real Ray head with token authentication, from a shell that may lack the token."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

TOKEN = "test-token-0000000000000000000000000000"

SPEC = """\
name: t
runs:
  - benchmark: digits-c
    corruptions: [contrast]
    models: [small-resnet-bn]
    methods: [tent]
"""

pytestmark = pytest.mark.cluster


class Head:
    """A Ray head on loopback, and ways to ask ``deyo-sweep`` about it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gcs, self.dashboard, agent, metrics = _free_ports(4)
        self.home = folder / "home"
        self.home.mkdir()
        arguments = [
            "--head",
            "--block",
            "--disable-usage-stats",
            "--node-ip-address=127.0.0.1",
            f"--port={self.gcs}",
            "--dashboard-host=127.0.0.1",
            f"--dashboard-port={self.dashboard}",
            f"--dashboard-agent-listen-port={agent}",
            f"--metrics-export-port={metrics}",
            "--num-cpus=1",
            "--object-store-memory=80000000",
            f"--temp-dir={folder / 'r'}",
        ]
        ray = Path(sys.executable).with_name("ray")
        with open(folder / "head.log", "w") as log:
            self.process = subprocess.Popen(
                [str(ray), "start", *arguments],
                env=self.environment(token=TOKEN),
                stdout=log,
                stderr=log,
                cwd=folder,
                start_new_session=True,
            )

    def wait(self) -> None:
        end = time.monotonic() + 120
        while "Ray runtime started" not in (self.folder / "head.log").read_text():
            if self.process.poll() is not None or time.monotonic() > end:
                pytest.fail((self.folder / "head.log").read_text()[-2000:])
            time.sleep(0.3)

    def environment(self, token: str | None) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "DEYO_DATA"))}
        kept |= {"HOME": str(self.home), "RAY_USAGE_STATS_ENABLED": "0", "DEYO_CACHE": str(self.folder / "cache")}
        kept["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"  # as in an activated venv
        return kept | ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {})

    def ask(self, *arguments: str, token: str | None = TOKEN) -> tuple[int, str, float]:
        """Exit code, output and seconds of a ``deyo-sweep`` command in a shell of its own."""
        code = "from orchestrator.cli.main import main; main()"
        begin = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env={**self.environment(token), "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            cwd=self.folder,
            timeout=120,
        )
        return done.returncode, done.stdout + done.stderr, time.monotonic() - begin

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    started = Head(tmp_path_factory.mktemp("h"))
    try:
        started.wait()
        (started.folder / "t.yaml").write_text(SPEC)
        yield started
    finally:
        started.close()


@pytest.mark.parametrize("scheme", ["gcs", "dashboard"])
def test_a_fit_cluster(head: Head, scheme: str) -> None:
    address = f"127.0.0.1:{head.gcs}" if scheme == "gcs" else f"http://127.0.0.1:{head.dashboard}"
    code, output, _ = head.ask("doctor", "t.yaml", "--address", address)
    assert code == 0, output
    assert "ok   cluster" in output
    assert "the cluster asks for a token" in output
    assert f"host {socket.gethostname()}: Python {sys.version_info.major}.{sys.version_info.minor}" in output
    assert TOKEN not in output


@pytest.mark.parametrize("token", [None, "wrong-token-000000000000000000000000000"])
@pytest.mark.parametrize("scheme", ["gcs", "dashboard"])
def test_a_missing_or_wrong_token_is_said_by_name(head: Head, token: str | None, scheme: str) -> None:
    address = f"127.0.0.1:{head.gcs}" if scheme == "gcs" else f"http://127.0.0.1:{head.dashboard}"
    code, output, _ = head.ask("doctor", "--address", address, token=token)
    assert code == 1
    assert "FAIL cluster" in output
    assert "RAY_AUTH_MODE" in output
    assert ("RAY_AUTH_TOKEN" if token else f"{head.home}/.ray/auth_token") in output
    assert "Traceback" not in output


@pytest.mark.parametrize("scheme", ["gcs", "dashboard"])
def test_a_token_in_its_file_is_found(head: Head, scheme: str) -> None:
    address = f"127.0.0.1:{head.gcs}" if scheme == "gcs" else f"http://127.0.0.1:{head.dashboard}"
    path = head.home / ".ray" / "auth_token"
    path.parent.mkdir()
    path.write_text(TOKEN)
    path.chmod(0o600)
    try:
        code, output, _ = head.ask("doctor", "--address", address, token=None)
    finally:
        path.unlink()
        path.parent.rmdir()
    assert code == 0, output
    assert f"ok   host {socket.gethostname()}: Python" in output


def test_more_gpus_than_the_cluster_has(head: Head) -> None:
    code, output, _ = head.ask("plan", "t.yaml", "--set", "resources.gpus=9", "--address", f"127.0.0.1:{head.gcs}")
    assert code == 1
    assert "resources.gpus is 9" in output
    assert f"the biggest node is {socket.gethostname()} with 0 GPU(s)" in output


def test_data_that_a_host_does_not_see(head: Head) -> None:
    code, output, _ = head.ask(
        "doctor",
        "t.yaml",
        "--set",
        "runs[0].benchmark=imagenet-c",
        "--set",
        "data.imagenet-c=/no/such/folder",
        "--set",
        "runs[0].models=[resnet50-bn]",
        "--address",
        f"127.0.0.1:{head.gcs}",
    )
    if "did you mean" in output:
        pytest.skip("imagenet-c is not registered")
    assert code == 1
    assert "data imagenet-c: /no/such/folder is no folder there" in output
