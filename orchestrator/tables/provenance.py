"""What stands behind a table's numbers: the caption's lines, and what must not be mixed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from deyo.types import ConfigError
from orchestrator.tables.data import Entry, hashable
from orchestrator.tables.generated import generated_note
from orchestrator.tables.sanity import anchor_notes

# Runs that agree on these axes must agree on the stamp, or the numbers do not belong into one mean.
_WEIGHTS_OF = ("benchmark", "model")
_DATA_OF = ("benchmark", "benchmark_options", "corruption", "severity", "corruptions", "max_images")


def _short(digest: str) -> str:
    return digest[:8] if len(digest) > 12 and all(c in "0123456789abcdef" for c in digest.lower()) else digest


def _listed(values: Iterable[Any], limit: int = 4) -> str:
    words = [str(v) for v in dict.fromkeys(values)]
    more = f" and {len(words) - limit} more" if len(words) > limit else ""
    return ", ".join(words[:limit]) + more


def _stamps(entries: Sequence[Entry], axes: Sequence[str], stamp: str) -> dict[Any, dict[str, None]]:
    found: dict[Any, dict[str, None]] = {}
    for e in entries:
        value = e.row.get(stamp)
        if value is not None and value != "":
            key = (*(hashable(e.axes[a]) for a in axes), e.replicate[1] if axes is _WEIGHTS_OF else None)
            found.setdefault(key, {})[str(value)] = None
    return found


def mixtures(entries: Sequence[Entry]) -> list[str]:
    """Statements about stamps that differ where they should be one: weights of one network, data of one
    condition, the engine's numerics, protocol and precision.
    """
    done = [e for e in entries if e.status == "done"]
    out = []
    for axis in ("protocol", "precision"):
        values = dict.fromkeys(e.axes[axis] for e in entries)
        if len(values) > 1:
            out.append(f"MIXED {axis}s: {_listed(values)} (never in one mean)")
    for key, shas in _stamps(done, _WEIGHTS_OF, "weights_sha256").items():
        if len(shas) > 1:
            out.append(f"MIXED weights of {key[1]}: {_listed(_short(s) for s in shas)}")
    for key, prints in _stamps(done, _DATA_OF, "data_fingerprint").items():
        if len(prints) > 1:
            where = " ".join(str(v) for v in (key[0], key[2], key[3]) if v is not None)
            out.append(f"MIXED data of {where}: {_listed(_short(p) for p in prints)}")
    numerics = dict.fromkeys(e.row.get("numerics_version") for e in done)
    if len(numerics) > 1:
        out.append(f"MIXED versions of the engine's numerics: {_listed(numerics)}")
    return out


def different_makings(entries: Sequence[Entry], *, devices: bool = True) -> list[str]:
    """Statements about how runs were made where that differs: it may move the last digits, and forbids no mean.

    ``devices=False`` leaves the devices to another line.
    """
    done = [e for e in entries if e.status == "done"]
    found = [("torch versions", libraries(done).get("torch", []))]
    if devices:
        found.append(("devices", _distinct(done, "device_name")))
    found.append(("engine code (digest)", [_short(d) for d in _distinct(done, "code_digest")]))
    weights = _stamps(done, _WEIGHTS_OF, "weights_sha256")
    for key, sources in _stamps(done, _WEIGHTS_OF, "weights_source").items():
        same = len(weights.get(key, ())) == 1  # the same bytes in a file of another name are the same weights
        named = dict.fromkeys("a file" if same and str(s).endswith(".safetensors") else s for s in sources)
        found.append((f"sources of the weights of {key[1]}", list(named)))
    return list(dict.fromkeys(f"MIXED {what}: {_listed(values)}" for what, values in found if len(values) > 1))


def _distinct(done: Sequence[Entry], stamp: str) -> list[str]:
    return list(dict.fromkeys(str(e.row[stamp]) for e in done if e.row.get(stamp)))


def refuse_mixed_cells(cells: Iterable[Sequence[Entry]], *, allow: bool = False) -> None:
    """Raise ``ConfigError`` if the runs of one cell (one mean) mix protocols, precisions, weights, data or
    numerics, unless ``allow``.
    """
    if allow:
        return
    for entries in cells:
        found = mixtures(entries)
        if found:
            raise ConfigError(
                f"one cell would average over runs that do not belong together: {found[0]}. Keep one by "
                "--where, run `deyo-sweep plan` to see what is stale, or pass --allow-mixed (the caption then says so)"
            )


def _digest_of(values: Iterable[str]) -> str:
    distinct = sorted(dict.fromkeys(values))
    if len(distinct) == 1:
        return _short(distinct[0])
    joined = hashlib.sha256("\n".join(distinct).encode()).hexdigest()[:8]
    return f"{joined} (over {len(distinct)} image sets)"


def _by(done: Sequence[Entry], axis: str, stamp: str) -> dict[str, dict[str, None]]:
    found: dict[str, dict[str, None]] = {}
    for e in done:
        if e.row.get(stamp):
            found.setdefault(e.axes[axis], {})[str(e.row[stamp])] = None
    return found


def caption(entries: Sequence[Entry], *, speed: bool = False) -> list[str]:
    """The caption's lines on provenance: protocol, precision, weights, data, generated corruptions, streams cut
    short, networks far from what is published of them, devices (for speed, or if they differ), libraries and code that
    differ, uncommitted code.
    """
    done = [e for e in entries if e.status == "done"]
    lines = [
        f"Protocol: {_listed(e.axes['protocol'] for e in entries)}; "
        f"precision: {_listed(e.axes['precision'] for e in entries)}."
    ]
    weights = [
        f"{model} {_listed((_short(s) for s in shas), 3)}"
        for model, shas in _by(done, "model", "weights_sha256").items()
    ]
    if weights:
        lines.append(f"Weights (sha256): {'; '.join(weights)}.")
    data = [f"{b} {_digest_of(p)}" for b, p in _by(done, "benchmark", "data_fingerprint").items()]
    if data:
        lines.append(f"Data fingerprint: {'; '.join(data)}.")
    lines += filter(None, [generated_note(entries)])
    cut = dict.fromkeys(e.axes["max_images"] for e in entries)
    if any(c is not None for c in cut):
        lines.append(f"Streams: {_listed('whole' if c is None else f'the first {c} images only' for c in cut)}.")
    lines += [f"{line}." for line in (*mixtures(entries), *different_makings(entries, devices=not speed))]
    lines += anchor_notes(entries)
    if speed:
        devices = dict.fromkeys(e.row.get("device_name") or e.row.get("device") or "unknown" for e in done)
        mixed = "MIXED devices: " if len(devices) > 1 else "Device: "
        sizes = dict.fromkeys(e.row.get("group_size") or 1 for e in done)
        lines.append(f"{mixed}{_listed(devices)}; runs side by side: {_listed(sorted(sizes))}.")
    stale = sum(e.stale for e in entries)
    if stale:
        lines.append(
            f"STALE: {stale} of {len(entries)} runs are of older code, weights or data (`deyo-sweep plan` says why)."
        )
    if any(e.row.get("code_dirty") for e in done):
        lines.append("Some runs were made with uncommitted code.")
    skipped = sum(e.row.get("skipped_images") or 0 for e in done)
    if skipped:
        lines.append(f"Unreadable images left out, over all runs: {skipped}.")
    return lines


def libraries(entries: Sequence[Entry]) -> dict[str, list[str]]:
    """Versions of each library in the finished runs, for the report."""
    found: dict[str, dict[str, None]] = {}
    for text in dict.fromkeys(e.row.get("libraries") for e in entries if e.row.get("libraries")):
        for name, version in json.loads(text).items():
            found.setdefault(name, {})[str(version)] = None
    return {name: list(versions) for name, versions in sorted(found.items())}
