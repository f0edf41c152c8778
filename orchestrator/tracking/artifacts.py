"""The parent run's artifacts: tables, report with its plots, resolved spec; and the parent's description."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import yaml

from orchestrator.store.tree import join
from orchestrator.tracking.naming import MAX_TAG
from orchestrator.tracking.options import redact
from orchestrator.tracking.source import Source
from orchestrator.tracking.state import SweepInfo

CSS = Path(__file__).resolve().parents[1] / "report" / "page.css"
NOTE_RUNS = 2000  # beyond, the table is made at the end only, and no plots


def write(folder: Path, info: SweepInfo, source: Source) -> list[str]:
    """Write all artifacts below ``folder``; what could not be made, in words.

    A table or plot that cannot be drawn must not keep the others from being published.
    """
    problems = []
    for part in (_spec, _tables, _report):
        try:
            part(folder, info, source)
        except Exception as error:
            problems.append(f"{part.__name__.strip('_')}: {type(error).__name__}: {error}")
    return problems


def note(info: SweepInfo, source: Source, committed: int) -> str:
    """The parent's description: the main table, cut to what a tag holds, and where the results are."""
    facts = (
        f"Sweep **{info.sweep}**: {committed} of {max(info.runs, committed)} runs in the store. "
        f"Parquet: `{redact(join(info.root, info.sweep, 'tables'))}`. "
        "Report, tables, plots and the resolved spec are among the artifacts; the runs are nested below."
    )
    try:
        table = source.tables().get("table.md", "")
    except Exception as error:
        table = f"(no table: {type(error).__name__}: {error})"
    return _cut(table, MAX_TAG - len(facts) - 2) + f"\n\n{facts}"


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def without_secrets(value: Any) -> Any:
    """A resolved spec with the credentials of every URL in it replaced."""
    if isinstance(value, Mapping):
        return {k: without_secrets(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_secrets(v) for v in value]
    return redact(value) if isinstance(value, str) else value


def _spec(folder: Path, info: SweepInfo, source: Source) -> None:
    resolved = without_secrets(info.resolved)
    if not resolved:
        return
    target = folder / "spec"
    target.mkdir()
    (target / "resolved.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(resolved)), sort_keys=False))
    (target / "resolved.json").write_text(json.dumps(resolved, indent=2) + "\n")


def _tables(folder: Path, info: SweepInfo, source: Source) -> None:
    files = source.tables()
    if files:
        (folder / "tables").mkdir()
    for name, text in files.items():
        if name.endswith(".html"):  # a fragment; shown by itself it needs its encoding and its looks
            head = f'<meta charset="utf-8"><title>{escape(info.sweep)}</title>\n<style>{CSS.read_text()}</style>'
            text = f"<!doctype html>{head}\n<main>{text}</main>"
        (folder / "tables" / name).write_text(text, encoding="utf-8")


def _report(folder: Path, info: SweepInfo, source: Source) -> None:
    """The report with its plots; of a very large sweep, ``deyo-sweep report`` draws it on request."""
    if len(source.committed()) <= NOTE_RUNS:
        source.report(folder)


def _cut(text: str, limit: int) -> str:
    """Whole lines only: half a row of a Markdown table would break it."""
    if len(text) <= limit:
        return text
    more = "\n\n… cut; the whole table is among the artifacts (tables/)."
    return text[: limit - len(more)].rpartition("\n")[0] + more
