"""Sweep specs: a YAML file (and overrides) to a validated ``SweepSpec``, and on to ``RunConfig``s.

spec = load_spec("experiments/quickstart.yaml", ["seeds=[0]"])
runs = expand(spec)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from deyo.types import ConfigError
from orchestrator.expand import expand
from orchestrator.overrides import apply_mapping, apply_overrides
from orchestrator.specfile import Document, Key, parse_document, plain, read_document
from orchestrator.specmodel import Grid, MethodEntry, Mlflow, Resources, SweepSpec
from orchestrator.suggest import shown, suggest

__all__ = ["SweepSpec", "expand", "load_spec", "parse_spec", "resolved_spec"]

SMOKE_IMAGES = 128
_ERRORS_SHOWN = 10


def load_spec(path: str | Path, overrides: Iterable[str] = (), *, smoke: bool = False) -> SweepSpec:
    """The spec in the YAML file ``path`` with ``--set`` ``overrides`` (``KEY=VALUE``) applied.

    ``smoke`` asks for the reduced form: the spec's own ``smoke:`` section is applied before the overrides, the
    sweep gets a name of its own (``NAME-smoke``), and what the section leaves open is one seed and
    ``SMOKE_IMAGES`` images a run. Raises ``ConfigError`` with file, line, key and the nearest allowed values.
    """
    return _build(read_document(path), overrides, smoke)


def parse_spec(text: str, overrides: Iterable[str] = (), *, path: str = "spec.yaml", smoke: bool = False) -> SweepSpec:
    """``load_spec`` for text at hand."""
    return _build(parse_document(text, path), overrides, smoke)


def resolved_spec(spec: SweepSpec) -> dict[str, Any]:
    """The spec as plain JSON values with every default filled in (what the store and MLflow keep)."""
    return plain(spec.model_dump())


def _build(document: Document, overrides: Iterable[str], smoke: bool) -> SweepSpec:
    if smoke:
        document = _reduced(document)
    document = apply_overrides(document, overrides)
    try:
        spec = SweepSpec.model_validate(document.tree)
    except ValidationError as error:
        raise ConfigError(_explained(error, document)) from None
    spec._document = document
    return spec


def _reduced(document: Document) -> Document:
    changes = document.tree.get("smoke") or {}
    if not isinstance(changes, dict):
        raise document.error(("smoke",), "expected a mapping of KEY: VALUE, with the keys that --set takes")
    seeds = document.tree.get("seeds")
    defaults = {
        "name": f"{document.tree.get('name')}-smoke",
        "seeds": seeds[:1] if isinstance(seeds, list) and seeds else [0],
        "max_images": SMOKE_IMAGES,
    }
    return apply_mapping(document, {**defaults, **changes}, "smoke:")


def _explained(error: ValidationError, document: Document) -> str:
    found = error.errors(include_url=False)
    lines = dict.fromkeys(f"{document.where(_key(e))}: {_message(e)}" for e in found[:_ERRORS_SHOWN])
    more = [f"… and {len(found) - _ERRORS_SHOWN} errors more"] if len(found) > _ERRORS_SHOWN else []
    return "\n".join([*lines, *more])


def _key(error: Any) -> Key:
    return tuple(error["loc"])


def _message(error: Any) -> str:
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown key; {suggest(error['loc'][-1], _fields_at(error['loc'][:-1]))}"
    if kind == "missing":
        return "missing; every spec needs it" if len(error["loc"]) == 1 else "missing; it must be given here"
    if kind == "literal_error":
        return f"{shown(value)} is not one of {context['expected']}"
    if kind == "value_error":
        return f"{shown(value)}: {context['error']}"
    if kind == "too_short":
        return f"empty; at least {context['min_length']} entry is needed"
    expected = _EXPECTED.get(kind)
    if expected:
        return f"expected {expected}, found {shown(value)}"
    return f"{error['msg'][0].lower()}{error['msg'][1:]}, found {shown(value)}"


_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text (quote it if it looks like a number)",
    "list_type": "a list, like [a, b]",
    "dict_type": "a mapping of KEY: VALUE",
    "model_type": "a mapping of KEY: VALUE",
    "model_attributes_type": "a mapping of KEY: VALUE",
    "string_too_short": "text of at least one character",
}


def _fields_at(location: Sequence[str | int]) -> list[str]:
    """The keys that are allowed at ``location`` of a spec."""
    model: type[BaseModel] = SweepSpec
    for part in location:
        model = _NESTED.get((model, part), model)
    return list(model.model_fields)


_NESTED: dict[tuple[type[BaseModel], str | int], type[BaseModel]] = {
    (SweepSpec, "runs"): Grid,
    (SweepSpec, "mlflow"): Mlflow,
    (SweepSpec, "resources"): Resources,
    (Grid, "methods"): MethodEntry,
}
