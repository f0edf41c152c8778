"""Stamps that say by what code, libraries and hardware a result was made."""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

LIBRARIES = ("deyo-sweep", "torch", "torchvision", "timm", "numpy", "ray", "mlflow", "pyarrow")

CODE_VERSION = "DEYO_CODE_VERSION"
"""Environment variable by which the driver hands its code version to workers, whose copy has no git."""


def now() -> str:
    """The time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@functools.cache
def libraries() -> str:
    """JSON object of library versions; those not installed are left out."""
    found = {"python": ".".join(map(str, __import__("sys").version_info[:3]))}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return json.dumps(found)


@functools.cache
def code_version() -> tuple[str, bool]:
    """Commit of the project's checkout (or the package's version) and whether files differ from it."""
    handed = os.environ.get(CODE_VERSION)
    if handed:
        return handed.removesuffix("+dirty"), handed.endswith("+dirty")
    root = Path(__file__).resolve().parent.parent
    commit = _git(root, "rev-parse", "HEAD")
    if commit and (root / "orchestrator").is_dir() and _git(root, "ls-files", "pyproject.toml"):
        return commit, bool(_git(root, "status", "--porcelain", "--", "deyo", "orchestrator"))
    try:
        return version("deyo-sweep"), False
    except PackageNotFoundError:
        return "unknown", True


def code_environment() -> dict[str, str]:
    """What a worker's environment needs in order to report the driver's code version."""
    commit, dirty = code_version()
    return {CODE_VERSION: commit + ("+dirty" if dirty else "")}


def stamps(device: str, device_name: str) -> Mapping[str, Any]:
    """The provenance columns of ``schema.RUNS`` that do not depend on the run."""
    from orchestrator.engine import NUMERICS_VERSION, code_digest

    commit, dirty = code_version()
    return {
        "code_version": commit,
        "code_dirty": dirty,
        "code_digest": code_digest(),
        "numerics_version": NUMERICS_VERSION,
        "libraries": libraries(),
        "host": socket.gethostname(),
        "device": device,
        "device_name": device_name,
    }


def _git(root: Path, *args: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
