"""Files whose tests may take longest come first, so that the last minutes of a parallel run have work for all."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    longest: dict[Path, float] = {}
    for item in items:
        mark = item.get_closest_marker("timeout")
        allowed = float(mark.args[0]) if mark and mark.args else 0.0
        longest[item.path] = max(allowed, longest.get(item.path, 0.0))
    items.sort(key=lambda item: -longest[item.path])  # stable: files stay whole, and in their order
