"""Folders that a user names: what stands in the way of writing there."""

from __future__ import annotations

import os
from pathlib import Path


def existing(path: Path) -> Path:
    """``path`` or the nearest folder above it that is there."""
    path = path.expanduser().absolute()
    return next(p for p in (path, *path.parents) if p.is_dir())


def blocking_file(path: Path) -> Path | None:
    """The file that stands where the folder ``path``, or one above it, would have to be."""
    path = path.expanduser().absolute()
    return next((p for p in (path, *path.parents) if os.path.lexists(p) and not p.is_dir()), None)


def obstacle(path: Path) -> str | None:
    """Why nothing can be written under the folder ``path``, which need not exist yet; None if it can."""
    if (file := blocking_file(path)) is not None:
        return f"{file} is a file, not a folder"
    folder = existing(path)
    return None if os.access(folder, os.W_OK | os.X_OK) else f"{folder} cannot be written"
