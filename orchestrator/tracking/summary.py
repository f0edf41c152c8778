"""From rows of ``runs`` and ``aggregates`` to summary metrics: of one run, of a group of seeds, of a sweep."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from orchestrator.cells import METRICS
from orchestrator.tracking.curves import Point
from orchestrator.tracking.naming import PREFIX, clean_key

SUMMARY = (*METRICS, "group_size")
MEANS = ("accuracy", "average_accuracy", "worst_group_accuracy", "aurc", "images_per_second", "seconds")
MAX_SWEEP_METRICS = 500


def millis(iso: str | None) -> int:
    """Milliseconds since the epoch of an ISO 8601 time; 0 where there is none."""
    return int(datetime.fromisoformat(iso).timestamp() * 1000) if iso else 0


def run_values(row: Mapping[str, Any]) -> dict[str, float]:
    """All numbers of a ``runs`` row by metric name, also those that are not finite."""
    values = {name: float(row[name]) for name in SUMMARY if row.get(name) is not None}
    for column, prefix in (("group_accuracies", "group_accuracy"), ("domain_accuracies", "domain_accuracy")):
        for item in row.get(column) or ():
            if item["images"]:
                values[clean_key(f"{prefix}/{item['name']}")] = item["correct"] / item["images"]
    return values


def run_points(row: Mapping[str, Any]) -> list[Point]:
    """The final metrics of one run, at step 0 and the time at which it finished."""
    when = millis(row.get("finished_at"))
    return [Point(k, v, when, 0) for k, v in run_values(row).items() if math.isfinite(v)]


def outcome_tags(row: Mapping[str, Any]) -> dict[str, str]:
    """Tags for what a metric cannot say: collapse, NaN and infinity (MLflow turns inf into 1.8e308)."""
    tags = {PREFIX + "collapsed": str(bool(row.get("collapsed"))).lower()}
    odd = sorted(f"{k}={v}" for k, v in run_values(row).items() if not math.isfinite(v))
    if odd or row.get("nan_steps"):
        tags[PREFIX + "not_finite"] = ", ".join(odd) or f"{row['nan_steps']} steps"
    return tags


def seed_points(row: Mapping[str, Any], suffix: str) -> list[Point]:
    """The same numbers inside a group's run: ``by_seed/accuracy`` with the seed as the step."""
    when = millis(row.get("finished_at"))
    return [
        Point(clean_key(f"by_seed/{k}{suffix}"), v, when, int(row["seed"]))
        for k, v in run_values(row).items()
        if math.isfinite(v) and not k.startswith(("group_accuracy/", "domain_accuracy/"))
    ]


def group_points(members: Iterable[Mapping[str, float]], when: int) -> list[Point]:
    """Mean and sample standard deviation over the seeds so far; the step is how many there are."""
    rows = list(members)
    points = []
    for name in MEANS:
        values = [m[name] for m in rows if name in m and math.isfinite(m[name])]
        if values:
            points.append(Point(name, math.fsum(values) / len(values), when, len(rows)))
        if len(values) > 1:
            points.append(Point(f"{name}_std", statistics.stdev(values), when, len(rows)))
    points.append(Point("seeds", float(len(rows)), when, len(rows)))
    return points


def sweep_points(aggregates: Sequence[Mapping[str, Any]], when: int, committed: int) -> list[Point]:
    """The parent's metrics: ``accuracy/DeYO gaussian_noise-5 resnet50-gn ...`` and ``accuracy_std/...``, at step
    ``committed`` (runs in the store), so that the points of one state of the store are always the same.

    More than 500 would be of no use in the UI: then only averages over corruptions are taken, and at most 500.
    The table among the artifacts has all.
    """
    rows = [r for r in aggregates if r["metric"] in MEANS[:4] and _finite(r["mean"])]
    if len(rows) > MAX_SWEEP_METRICS:
        rows = [r for r in rows if r["corruption"] in (None, "average")][:MAX_SWEEP_METRICS]
    points = []
    for row in rows:
        name = aggregate_name(row)
        points.append(Point(clean_key(name), float(row["mean"]), when, committed))
        if _finite(row["std"]):
            points.append(Point(clean_key(name.replace("/", "_std/", 1)), float(row["std"]), when, committed))
    return points


def aggregate_name(row: Mapping[str, Any]) -> str:
    """A metric name for one row of ``aggregates``; rows that differ in any axis have different names."""
    severity = f"-{row['severity']}" if row["severity"] is not None else ""
    parts = [row["label"] or row["method"], f"{row['corruption'] or 'all'}{severity}"]
    parts += [row["model"], row["benchmark"], row["scenario"]]
    options = row["scenario_options"]
    if options and options != "{}":
        parts.append(options.strip("{}").replace('"', "").replace(",", " "))
    parts += [f"batch {row['batch_size']}", row["protocol"], row["precision"]]
    return f"{row['metric']}/" + " ".join(str(p) for p in parts)


def _finite(value: Any) -> bool:
    return value is not None and math.isfinite(value)
