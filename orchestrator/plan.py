"""A plan: every run of a spec with its identity, and whether it is new, done, failed or stale, and why.

plan = make_plan(load_spec("sweep.yaml"), store)
plan.todo                       # what ``run`` would run
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.catalog import Catalog
from orchestrator.expand import Expanded, expansion
from orchestrator.identity import combined_id
from orchestrator.reuse import Elsewhere, done_elsewhere
from orchestrator.specmodel import SweepSpec
from orchestrator.types import CommitInfo, Failure, FailureClass, Plan, PlannedRun, RunStatus, Store

COMPARED = ("weights_id", "data_id", "numerics_version", "record_samples", "code_digest")
"""Stamps that say whether a stored result is the one that would be made today."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class History:
    """What a store knows of earlier runs; ``by_config`` holds the latest commit of each config, and
    ``elsewhere`` what other sweeps of the same ``results`` root have done."""

    root: str = ""
    committed: Mapping[str, CommitInfo] = field(default_factory=dict)
    failures: Mapping[str, Failure] = field(default_factory=dict)
    by_config: Mapping[str, CommitInfo] = field(default_factory=dict)
    results: str = ""
    elsewhere: Mapping[str, Elsewhere] = field(default_factory=dict)

    @classmethod
    def of(cls, store: Store | None) -> History:
        """Read once from ``store``; empty if there is none."""
        if store is None:
            return cls()
        committed = store.committed()
        by_config: dict[str, CommitInfo] = {}
        for info in sorted(committed.values(), key=lambda i: i.finished_at):
            if config := info.stamps.get("config_id"):
                by_config[config] = info
        return cls(root=str(store.root), committed=committed, failures=store.failures(), by_config=by_config)


@contextmanager
def uncollected() -> Iterator[None]:
    """Python's cyclic garbage collector rests meanwhile, and leaves alone afterwards what was made: it would look
    through PyTorch's modules and all runs of a large plan again and again, and none of it is garbage."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


@uncollected()
def make_plan(
    spec: SweepSpec, store: Store | None = None, *, results: str | None = None, catalog: Catalog | None = None
) -> Plan:
    """Every run of ``spec`` once, in spec order, with its status in ``store``.

    With the ``results`` root, runs that other sweeps there have done are done too (``orchestrator.reuse`` copies
    them), unless the spec says ``reuse: false``.

    Raises ``ConfigError`` for a spec that cannot be expanded, and ``DataError`` where weights that decide a run's
    identity are missing.
    """
    catalog = catalog or Catalog()
    history = History.of(store)
    if results is not None and spec.reuse:
        history = replace(history, results=results, elsewhere=done_elsewhere(results, spec.name))
    runs = []
    for expanded in expansion(spec, catalog):
        stamps = _stamps(expanded, catalog, spec.data)
        identity = _identity(stamps, history, stamps["code_digest"] if spec.stale_after == "code" else None)
        status, reason = judge(identity, stamps, history)
        runs.append(
            PlannedRun(
                run_id=identity,
                config=expanded.config,
                status=status,
                reason=reason,
                duplicates=expanded.duplicates,
                aliases=expanded.aliases,
                stamps=stamps,
            )
        )
    return Plan(sweep=spec.name, runs=tuple(runs), merged_duplicates=sum(r.duplicates for r in runs))


def judge(identity: str, stamps: Mapping[str, Any], history: History) -> tuple[RunStatus, str]:
    """The status of a run, and the reason in words."""
    if info := history.committed.get(identity):
        return RunStatus.DONE, _done_reason(info, stamps, history.root)
    if place := history.elsewhere.get(identity):
        where = f"{history.results.rstrip('/')}/{place.sweep}"
        return RunStatus.DONE, f"{_done_reason(place.info, stamps, where)}; copied from there by `run`"
    if failure := history.failures.get(identity):
        if failure.kind is FailureClass.CANCELLED:  # says nothing of the run: `run` takes it up without `retry`
            return RunStatus.NEW, f"interrupted ({failure.kind.value}: {_first_line(failure.message)}); taken up again"
        log = f"; log: {failure.log_path}" if failure.log_path else ""
        return RunStatus.FAILED, f"{failure.kind.value}: {_first_line(failure.message)}{log}"
    if older := history.by_config.get(stamps["config_id"]):
        changes = "; ".join(differences(older.stamps, stamps))
        return RunStatus.STALE, f"{changes}; last done as {older.run_id} at {older.finished_at}"
    return RunStatus.NEW, "not run yet"


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """``name old -> new`` for each compared stamp that both have and that differs.

    Images that an older version did not look at are "unknown".
    """
    old = {"data_id": "unknown", **old}
    changed = [n for n in COMPARED if n in old and n in new and old[n] != new[n]]
    return [f"{_called(n, old[n], new[n])} {_brief(old[n])} -> {_brief(new[n])}" for n in changed]


def _called(name: str, *values: Any) -> str:
    """``weights_id`` is a sha where both sides are files."""
    return "weights_sha" if name == "weights_id" and all(str(v).startswith("sha256:") for v in values) else name


def _brief(value: Any) -> str:
    """Hashes by their first 12 digits."""
    return _SHA256.sub(lambda found: found[0][:12], str(value).removeprefix("sha256:"))


def with_retries(plan: Plan, select: Callable[[PlannedRun], bool] = lambda run: True) -> Plan:
    """``plan`` with the failed runs that ``select`` picks made new again (``retry --failed``)."""
    runs = tuple(
        replace(run, status=RunStatus.NEW, reason=f"retry of: {run.reason}")
        if run.status is RunStatus.FAILED and select(run)
        else run
        for run in plan.runs
    )
    return replace(plan, runs=runs)


def _stamps(expanded: Expanded, catalog: Catalog, roots: Mapping[str, str]) -> dict[str, Any]:
    config = expanded.config
    data_id = catalog.data_id(config.benchmark, config.benchmark_options, roots.get(config.benchmark))
    return {
        "config_id": expanded.config_id,
        "weights_id": catalog.weights_id(config.model, config.benchmark),
        **({} if data_id is None else {"data_id": data_id}),
        **catalog.stamps(),
        "record_samples": config.record_samples,
    }


def _identity(stamps: Mapping[str, Any], history: History, code_digest: str | None) -> str:
    """The run's id; where it need not record samples, that of a committed run which did will do."""
    parts = stamps["config_id"], stamps["weights_id"], stamps["numerics_version"]
    more = {"code_digest": code_digest, "data_id": stamps.get("data_id")}
    identity = combined_id(*parts, samples=stamps["record_samples"], **more)
    richer = combined_id(*parts, samples=True, **more)
    done = (history.committed, history.elsewhere)
    return richer if not any(identity in d for d in done) and any(richer in d for d in done) else identity


def _done_reason(info: CommitInfo, stamps: Mapping[str, Any], root: str) -> str:
    parts = [f"in {root}, attempt {info.attempt}, {info.finished_at}"]
    if info.stamps.get("code_digest", stamps["code_digest"]) != stamps["code_digest"]:
        change = f"{info.stamps['code_digest']} -> {stamps['code_digest']}"
        parts.append(
            f"made by other engine code (code_digest {change}) of the same numerics version: kept; "
            "`--set stale_after=code` runs it again"
        )
    return "; ".join(parts)


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:200] if text.strip() else "no message"
