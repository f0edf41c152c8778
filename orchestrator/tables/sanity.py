"""Whether a network gives, without adaptation, what is published of it: if not, no other number is worth reading."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from deyo.anchors import ANCHORS, Anchor
from orchestrator.tables.data import Entry

TOLERANCE = 2.0
"""Points between an anchor and what is found: decoders and rounding move tenths, wrong normalisation tens."""

_CORRUPTIONS = 15


def anchor_notes(entries: Iterable[Entry]) -> list[str]:
    """Caption lines on No-adapt runs over the released ImageNet-C, whole and in the mild scenario, that are far from
    the network's anchor: on contrast at severity 5, and on the mean of the 15 corruptions at severities 5 and 3.
    """
    found: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for entry in entries:
        if _is_source_run(entry):
            axes = entry.axes
            found[_plain(axes["model"]), axes["severity"]][axes["corruption"]].append(100 * entry.row["accuracy"])
    notes = []
    for (model, severity), by_corruption in found.items():
        anchor = ANCHORS[model]
        means = {name: sum(values) / len(values) for name, values in by_corruption.items()}
        for what, value, published in _compared(means, severity, anchor):
            if published is not None and abs(value - published) > TOLERANCE:
                notes.append(
                    f"CHECK {model}: without adaptation {value:.1f} % on {what} at severity {severity}, published "
                    f"{published:.1f} ({anchor.source}). Are these its weights, its normalisation, the released images?"
                )
    return notes


def _compared(means: dict[str, float], severity: int, anchor: Anchor) -> Iterable[tuple[str, float, float | None]]:
    """(what, found, published or None), in %."""
    if severity == 5 and "contrast" in means:
        yield "contrast", means["contrast"], anchor.contrast
    if len(means) == _CORRUPTIONS:
        published = {5: anchor.severity_5, 3: anchor.severity_3}.get(severity)
        yield "the average of 15 corruptions", sum(means.values()) / len(means), published


def _is_source_run(entry: Entry) -> bool:
    axes = entry.axes
    return (
        entry.status == "done"
        and axes["method"] == "no-adapt"
        and axes["benchmark"] == "imagenet-c"
        and axes["scenario"] == "mild"
        and axes["max_images"] is None
        and _plain(axes["model"]) in ANCHORS
    )


def _plain(model: str) -> str:
    return model.removesuffix("+paper")
