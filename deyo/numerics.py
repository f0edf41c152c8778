"""The engine's own version stamps: they say whether two results were computed by the same arithmetic."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

NUMERICS_VERSION = 1
"""Grows when a change of the engine changes numbers beyond rounding; part of every run's identity."""


@functools.cache
def code_digest() -> str:
    """Hex digest (16 digits) over the sources of the ``deyo`` package, in path order."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
