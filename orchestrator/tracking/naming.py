"""How a run appears in MLflow: its key, name, params, tags, and names within MLflow's alphabet."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from orchestrator.schema import PROVENANCE
from orchestrator.tracking.options import redact

PREFIX = "deyo."
KIND = PREFIX + "kind"  # sweep, run or group
KEY = PREFIX + "key"  # the run's identity, or the group's
SWEEP = PREFIX + "sweep"
PUBLISHED = PREFIX + "published"  # which committed attempts the run shows, see ``published_mark``
STALE = PREFIX + "stale"  # "true" once the store no longer counts the run; MLflow's != finds only runs with the tag
PARENT = "mlflow.parentRunId"
NOTE = "mlflow.note.content"
UI_KIND = "custom_model_development"  # which of its layouts the UI takes: runs and charts, not prompts and traces
SOURCE = {"mlflow.source.name": "deyo-sweep", "mlflow.source.type": "LOCAL"}

MAX_KEY = 250
MAX_PARAM = 6000
MAX_TAG = 8000

_JSON_AXES = ("settings", "benchmark_options", "scenario_options")
_PLAIN_AXES = (
    "benchmark",
    "corruption",
    "severity",
    "scenario",
    "model",
    "method",
    "batch_size",
    "protocol",
    "precision",
    "max_images",
)
_SEEDS = ("seed", "pretrain_seed")


def axes(config: Any) -> dict[str, Any]:
    """The axes of a run, from a ``RunConfig`` or from its ``runs`` row (where the mappings are JSON)."""
    source = asdict(config) if is_dataclass(config) and not isinstance(config, type) else dict(config)
    found = {name: source.get(name) for name in (*_PLAIN_AXES, *_SEEDS, "label")}
    found["corruptions"] = tuple(source.get("corruptions") or ())
    for name in _JSON_AXES:
        value = source.get(name) or {}
        found[name] = json.loads(value) if isinstance(value, str) else dict(value)
    return found


def group_key(run_axes: Mapping[str, Any]) -> str:
    """16 hex digits: the same for runs that differ in their seeds (and their table label) only."""
    fields = {k: v for k, v in run_axes.items() if k not in (*_SEEDS, "label")}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def condition(run_axes: Mapping[str, Any]) -> str:
    """The test condition in words: ``gaussian_noise-5``, ``15 corruptions-5``, or the benchmark's name."""
    severity = f"-{run_axes['severity']}" if run_axes.get("severity") is not None else ""
    if run_axes.get("corruption"):
        return f"{run_axes['corruption']}{severity}"
    several = run_axes.get("corruptions") or ()
    if len(several) > 3:
        return f"{len(several)} corruptions{severity}"
    return "+".join(several) + severity if several else str(run_axes["benchmark"])


def display_name(run_axes: Mapping[str, Any], *, with_seed: bool) -> str:
    """The run's name in the UI: ``deyo small-resnet-bn gaussian_noise-5 mild seed 0``."""
    parts = [run_axes["label"] or run_axes["method"], run_axes["model"], condition(run_axes), run_axes["scenario"]]
    if with_seed:
        parts.append(f"seed {run_axes['seed']}")
        if run_axes.get("pretrain_seed"):  # 0 is what everybody has
            parts.append(f"pretrain {run_axes['pretrain_seed']}")
    return " ".join(str(p) for p in parts)


def params(run_axes: Mapping[str, Any], *, with_seed: bool) -> dict[str, str]:
    """MLflow params: what decides the numbers. Settings and options are flattened (``deyo.plpd_threshold``)."""
    flat: dict[str, Any] = {k: run_axes[k] for k in _PLAIN_AXES}
    flat["corruptions"] = ",".join(run_axes["corruptions"]) or None
    if with_seed:
        flat |= {k: run_axes[k] for k in _SEEDS}
    flat |= {f"settings.{k}": v for k, v in run_axes["settings"].items()}
    flat |= {f"benchmark.{k}": v for k, v in run_axes["benchmark_options"].items()}
    flat |= {f"scenario.{k}": v for k, v in run_axes["scenario_options"].items()}
    shown = {clean_key(k): shown_value(v)[:MAX_PARAM] for k, v in flat.items() if v is not None}
    return dict(sorted(shown.items()))


def provenance_tags(row: Mapping[str, Any]) -> dict[str, str]:
    """Tags that say what made the numbers, from a ``runs`` row."""
    found = {PREFIX + k: row.get(k) for k in PROVENANCE}
    return {k: tag_value(v) for k, v in found.items() if v is not None}


def tag_value(value: Any) -> str:
    """A tag's text: at most 8,000 characters (MLflow would cut it silently), no passwords of URLs."""
    text = redact(shown_value(value))
    return text if len(text) <= MAX_TAG else text[: MAX_TAG - 1] + "…"


def shown_value(value: Any) -> str:
    """Text of a param or tag: strings as they are, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def clean_key(name: str) -> str:
    """``name`` within MLflow's alphabet ``[A-Za-z0-9_\\-. :/]``, at most 250 long, no path tricks.

    A name that had to be changed ends in 6 hex digits of the original, so that two names never become one.
    """
    text = re.sub(r"[^A-Za-z0-9_\-. :/]", "_", name)
    text = "/".join(p for p in text.split("/") if p.strip(". "))
    if text == name and 0 < len(text) <= MAX_KEY:
        return text
    digest = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{text[: MAX_KEY - 7]}-{digest}"


def published_mark(attempts: Mapping[str, int]) -> str:
    """A short digest of which committed attempts (run_id -> attempt) an MLflow run shows: ``3:1f0c…``."""
    text = ",".join(f"{run_id}:{attempt}" for run_id, attempt in sorted(attempts.items()))
    return f"{len(attempts)}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
