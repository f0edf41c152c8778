"""Why a run is what its plan says: its identity, what changed since it was done, and the done run nearest to it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from orchestrator.identity import identity_fields
from orchestrator.plan import History
from orchestrator.types import CommitInfo, PlannedRun, RunConfig

SHOWN_STAMPS = (
    "weights_id",
    "numerics_version",
    "record_samples",
    "code_digest",
    "code_version",
    "libraries",
    "device_name",
    "host",
)
Change = tuple[str, Any, Any]
"""Name, old value, new value."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """``identity``: the fields that ``run_id`` hashes. ``changes``: stamps that differ from the last commit of the same
    config (``commit``). ``nearest``: the done run with fewest other fields, and those, for a run never done."""

    run: PlannedRun
    identity: Mapping[str, Any]
    commit: CommitInfo | None = None
    changes: tuple[Change, ...] = ()
    nearest: str = ""
    distance: tuple[Change, ...] = field(default_factory=tuple)


def explain(run: PlannedRun, history: History, rows: Iterable[Mapping[str, Any]] = ()) -> Explanation:
    """Explain ``run`` of a plan made against ``history``; ``rows`` are the ``runs`` rows to look for a near one in."""
    identity = {**identity_fields(run.config), **run.stamps}
    commit = history.committed.get(run.run_id) or history.by_config.get(run.stamps["config_id"])
    if commit is not None:
        return Explanation(run=run, identity=identity, commit=commit, changes=_changes(commit.stamps, run.stamps))
    nearest, distance = _nearest(run.config, rows)
    return Explanation(run=run, identity=identity, nearest=nearest, distance=distance)


def row_config(row: Mapping[str, Any]) -> RunConfig:
    """The config of a ``runs`` row."""
    values = {f.name: row[f.name] for f in fields(RunConfig) if f.name in row}
    for name in ("settings", "benchmark_options", "scenario_options"):
        values[name] = json.loads(values[name] or "{}")
    values["corruptions"] = tuple(values["corruptions"] or ())
    return RunConfig(**values)


def text(explanation: Explanation) -> str:
    """For the terminal."""
    run = explanation.run
    lines = [f"{run.run_id}: {run.status.value} ({run.reason})", "identity:"]
    lines += [f"  {name}: {_value(value)}" for name, value in explanation.identity.items()]
    if run.aliases:
        lines.append(f"also asked for as: {', '.join(run.aliases)}")
    if explanation.commit:
        info = explanation.commit
        lines.append(f"last commit of this config: {info.run_id}, attempt {info.attempt}, {info.finished_at}")
        lines += [f"  {_change(change)}" for change in explanation.changes] or ["  nothing has changed since"]
    elif explanation.nearest:
        lines.append(f"never done; the done run nearest to it is {explanation.nearest}, which differs in")
        lines += [f"  {_change(change)}" for change in explanation.distance]
    else:
        lines.append("never done, and the store has no run to compare it with")
    return "\n".join(lines)


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Change, ...]:
    current = {**_now(), **new}
    changed = []
    for name in SHOWN_STAMPS:
        if name in old and name in current and old[name] != current[name]:
            both = str(old[name]).startswith("sha256:") and str(current[name]).startswith("sha256:")
            shown = "weights_sha" if name == "weights_id" and both else name
            changed.append((shown, old[name], current[name]))
    return tuple(changed)


def _now() -> dict[str, Any]:
    """The stamps that a run made here today would have, whatever its device."""
    from orchestrator.provenance import code_version, libraries

    return {"code_version": code_version()[0], "libraries": libraries()}


def _nearest(config: RunConfig, rows: Iterable[Mapping[str, Any]]) -> tuple[str, tuple[Change, ...]]:
    wanted = _flat(identity_fields(config))
    best: tuple[str, tuple[Change, ...]] = ("", ())
    for row in rows:
        have = _flat(identity_fields(row_config(row)))
        names = [*wanted, *(n for n in have if n not in wanted)]
        distance = tuple((n, have.get(n), wanted.get(n)) for n in names if have.get(n) != wanted.get(n))
        if not best[0] or len(distance) < len(best[1]):
            best = (row["run_id"], distance)
    return best


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings as ``settings.NAME``."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": v for inner, v in value.items()}
        else:
            flat[name] = value
    return flat


def _change(change: Change) -> str:
    name, old, new = change
    if name == "libraries":
        before, after = json.loads(old), json.loads(new)
        moved = [n for n in sorted({*before, *after}) if before.get(n) != after.get(n)]
        return "libraries: " + ", ".join(f"{n} {before.get(n)} -> {after.get(n)}" for n in moved)
    return f"{name}: {_value(old)} -> {_value(new)}"


def _value(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value).removeprefix("sha256:")
