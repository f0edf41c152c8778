"""The settings of every method, as SPEC.md lists them: from the dataclasses that also check them."""

from __future__ import annotations

import dataclasses
import typing


def table() -> str:
    """A row for each setting, methods that share it named together."""
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for method, cls in _classes().items():
        types = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            key = (field.name, _allowed(field, types[field.name]), _plain(field.metadata["doc"]))
            rows.setdefault(key, {})[method] = _default(field)
    lines = ["| setting | of | default | allowed | meaning |", "|---|---|---|---|---|"]
    for (name, allowed, doc), defaults in rows.items():
        shown = list(dict.fromkeys(defaults.values()))
        default = shown[0] if len(shown) == 1 else ", ".join(f"{value} ({m})" for m, value in defaults.items())
        lines.append(f"| `{name}` | {', '.join(defaults)} | {default} | {allowed} | {doc} |")
    return "\n".join(lines)


def _classes() -> dict[str, type]:
    """The project's own, by method; those of installed packages are left out."""
    from deyo.methods import method_names, settings_class
    from orchestrator.analyses import ANALYSES, load_analysis

    found = {name: settings_class(name) for name in method_names()}
    own = {name: cls for name, cls in found.items() if cls.__module__.startswith("deyo.")}
    return own | {name: load_analysis(name).Settings for name in ANALYSES}


def _allowed(field: dataclasses.Field[typing.Any], kind: typing.Any) -> str:
    from deyo.settings import bounds_of

    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(map(str, typing.get_args(kind)))
    if kind is bool:
        return "true, false"
    bounds = bounds_of(field)
    words = {int: "whole, ", float: ""}.get(kind, "")
    return f"{words}{bounds}" if bounds else {int: "whole", float: "any number", str: "text"}[kind]


def _default(field: dataclasses.Field[typing.Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "by protocol"
    if isinstance(field.default, bool):
        return str(field.default).lower()
    return f"{field.default:g}" if isinstance(field.default, float) else str(field.default) or "none"


def _plain(text: str) -> str:
    return text.replace("|", "\\|")
