"""A sweep that is finished says so at once: the same spec and the same code need no new plan.

Planning loads the engine, which takes seconds. Where a sweep ended with every run done, that is written down with what
it depends on; as long as nothing of it changed and every commit is still there, there is nothing to run.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from orchestrator.spec import resolved_spec
from orchestrator.specmodel import SweepSpec
from orchestrator.store import ParquetStore, plan_table

FILE = "finished.json"


def note_finished(spec: SweepSpec, store: ParquetStore) -> None:
    """Write down that every run of ``spec`` is done."""
    store.tree.replace(FILE, json.dumps(_depends_on(spec)).encode(), durable=False)


def finished_runs(spec: SweepSpec, store: ParquetStore) -> int | None:
    """How many runs the finished sweep has; None if it may have something to run."""
    if any(model.startswith("file:") for grid in spec.runs for model in grid.models):
        return None  # a file of weights may have changed, which only a plan finds out
    try:
        noted = json.loads(store.tree.read(FILE))
    except (OSError, ValueError):
        return None
    table = plan_table.read(store.tree)
    if table is None or noted != _depends_on(spec):
        return None
    planned = set(table["run_id"].to_pylist())
    return len(planned) if planned <= set(store.committed()) else None


def _depends_on(spec: SweepSpec) -> dict[str, str]:
    text = json.dumps(resolved_spec(spec), sort_keys=True)
    return {"spec": hashlib.sha256(text.encode()).hexdigest(), "code": _sources_digest()}


def _sources_digest() -> str:
    """Over the sources of both packages: each decides what a spec means."""
    here = Path(__file__).resolve().parent
    digest = hashlib.sha256()
    for package in (here, here.parent / "deyo"):
        for path in sorted(package.rglob("*.py")):
            digest.update(str(path.relative_to(package.parent)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
