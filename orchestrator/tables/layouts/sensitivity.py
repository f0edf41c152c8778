"""Table 17 and figures 7, 8, 9 of the paper: one setting of a method varied at a time, a panel for each."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from orchestrator.tables.data import Entry, SweepData, hashable
from orchestrator.tables.layouts.base import Layout, LayoutOptions, is_biased, unique_runs
from orchestrator.tables.layouts.biased import titled
from orchestrator.tables.metrics import metric
from orchestrator.tables.model import Table
from orchestrator.tables.pivot import pivot

# Settings that follow from others (the situation, the network) and are no axis of their own.
DERIVED = ("learning_rate", "adapted")
SYMBOLS = {
    "plpd_threshold": "τ_PLPD",
    "plpd_reference": "PLPD_0",
    "entropy_margin": "τ_Ent / ln C",
    "entropy_reference": "Ent_0 / ln C",
    "patches": "patches P×P",
    "transform": "transform",
}


def varied(data: SweepData) -> dict[str, dict[str, dict[Any, int]]]:
    """For each method: its settings with more than one value within one situation, and how often each value
    occurs.
    """
    found: dict[str, dict[str, dict[Any, int]]] = {}
    seen: dict[tuple[Any, ...], Any] = {}
    several: set[tuple[str, str]] = set()
    counts: dict[tuple[str, str], Counter[Any]] = {}
    for e in data.entries:
        method = e.axes["method"]
        place = (method, *(hashable(e.axes[a]) for a in ("benchmark", "scenario", "model", "batch_size", "protocol")))
        for name, value in e.axes["settings"].items():
            value = hashable(value)
            counts.setdefault((method, name), Counter())[value] += 1
            if seen.setdefault((*place, name), value) != value:
                several.add((method, name))
    for method, name in sorted(several):
        found.setdefault(method, {})[name] = dict(counts[method, name])
    return found


def build(data: SweepData, options: LayoutOptions) -> list[Table]:
    data = unique_runs(data)
    biased = is_biased(data)
    names = ("average_accuracy", "worst_group_accuracy") if biased else ("accuracy",)
    metrics = options.metrics or tuple(map(metric, names))
    pivoted = options.with_pivot(decimals=2 if biased else None)
    tables, shown = [], set()
    for method, settings in varied(data).items():
        base = {name: max(values, key=values.get) for name, values in settings.items()}
        for name in settings:
            panel = data.where(lambda e, m=method, n=name, b=base: _in_panel(e, m, n, b))
            shown |= {id(e) for e in panel.entries}
            table = pivot(panel, [f"settings.{name}"], [], metrics, pivoted, name=f"sensitivity-{name}")
            table = replace(table, stub=SYMBOLS.get(name, name))
            if biased:
                table = replace(table, columns=tuple(map(titled, table.columns)))
            fixed = ", ".join(f"{SYMBOLS.get(k, k)} = {v}" for k, v in base.items() if k != name)
            tables.append(
                table.with_notes(f"{method}, {SYMBOLS.get(name, name)} varied" + (f"; {fixed}." if fixed else "."))
            )
    rest = data.where(lambda e: id(e) not in shown)
    if rest.entries:
        tables.append(pivot(rest, ["label"], [], metrics, pivoted, name="others"))
    return tables


def _in_panel(entry: Entry, method: str, name: str, base: dict[str, Any]) -> bool:
    settings = entry.axes["settings"]
    return entry.axes["method"] == method and all(hashable(settings.get(k)) == v for k, v in base.items() if k != name)


def _suits(data: SweepData) -> bool:
    found = varied(data).get("deyo", {})
    return any(len(values) >= 3 for name, values in found.items() if name not in DERIVED)


LAYOUT = Layout(
    name="sensitivity",
    help="a panel for each setting that the sweep varies, the others at their most frequent value (T17, F7, F8, F9)",
    experiments=("T17",),
    suits=_suits,
    build=build,
)
