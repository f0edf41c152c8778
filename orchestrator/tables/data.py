"""The runs of a sweep as tables see them: finished, failed and missing ones side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from deyo.types import ConfigError
from orchestrator.types import Failure, FailureClass, PlannedRun, RunConfig

AXES = (
    "benchmark",
    "benchmark_options",
    "scenario",
    "scenario_options",
    "model",
    "method",
    "label",
    "corruption",
    "severity",
    "corruptions",
    "batch_size",
    "protocol",
    "precision",
    "max_images",
    "settings",
)
JSON_AXES = ("benchmark_options", "scenario_options", "settings")

Replicate = tuple[int, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One run of the sweep.

    ``axes`` has the names of ``AXES``. ``replicate`` is (seed, pretrain_seed): what mean±std runs over.
    ``status`` is "done", "failed" or "missing"; ``row`` is the ``runs`` row of a done one, else empty. ``stale``:
    the row is that of an equal run made with older code, weights or data.
    """

    run_id: str
    axes: Mapping[str, Any]
    replicate: Replicate
    status: str
    row: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""
    stale: bool = False


@dataclass(frozen=True, kw_only=True)
class SweepData:
    """All runs of a sweep. ``planned`` says whether missing runs are known from its plan, not guessed.
    ``samples`` gives the ``samples`` rows of the runs named, where the sweep recorded them.
    """

    sweep: str
    entries: tuple[Entry, ...]
    planned: bool = True
    failures: Mapping[str, Failure] = field(default_factory=dict)
    samples: Callable[[Sequence[str]], pa.Table] | None = None

    def values(self, axis: str) -> list[Any]:
        """The distinct values of an axis, in the order of the plan."""
        get = getter(axis)
        return list(dict.fromkeys(get(e) for e in self.entries))

    def where(self, keep: Callable[[Entry], bool]) -> SweepData:
        return replace(self, entries=tuple(e for e in self.entries if keep(e)))


@lru_cache(maxsize=65536)
def _json(text: str) -> Mapping[str, Any]:
    return json.loads(text)


def _decode(text: str | None) -> Mapping[str, Any]:
    return _json(text) if text else {}


def _row_axes(row: Mapping[str, Any]) -> dict[str, Any]:
    axes = {name: row.get(name) for name in AXES}
    axes["corruptions"] = tuple(row.get("corruptions") or ())
    for name in JSON_AXES:
        axes[name] = _decode(row.get(name))
    axes["label"] = row.get("label") or row.get("method")
    return axes


def _config_axes(config: RunConfig) -> dict[str, Any]:
    axes = {name: getattr(config, name) for name in AXES}
    axes["corruptions"] = tuple(config.corruptions)
    return axes


def from_runs(
    runs: pa.Table,
    *,
    sweep: str = "",
    planned: Sequence[PlannedRun] | None = None,
    failures: Mapping[str, Failure] | None = None,
    samples: Callable[[Sequence[str]], pa.Table] | None = None,
) -> SweepData:
    """Tables' view of a ``runs`` table (columns of ``orchestrator.schema.RUNS``).

    ``planned`` are the runs of the sweep's plan: those without a row are failed (if in ``failures``, and
    not for having been stopped) or missing.
    Rows that are not planned (of an older spec) are left out. Without a plan, a seed that some cells have and
    others lack is taken as missing there. A run into which duplicates were merged stands under each label. Of
    runs that differ only in the code or weights that made them, the one planned counts, else the newest.
    """
    rows = runs.to_pylist()
    if planned is None:
        done = [e for row in _newest(rows).values() for e in _labelled(_done(row), row.get("aliases"))]
        entries = list(_guess_missing(done))
    else:
        entries = _planned_entries(rows, planned, failures or {})
    return SweepData(
        sweep=sweep,
        entries=tuple(entries),
        planned=planned is not None,
        failures=failures or {},
        samples=samples,
    )


def _newest(rows: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The newest row of each configuration, by its id."""
    found: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        key = row.get("config_id") or row["run_id"]
        if key not in found or (row.get("finished_at") or "") >= (found[key].get("finished_at") or ""):
            found[key] = row
    return found


def _planned_entries(
    rows: Sequence[Mapping[str, Any]], planned: Sequence[PlannedRun], failures: Mapping[str, Failure]
) -> list[Entry]:
    by_id, by_config = {row["run_id"]: row for row in rows}, _newest(rows)
    entries: list[Entry] = []
    for run in planned:
        row = by_id.get(run.run_id)
        older = by_config.get(str(run.stamps.get("config_id"))) if row is None else None
        if row is not None or older is not None:
            entry = _done(row or older or {})
            entry = replace(entry, stale=row is None, axes={**entry.axes, "label": run.config.label})
        else:
            entry = _unfinished(run, failures.get(run.run_id))
        entries += _labelled(entry, run.aliases)
    return entries


def _unfinished(run: PlannedRun, failure: Failure | None) -> Entry:
    if failure is not None and failure.kind is FailureClass.CANCELLED:
        failure = None  # stopped by Ctrl-C or `cancel`: the next `run` takes it up again
    return Entry(
        run_id=run.run_id,
        axes=_config_axes(run.config),
        replicate=(run.config.seed, run.config.pretrain_seed),
        status="missing" if failure is None else "failed",
        failure="" if failure is None else str(failure.kind),
    )


def _labelled(entry: Entry, aliases: Iterable[str] | None) -> list[Entry]:
    """The entry, and a copy for each further label."""
    others = [a for a in dict.fromkeys(aliases or ()) if a != entry.axes["label"]]
    return [entry, *(replace(entry, axes={**entry.axes, "label": a}) for a in others)]


def _done(row: Mapping[str, Any]) -> Entry:
    return Entry(
        run_id=row["run_id"],
        axes=_row_axes(row),
        replicate=(row["seed"], row.get("pretrain_seed")),
        status="done",
        row=row,
    )


def _identity_without_seed(entry: Entry) -> tuple[Any, ...]:
    return tuple(hashable(entry.axes[name]) for name in AXES)


def _guess_missing(done: Sequence[Entry]) -> Iterable[Entry]:
    yield from done
    seeds_of: dict[Any, dict[Replicate, None]] = {}
    cells: dict[Any, dict[Replicate, Entry]] = {}
    for entry in done:
        model = (entry.axes["benchmark"], entry.axes["model"])
        seeds_of.setdefault(model, {})[entry.replicate] = None
        cells.setdefault((model, _identity_without_seed(entry)), {})[entry.replicate] = entry
    for (model, _), present in cells.items():
        template = next(iter(present.values()))
        for replicate in seeds_of[model]:
            if replicate not in present:
                yield replace(template, run_id="", replicate=replicate, status="missing", row={})


def hashable(value: Any) -> Any:
    """A value of an axis as a dictionary key (mappings become their canonical JSON)."""
    if isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True, default=str)
    return tuple(value) if isinstance(value, list) else value


def getter(axis: str) -> Callable[[Entry], Any]:
    """A function from an entry to its value on ``axis``: a name of ``AXES``, ``seed``, ``pretrain_seed``, or a
    key inside a JSON axis such as ``settings.plpd_threshold``. Raises ``ConfigError`` for other names.
    """
    if axis == "seed":
        return lambda e: e.replicate[0]
    if axis == "pretrain_seed":
        return lambda e: e.replicate[1]
    head, _, key = axis.partition(".")
    if key and head in JSON_AXES:
        return lambda e: hashable(e.axes[head].get(key))
    if axis in JSON_AXES or axis == "corruptions":
        return lambda e: hashable(e.axes[axis])
    if axis in AXES:
        return lambda e: e.axes[axis]
    raise ConfigError(
        f"no axis '{axis}'; axes are {', '.join(AXES)}, seed, pretrain_seed and keys inside a JSON axis, "
        "for example settings.plpd_threshold"
    )


def filtered(data: SweepData, conditions: Sequence[str]) -> SweepData:
    """The entries that satisfy every ``AXIS=VALUE[,VALUE…]``. Raises ``ConfigError`` when none is left."""
    for condition in conditions:
        axis, equals, wanted = condition.partition("=")
        if not equals:
            raise ConfigError(f"'{condition}' is not of the form AXIS=VALUE, for example --where method=deyo,tent")
        get, allowed = getter(axis.strip()), {w.strip() for w in wanted.split(",")}
        kept = data.where(lambda e, get=get, allowed=allowed: str(get(e)) in allowed)
        if not kept.entries:
            have = ", ".join(str(v) for v in data.values(axis.strip())[:12])
            raise ConfigError(f"no run has {condition}; the sweep has {axis.strip()}: {have}")
        data = kept
    return data
