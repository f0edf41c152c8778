"""What a table can show of a run: each metric with its title, unit, decimals and direction."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deyo.types import ConfigError

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number of a run, as tables show it.

    ``value`` takes a ``runs`` row and gives the stored number or None; ``scale`` turns it into the unit shown
    (100 for percent). ``higher`` says whether more is better; None: neither is, and nothing is set in bold.
    ``weighted`` says whether a mean weighted by images has a meaning for it.
    """

    name: str
    title: str
    unit: str = ""
    scale: float = 1.0
    decimals: int = 1
    higher: bool | None = True
    weighted: bool = False
    value: Callable[[Row], float | None]


def _column(name: str) -> Callable[[Row], float | None]:
    return lambda row: row.get(name)


def _ratio(part: str, whole: str) -> Callable[[Row], float | None]:
    def value(row: Row) -> float | None:
        if row.get(part) is None or not row.get(whole):
            return None
        return row[part] / row[whole]

    return value


def _percent(name: str, title: str, *, decimals: int = 1, weighted: bool = False, **more: Any) -> Metric:
    value = more.pop("value", None) or _column(name)
    return Metric(
        name=name,
        title=title,
        unit="%",
        scale=100.0,
        decimals=decimals,
        weighted=weighted,
        value=value,
        **more,
    )


def _plain(name: str, title: str, unit: str, *, decimals: int = 0, higher: bool | None = False) -> Metric:
    return Metric(name=name, title=title, unit=unit, decimals=decimals, higher=higher, value=_column(name))


METRICS: Mapping[str, Metric] = {
    m.name: m
    for m in (
        _percent("accuracy", "accuracy", weighted=True),
        _percent("average_accuracy", "average accuracy (unweighted mean over groups)", decimals=2),
        _percent("adjusted_accuracy", "average accuracy (groups weighted as in training)", decimals=2),
        _percent("worst_group_accuracy", "worst-group accuracy", decimals=2),
        _percent("aurc", "AURC", decimals=2, higher=False),
        _percent("selected_share", "images selected", value=_ratio("selected", "images"), higher=None),
        _percent(
            "selected_entropy_share",
            "images that pass the entropy filter",
            value=_ratio("selected_entropy", "images"),
            higher=None,
        ),
        _plain("mean_entropy", "mean entropy", "nats", decimals=3, higher=None),
        _plain("mean_plpd", "mean PLPD", "", decimals=3, higher=None),
        _plain("images", "images", "", higher=None),
        _plain("forwards", "forwards", "samples"),
        _plain("backwards", "backwards", "samples"),
        _plain("selected", "selected", "samples", higher=None),
        _plain("selected_entropy", "passed the entropy filter", "samples", higher=None),
        _plain("skipped_steps", "skipped steps", "", higher=None),
        _plain("resets", "resets", "", higher=None),
        _plain("nan_steps", "steps with NaN", "", higher=None),
        _plain("seconds", "adaptation time", "s", decimals=1),
        _plain("decode_seconds", "decoding time", "s", decimals=1),
        _plain("images_per_second", "images per second", "1/s", higher=True),
        Metric(
            name="peak_memory_bytes",
            title="peak memory",
            unit="GiB",
            scale=2.0**-30,
            decimals=2,
            higher=False,
            value=_column("peak_memory_bytes"),
        ),
    )
}

ALIASES = {"worst": "worst_group_accuracy", "average": "average_accuracy", "adjusted": "adjusted_accuracy"}

SPEED = frozenset({"seconds", "decode_seconds", "images_per_second", "peak_memory_bytes"})


def _counted(column: str, name: str, kind: str) -> Metric:
    def value(row: Row) -> float | None:
        for entry in row.get(column) or ():
            if entry["name"] == name and entry["images"]:
                return entry["correct"] / entry["images"]
        return None

    return _percent(f"{kind}:{name}", f"accuracy of {kind} {name}", value=value, decimals=2)


def metric(name: str) -> Metric:
    """The metric ``name``: a key of ``METRICS``, an alias, ``group:NAME`` or ``domain:NAME``.

    Raises ``ConfigError`` with the nearest names.
    """
    name = ALIASES.get(name, name)
    if name in METRICS:
        return METRICS[name]
    kind, _, rest = name.partition(":")
    if rest and kind in ("group", "domain"):
        return _counted(f"{kind}_accuracies", rest, kind)
    known = [*METRICS, *ALIASES, "group:NAME", "domain:NAME"]
    near = difflib.get_close_matches(name, known, 3, 0.4) or known
    raise ConfigError(f"no metric '{name}'; nearest: {', '.join(near)} (all: {', '.join(known)})")


def shown(value: Metric, row: Row) -> float | None:
    """The metric of a ``runs`` row in the unit that tables show, NaN where it is NaN, None where absent."""
    raw = value.value(row)
    return None if raw is None else float(raw) * value.scale
