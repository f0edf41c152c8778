"""MLflow's own server and UI on the store in use, on loopback."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import IO

from deyo.types import ConfigError
from orchestrator.tracking.options import with_driver

START_SECONDS = 120.0
STOP_SECONDS = 10.0


def free_port(preferred: int = 5000) -> int:
    """``preferred`` if nothing listens there on loopback, else any free port."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return int(probe.getsockname()[1])
    raise ConfigError("no free port on 127.0.0.1")


@contextlib.contextmanager
def serve(
    uri: str, *, port: int, artifacts: str, log: IO[bytes] | None = None, start_seconds: float = START_SECONDS
) -> Iterator[str]:
    """Run ``mlflow server`` on the database ``uri`` while the block runs; gives its URL once it answers.

    One worker and no job runners: it is for looking. The URI goes through the environment, since it may hold
    a password. Raises ``ConfigError`` if the server ends or does not answer in time.
    """
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", "1", "--default-artifact-root", artifacts]
    environment = {
        **os.environ,
        "MLFLOW_BACKEND_STORE_URI": with_driver(uri),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "CUDA_VISIBLE_DEVICES": "",
    }
    environment.pop("MLFLOW_TRACKING_URI", None)
    process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(process, url, start_seconds)
        yield url
    finally:
        _stop(process)


def _wait(process: subprocess.Popen[bytes], url: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise ConfigError(f"mlflow server ended with {process.returncode} before it answered; see its log")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.2)
    raise ConfigError(f"mlflow server did not answer at {url} within {seconds:g} s; see its log")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and its worker, which are a process group of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 15)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
