"""SPEC.md, and what of it is written from the code: settings, networks, options of benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from experiments import networks, options, settings

SPEC = Path(__file__).with_name("SPEC.md")
PARTS: Mapping[str, Callable[[], str]] = {
    "options of benchmarks": options.table,
    "networks": networks.table,
    "architectures": networks.architectures,
    "recipes": networks.recipes,
    "flags": networks.flags,
    "settings": settings.table,
}
"""What is written, by the name in the marks around it."""


def marks(part: str) -> tuple[str, str]:
    """The lines before and after a part."""
    return f"<!-- {part}: written by `python -m experiments.index` -->", f"<!-- end of {part} -->"


def with_parts(text: str) -> str:
    """SPEC.md's text with every part as it would be written now. Raises ``ValueError`` where a mark is missing."""
    for part, write in PARTS.items():
        begin, end = marks(part)
        before, found, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        if not found or not ended:
            raise ValueError(f"{SPEC.name} has no place for {part}: {begin} ... {end}")
        text = f"{before}{begin}\n{write()}\n{end}{after}"
    return text
