"""What each host of a cluster has: versions, GPUs, free disk, and whether it sees the data.

A cluster by ``HOST:6379`` is joined by a child process; one by ``http://HOST:8265`` is asked through a Ray job, so a
laptop needs nothing but the dashboard's port.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.hosts_child import MARK
from orchestrator.probe import ClusterError, token_in_use

PACKAGES = ("ray", "torch", "torchvision", "timm", "deyo-sweep")
PHOTOGRAPHS = "imagecorruptions-imaug"
"""The package whose photographs frost is made with."""
TIMEOUT = 60.0
_FINISHED = {"SUCCEEDED", "FAILED", "STOPPED"}


def ask_hosts(
    address: str, data: Sequence[tuple[str, str, str]] = (), *, timeout: float = TIMEOUT
) -> list[dict[str, Any]]:
    """One mapping a host, as ``orchestrator.hosts_child.look`` gives it. Raises ``ClusterError``.

    ``data`` names what to look for: (benchmark, path in the spec or "", environment variable).
    """
    questions = json.dumps({"packages": (*PACKAGES, PHOTOGRAPHS), "data": [list(entry) for entry in data]})
    script = Path(__file__).with_name("hosts_child.py")
    ask = _by_job if address.startswith(("http://", "https://")) else _by_driver
    output = ask(address, script, questions, timeout)
    for line in output.splitlines():
        if MARK in line:
            return json.loads(line.split(MARK, 1)[1])
    if "No module named 'ray'" in output:
        raise ClusterError(f"`python` on {address} has no Ray: start its hosts with their environment's bin on PATH")
    last = output.strip().splitlines()[-1:] or ["no output"]
    raise ClusterError(f"the hosts of {address} could not be asked: {last[0][:300]}")


def _by_driver(address: str, script: Path, questions: str, timeout: float) -> str:
    command = [sys.executable, "-P", str(script), address, questions, str(timeout / 2)]
    try:
        done = subprocess.run(command, env=_environment(), capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{address} could not be joined from here within {timeout:.0f} s") from None
    return done.stdout if MARK in done.stdout else done.stdout + done.stderr


def _by_job(address: str, script: Path, questions: str, timeout: float) -> str:
    from orchestrator.jobs import connect

    code = base64.b64encode(script.read_bytes()).decode()
    call = f"import base64;exec(base64.b64decode('{code}'))"
    entrypoint = shlex.join(["python", "-P", "-c", call, "auto", questions, str(timeout / 2)])
    client = connect(address)
    try:
        job = client.submit_job(entrypoint=entrypoint, metadata={"deyo-sweep": "doctor"})
        end = time.monotonic() + timeout
        while (status := client.get_job_status(job).value) not in _FINISHED and time.monotonic() < end:
            time.sleep(0.5)
        return client.get_job_logs(job) or f"the job ended as {status} without output"
    except (RuntimeError, ConnectionError, ImportError) as error:
        raise ClusterError(f"{address} takes no job: {str(error).strip().splitlines()[-1][:300]}") from None


def _environment() -> Mapping[str, str]:
    return {**os.environ, "RAY_AUTH_MODE": token_in_use().mode, "RAY_USAGE_STATS_ENABLED": "0"}
