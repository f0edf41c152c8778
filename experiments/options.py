"""The options of every benchmark, as SPEC.md lists them: from the ``Option``s that also check them."""

from __future__ import annotations

import json

from deyo.benchmarks.info import Option


def table() -> str:
    """A row for each option, benchmarks that share it named together."""
    from deyo.benchmarks.registry import BUILT_IN, benchmark_class

    rows: dict[tuple[str, Option], list[str]] = {}
    without = []
    for benchmark in BUILT_IN:
        options = benchmark_class(benchmark).OPTIONS
        for name, option in options.items():
            rows.setdefault((name, option), []).append(benchmark)
        if not options:
            without.append(benchmark)
    lines = ["| option | of | default | allowed | meaning |", "|---|---|---|---|---|"]
    for (name, option), of in rows.items():
        lines.append(f"| `{name}` | {', '.join(of)} | {_written(option.default)} | {_allowed(option)} | {option.doc} |")
    lines.append(f"\nNo options: {', '.join(without)}.")
    return "\n".join(lines)


def _allowed(option: Option) -> str:
    if option.choices:
        return ", ".join(map(_written, option.choices))
    return option.allowed or {bool: "true, false", int: "whole"}[type(option.default)]


def _written(value: object) -> str:
    """As YAML has it."""
    return value if isinstance(value, str) else json.dumps(value)
