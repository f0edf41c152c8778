"""Mean and standard deviation over seeds, with everything that did not make it into the mean."""

from __future__ import annotations

import math
import shlex
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from deyo.types import ConfigError
from orchestrator.tables.data import Entry, Replicate
from orchestrator.tables.metrics import Metric, shown


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Mean±std of one cell over its replicates (seeds).

    ``mean`` is None where no replicate counts; ``std`` is None where fewer than ``ddof`` + 1 do. ``n`` of
    ``expected`` replicates count; the others are in ``missing`` (not run yet), ``failed``, ``nan`` or ``absent``
    (the run has no such number, as worst-group accuracy where there are no groups). A replicate that averages
    over several conditions counts only if all of them are there. ``collapsed`` replicates count, as in the
    published tables, but are named.
    """

    mean: float | None
    std: float | None
    n: int
    expected: int
    values: Mapping[Replicate, float] = field(default_factory=dict)
    missing: tuple[Replicate, ...] = ()
    failed: tuple[Replicate, ...] = ()
    nan: tuple[Replicate, ...] = ()
    absent: tuple[Replicate, ...] = ()
    collapsed: tuple[Replicate, ...] = ()
    nan_steps: tuple[Replicate, ...] = ()

    @property
    def complete(self) -> bool:
        return self.n == self.expected

    @property
    def median(self) -> float | None:
        ordered = sorted(self.values.values())
        if not ordered:
            return None
        half = len(ordered) // 2
        return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def mean_std(values: Sequence[float], ddof: int = 1) -> tuple[float | None, float | None]:
    """Mean and standard deviation (divisor n − ``ddof``); None where not defined."""
    if not values:
        return None, None
    mean = math.fsum(values) / len(values)
    if len(values) <= ddof or len(values) < 2:
        return mean, None
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - ddof))


_REASONS = ("missing", "failed", "nan", "absent", "collapsed", "nan_steps")
Condition = Hashable


def condition(entry: Entry) -> Condition:
    """What a replicate is averaged over: the test condition."""
    axes = entry.axes
    return (axes["corruption"], axes["severity"], axes["corruptions"])


def by_replicate(entries: Sequence[Entry]) -> dict[Replicate, dict[Condition, Entry]]:
    """Entries of one cell by seed, then by condition.

    Raises ``ConfigError`` when two runs of one cell share seed and condition: they differ in an axis that the
    table does not show, and averaging them would hide it.
    """
    table: dict[Replicate, dict[Condition, Entry]] = {}
    for entry in entries:
        conditions = table.setdefault(entry.replicate, {})
        other = conditions.setdefault(condition(entry), entry)
        if other is not entry:
            raise ConfigError(_clash(other, entry))
    return table


def _clash(a: Entry, b: Entry) -> str:
    differing = []
    for axis, value in a.axes.items():
        other = b.axes[axis]
        if value == other:
            continue
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            keys = sorted(k for k in {*value, *other} if value.get(k) != other.get(k))
            differing += [(f"{axis}.{k}", value.get(k), other.get(k)) for k in keys]
        else:
            differing.append((axis, value, other))
    what = "; ".join(f"{axis}: {x!r} and {y!r}" for axis, x, y in differing) or "nothing that the store records"
    axis, value, _ = differing[0] if differing else ("run_id", a.run_id, "")
    rows = "label" if axis == "label" else f"label,{axis}"
    return (
        f"two runs fall into one cell for seed {a.replicate[0]} ({a.axes['label']}): they differ in {what}. "
        f"Show the axis (--rows {rows}) or keep one value (--where {shlex.quote(f'{axis}={value}')})"
    )


def summarise(
    entries: Sequence[Entry],
    metric: Metric,
    *,
    ddof: int = 1,
    weighted: bool = False,
    conditions: Iterable[Condition] = (),
) -> Summary:
    """Statistics of one cell. Several conditions (corruptions, severities) are first averaged within a seed:
    plainly, or ``weighted`` by each run's number of images. ``conditions`` are those that the average must
    span (by default those of ``entries``): a seed that lacks one does not count.
    """
    table = by_replicate(entries)
    conditions = dict.fromkeys([*conditions, *(c for per in table.values() for c in per)])
    values: dict[Replicate, float] = {}
    out: dict[str, list[Replicate]] = {k: [] for k in _REASONS}
    for replicate, runs in table.items():
        value, reason = _replicate_value(runs, conditions, metric, weighted)
        if value is None:
            out[reason].append(replicate)
        else:
            values[replicate] = value
        if any(e.row.get("collapsed") for e in runs.values()):
            out["collapsed"].append(replicate)
        if any(e.row.get("nan_steps") for e in runs.values()):
            out["nan_steps"].append(replicate)
    mean, std = mean_std(list(values.values()), ddof)
    return Summary(
        mean=mean,
        std=std,
        n=len(values),
        expected=len(table),
        values=values,
        **{k: tuple(v) for k, v in out.items()},
    )


def _replicate_value(
    runs: Mapping[Condition, Entry], conditions: Mapping[Condition, None], metric: Metric, weighted: bool
) -> tuple[float | None, str]:
    """The value of one seed, or None and why it does not count."""
    if any(e.status == "failed" for e in runs.values()):
        return None, "failed"
    if len(runs) < len(conditions) or any(e.status == "missing" for e in runs.values()):
        return None, "missing"
    numbers = [shown(metric, runs[c].row) for c in conditions]
    if any(v is None for v in numbers):
        return None, "absent"
    if any(math.isnan(v) for v in numbers):
        return None, "nan"
    weights = [runs[c].row["images"] or 0 for c in conditions] if weighted else [1]
    if len(set(weights)) == 1 and weights[0]:  # equal weights: the plain mean, to the last bit
        return math.fsum(numbers) / len(numbers), ""
    if not sum(weights):
        return None, "absent"
    return math.fsum(v * w for v, w in zip(numbers, weights)) / sum(weights), ""
