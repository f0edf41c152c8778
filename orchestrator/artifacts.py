"""Pretraining checkpoints on their way between hosts: the same bytes wherever runs start from them."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import replace
from pathlib import Path

from orchestrator.types import Artifact


def read_artifact(key: str, path: Path) -> Artifact:
    """The artifact that a checkpoint file is, with its bytes."""
    return Artifact(key=key, path=str(path), sha256=file_sha256(path), blob=path.read_bytes())


def keep_artifact(artifact: Artifact, cache: Path | None = None) -> Artifact:
    """The artifact as a file on this host, without its bytes in memory."""
    here = Path(artifact.path)
    if not (here.is_file() and file_sha256(here) == artifact.sha256):
        here = shipped_path(artifact, cache)
        if not here.exists():
            write_atomically(here, artifact.blob)
    return replace(artifact, path=str(here), blob=b"")


def shipped_path(artifact: Artifact, cache: Path | None) -> Path:
    """Where a checkpoint made on another host is kept: its name and hash tell it from one trained here."""
    from deyo.benchmarks import default_cache

    name = Path(artifact.path)
    return (cache or default_cache()) / "shipped" / artifact.sha256[:16] / name.name


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` so that no reader ever sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
