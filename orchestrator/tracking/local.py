"""What tracking keeps on this machine, beside the sweeps' folders: ``<results root>/.mlflow/``.

``<sweep>.json`` remembers the tracking URI in use (never one with a password) and the granularity;
``<sweep>.log`` is what the publisher prints; ``artifacts/<sweep>`` holds artifacts of an embedded store.
For results in an object store the folder is ``~/.cache/deyo-sweep/mlflow/<hash of the root>``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from orchestrator.tracking.options import is_remote_root, local_root, sqlite_path


def folder(root: str) -> Path:
    """The folder for a results root; not created."""
    if not is_remote_root(root):
        return local_root(root) / ".mlflow"
    cache = Path(os.environ.get("DEYO_CACHE") or Path.home() / ".cache" / "deyo-sweep")
    return cache / "mlflow" / hashlib.sha256(root.encode()).hexdigest()[:16]


def remember(root: str, sweep: str, uri: str, granularity: str, *, clean: bool) -> None:
    """Note the store in use, for ``deyo-sweep ui`` and ``sync-mlflow``, and whether everything is published."""
    noted: dict[str, Any] = {"granularity": granularity, "clean": clean, "uri_sha256": _digest(uri)}
    if not urlsplit(uri).password:
        noted["uri"] = uri
    path = _file(root, sweep, "json")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.part")
    partial.write_text(json.dumps(noted) + "\n")
    partial.replace(path)


def is_clean(root: str, sweep: str, uri: str) -> bool:
    """Whether the last publisher left nothing to do in the store ``uri``, and that store is still there."""
    noted, database = recall(root, sweep), sqlite_path(uri)
    there = database is None or database.exists()
    return bool(noted.get("clean")) and noted.get("uri_sha256") == _digest(uri) and there


def recall(root: str, sweep: str) -> dict[str, Any]:
    """What ``remember`` noted; empty if nothing was."""
    try:
        return dict(json.loads(_file(root, sweep, "json").read_text()))
    except (OSError, ValueError):
        return {}


def log_path(root: str, sweep: str) -> Path:
    return _file(root, sweep, "log")


def log_file(root: str, sweep: str) -> BinaryIO:
    """The publisher's log, opened for appending."""
    path = log_path(root, sweep)
    path.parent.mkdir(parents=True, exist_ok=True)
    return open(path, "ab")


def artifacts_uri(root: str, sweep: str) -> str:
    """Where an experiment in a database keeps its artifacts, since no server decides it."""
    return (folder(root) / "artifacts" / _safe(sweep)).as_uri()


def _file(root: str, sweep: str, ending: str) -> Path:
    return folder(root) / f"{_safe(sweep)}.{ending}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _safe(sweep: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", sweep)
