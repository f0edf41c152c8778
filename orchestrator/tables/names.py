"""How axes' values read in tables: the paper's short names, groups and order."""

from __future__ import annotations

import re
from typing import Any

CORRUPTION_GROUPS: dict[str, dict[str, str]] = {
    "Noise": {"gaussian_noise": "Gauss.", "shot_noise": "Shot", "impulse_noise": "Impul."},
    "Blur": {"defocus_blur": "Defoc.", "glass_blur": "Glass", "motion_blur": "Motion", "zoom_blur": "Zoom"},
    "Weather": {"snow": "Snow", "frost": "Frost", "fog": "Fog", "brightness": "Brit."},
    "Digital": {
        "contrast": "Contr.",
        "elastic_transform": "Elastic",
        "pixelate": "Pixel",
        "jpeg_compression": "JPEG",
    },
    "Extra": {
        "speckle_noise": "Speckle",
        "gaussian_blur": "G.blur",
        "spatter": "Spatter",
        "saturate": "Satur.",
    },
}

_SHORT = {name: short for group in CORRUPTION_GROUPS.values() for name, short in group.items()}
_ORDER = {name: i for i, name in enumerate(_SHORT)}
_GROUP = {name: group for group, members in CORRUPTION_GROUPS.items() for name in members}

METHODS = {
    "no-adapt": "No adapt.",
    "bn-adapt": "BN adapt.",
    "memo": "MEMO",
    "tent": "Tent",
    "eta": "ETA",
    "eata": "EATA",
    "sar": "SAR",
    "sar-official": "SAR (official)",
    "sentry": "SENTRY",
    "deyo": "DeYO",
    "score": "Scores",
    "grad-cam": "Grad-CAM",
    "transforms": "Transforms",
    "proposition": "Proposition 1",
}

_METHOD_ORDER = {
    name: i
    for i, name in enumerate(
        ("no-adapt", "bn-adapt", "memo", "tent", "sentry", "eta", "eata", "sar", "sar-official", "deyo")
    )
}


_SWITCHES = re.compile(
    r"deyo \[filter_entropy=(\w+), filter_plpd=(\w+), weight_entropy=(\w+), weight_plpd=(\w+)\]", re.IGNORECASE
)


def _ablation(label: str) -> str | None:
    """An ablation's label in short: the paper's row and which switches are on, such as ``(6) –P–P``."""
    match = _SWITCHES.fullmatch(label)
    if match is None:
        return None
    on = [word == "true" for word in match.groups()]
    row = 1 + sum(bit << place for place, bit in enumerate(reversed(on)))
    return f"({row}) " + "".join(letter if bit else "–" for letter, bit in zip("EPEP", on))


def corruption_group(name: str | None) -> str:
    """Noise, Blur, Weather, Digital or Extra; "" for other names."""
    return _GROUP.get(name or "", "")


def title(axis: str, value: Any) -> str:
    """A value of an axis as a row, column or section title that stands alone."""
    if axis == "corruption":
        return _SHORT.get(value, "all" if value is None else str(value))
    if axis in ("label", "method"):
        return METHODS.get(value) or _ablation(str(value)) or str(value)
    if axis in ("severity", "seed"):
        return f"{axis} {value}" if value is not None else f"no {axis}"
    if axis == "batch_size":
        return f"batch size {value}"
    if axis == "max_images":
        return "whole stream" if value is None else f"first {value} images"
    if axis == "protocol":
        return f"{value} protocol"
    if axis in ("benchmark", "scenario", "model", "precision"):
        return str(value)
    if axis.endswith("_options") and value == "{}":
        return "default options"
    return str(value)


def heading(axis: str) -> str:
    """An axis as the title of the column that holds its values."""
    return {"label": "method"}.get(axis, axis.rpartition(".")[2].replace("_", " "))


def ordered(axis: str, values: list[Any]) -> list[Any]:
    """Values in the order that tables use: the paper's for corruptions and methods, ascending for numbers, else
    as they come.
    """
    if axis == "corruption":
        return sorted(values, key=lambda v: (_ORDER.get(v, len(_ORDER)), values.index(v)))
    if axis in ("label", "method"):
        return sorted(values, key=lambda v: (_METHOD_ORDER.get(v, len(_METHOD_ORDER)), values.index(v)))
    if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
        return sorted(values)
    return values
