"""What the report says in words and small tables: state, cost, failures, provenance."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from orchestrator.tables import names
from orchestrator.tables.data import Entry, SweepData
from orchestrator.tables.layouts.base import unique_runs
from orchestrator.tables.provenance import libraries
from orchestrator.types import Failure

if TYPE_CHECKING:
    from orchestrator.results import Results


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A number of the summary; ``bad`` ones are set off."""

    name: str
    value: str
    bad: bool = False


def done_runs(data: SweepData) -> list[Entry]:
    """Finished runs, each once."""
    return [e for e in unique_runs(data).entries if e.status == "done"]


def summary(data: SweepData) -> list[Fact]:
    """The figures at the head of the page."""
    runs = unique_runs(data).entries
    done = done_runs(data)
    failed, missing = (sum(e.status == s for e in runs) for s in ("failed", "missing"))
    facts = [Fact(name="runs finished", value=f"{len(done):,} of {len(runs):,}")]
    if failed:
        facts.append(Fact(name="failed", value=f"{failed:,}", bad=True))
    if missing:
        facts.append(Fact(name="not run yet", value=f"{missing:,}", bad=True))
    collapsed = sum(bool(e.row.get("collapsed")) for e in done)
    if collapsed:
        facts.append(Fact(name="collapsed", value=f"{collapsed:,}", bad=True))
    facts.append(Fact(name="images adapted on", value=f"{sum(e.row.get('images') or 0 for e in done):,}"))
    facts.append(Fact(name="device time", value=duration(sum(e.row.get("seconds") or 0.0 for e in done))))
    devices = list(dict.fromkeys(e.row.get("device_name") or e.row.get("device") or "unknown" for e in done))
    facts.append(Fact(name="device" + "s" * (len(devices) > 1), value=", ".join(devices) or "–"))
    last = max((e.row.get("finished_at") or "" for e in done), default="")
    if last:
        facts.append(Fact(name="last run", value=last[:16].replace("T", " ")))
    return facts


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def cost_table(data: SweepData) -> str:
    """Runs, images and device time of each network and method."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for e in done_runs(data):
        groups.setdefault((e.axes["model"], e.axes["method"]), []).append(e)
    rows = [
        (
            model,
            names.title("method", method),
            f"{len(members):,}",
            f"{_total(members, 'images'):,.0f}",
            f"{_total(members, 'forwards'):,.0f}",
            f"{_total(members, 'backwards'):,.0f}",
            duration(_total(members, "seconds")),
            duration(_total(members, "decode_seconds")),
        )
        for (model, method), members in groups.items()
    ]
    heads = ("network", "method", "runs", "images", "forwards", "backwards", "adaptation", "decoding")
    return plain_table(heads, rows, numbers=range(2, 8))


def _total(entries: Iterable[Entry], column: str) -> float:
    return sum(e.row.get(column) or 0 for e in entries)


def plain_table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    """A simple table; cells are text. Columns ``numbers`` are set right."""
    right = set(numbers)
    classes = [" class=number" if j in right else "" for j in range(len(heads))]
    head = "".join(f'<th scope="col"{c}>{escape(h)}</th>' for h, c in zip(heads, classes))
    body = "".join(
        "<tr>" + "".join(f"<td{c}>{escape(str(text))}</td>" for text, c in zip(row, classes)) + "</tr>" for row in rows
    )
    table = f'<table class="plain"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll" tabindex="0">{table}</div>'


def failures(data: SweepData) -> str:
    """Failed runs grouped by what they died of, with a log's path and a traceback; what is missing or stale."""
    runs = unique_runs(data).entries
    groups: dict[tuple[str, str], list[tuple[Entry, Failure]]] = {}
    for e in runs:
        failure = data.failures.get(e.run_id)
        if e.status == "failed" and failure is not None:
            groups.setdefault((str(failure.kind), failure.signature or failure.message), []).append((e, failure))
    parts = []
    missing = sum(e.status == "missing" for e in runs)
    if missing:
        parts.append(f"<p>{missing:,} planned runs have no result yet: <code>deyo-sweep run</code> runs them.</p>")
    if groups:
        rows = [
            (kind, f"{len(members):,}", members[0][1].message, describe(members[0][0]), members[0][1].log_path or "–")
            for (kind, _), members in groups.items()
        ]
        parts.append(plain_table(("class", "runs", "message", "for example", "log"), rows, numbers=(1,)))
    parts += [
        f"<details><summary>Traceback: {escape(members[0][1].message[:90])}</summary>"
        f"<pre>{escape(members[0][1].traceback)}</pre></details>"
        for members in groups.values()
        if members[0][1].traceback
    ]
    collapsed = [e for e in done_runs(data) if e.row.get("collapsed") or e.row.get("nan_steps")]
    if collapsed:
        rows = [
            (describe(e), "yes" if e.row.get("collapsed") else "no", str(e.row.get("nan_steps") or 0), _percent(e))
            for e in collapsed[:50]
        ]
        parts.append("<h3>Collapsed runs, and steps with NaN</h3><p>These are results, not failures.</p>")
        parts.append(plain_table(("run", "collapsed", "NaN steps", "accuracy"), rows, numbers=(2, 3)))
    return "\n".join(parts) or "<p>None: every planned run has a result.</p>"


def _percent(entry: Entry) -> str:
    accuracy = entry.row.get("accuracy")
    return "–" if accuracy is None else f"{100 * accuracy:.1f} %"


def describe(entry: Entry) -> str:
    """A run in words."""
    axes = entry.axes
    parts = [axes["label"], axes["model"], axes["benchmark"], axes["scenario"], axes["corruption"]]
    parts.append(None if axes["severity"] is None else f"severity {axes['severity']}")
    parts.append(f"seed {entry.replicate[0]}")
    return ", ".join(str(p) for p in parts if p is not None) + f" ({entry.run_id})"


def provenance(data: SweepData, results: Results | None = None) -> str:
    """Code, libraries, devices, weights and data behind the numbers, the spec and a run's settings."""
    done = done_runs(data)
    rows = [(name, ", ".join(found)) for name, found in _stamps(done).items() if found]
    rows += [(f"library {name}", ", ".join(versions)) for name, versions in libraries(done).items()]
    parts = [plain_table(("what", "which"), rows)]
    settings: dict[str, Mapping[str, Any]] = {}
    for e in data.entries:
        settings.setdefault(f"{e.axes['label']} on {e.axes['model']}", e.axes["settings"])
    text = "\n".join(f"{k}: {json.dumps(v, sort_keys=True)}" for k, v in settings.items())
    parts.append(f"<details><summary>Settings of each method</summary><pre>{escape(text)}</pre></details>")
    for title, spec in _specs(results).items():
        parts.append(f"<details><summary>{title}</summary><pre>{escape(spec)}</pre></details>")
    return "\n".join(parts)


def _specs(results: Results | None) -> dict[str, str]:
    """The spec as it was written and, since ``--set`` may have changed it, as it was run; what the store has."""
    import yaml

    from orchestrator.store import layout
    from orchestrator.tracking.options import redact

    found: dict[str, str] = {}
    for tree, _ in results.snapshots() if results is not None else ():
        with contextlib.suppress(FileNotFoundError):
            found.setdefault("The sweep's spec as written", redact(tree.read(layout.SPEC_TEXT).decode()))
        with contextlib.suppress(FileNotFoundError):
            resolved = yaml.safe_dump(json.loads(tree.read(layout.SPEC_JSON)), sort_keys=False)
            found.setdefault("The spec as run: overrides and defaults filled in", redact(resolved))
    return found


def _stamps(done: Sequence[Entry]) -> dict[str, list[str]]:
    """What each kind of stamp says, over all runs."""
    columns: dict[str, Callable[[Entry], Any]] = {
        "protocol": lambda e: e.axes["protocol"],
        "precision": lambda e: e.axes["precision"],
        "code version": lambda e: _version(e.row),
        "code digest": lambda e: e.row.get("code_digest"),
        "numerics version": lambda e: e.row.get("numerics_version"),
        "host": lambda e: e.row.get("host"),
        "device": lambda e: e.row.get("device_name") or e.row.get("device"),
        "weights (sha256)": lambda e: _pair(e.axes["model"], e.row.get("weights_sha256"), e.row.get("weights_source")),
        "data fingerprint": lambda e: _pair(_where(e), e.row.get("data_fingerprint")),
        "first started": lambda e: None,
    }
    found = {
        name: list(dict.fromkeys(str(v) for v in map(get, done) if v not in (None, "")))
        for name, get in columns.items()
    }
    started = sorted(e.row["started_at"] for e in done if e.row.get("started_at"))
    finished = sorted(e.row["finished_at"] for e in done if e.row.get("finished_at"))
    found["first started"] = started[:1]
    found["last finished"] = finished[-1:]
    return {
        name: [*values[:24], f"and {len(values) - 24} more"] if len(values) > 24 else values
        for name, values in found.items()
    }


def _version(row: Mapping[str, Any]) -> str | None:
    version = row.get("code_version")
    return f"{version} with uncommitted changes" if version and row.get("code_dirty") else version


def _where(entry: Entry) -> str:
    axes = entry.axes
    return " ".join(str(v) for v in (axes["benchmark"], axes["corruption"], axes["severity"]) if v is not None)


def _pair(name: str, digest: str | None, source: str | None = None) -> str | None:
    return None if not digest else f"{name}: {digest[:16]}" + (f" ({source})" if source else "")
