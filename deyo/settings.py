"""Settings dataclasses from plain values: unknown names and wrong types become errors that teach."""

from __future__ import annotations

import dataclasses
import difflib
import math
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from deyo.types import ConfigError

S = TypeVar("S")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds:
    """The numbers that a setting may take: between two ends, each in (``at_least``, ``at_most``) or out."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def hold(self, value: float) -> bool:
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        """In words: ``at least 0 and below 1``."""
        named = {name.replace("_", " "): value for name, value in dataclasses.asdict(self).items()}
        return " and ".join(f"{name} {value:g}" for name, value in named.items() if value is not None)


def setting(default: Any = dataclasses.MISSING, *, doc: str, **bounds: float) -> Any:
    """A settings field with its documentation (meaning, unit, source) and, for a number, its ``Bounds``."""
    metadata: dict[str, Any] = {"doc": doc}
    if bounds:
        metadata["bounds"] = Bounds(**bounds)
    return dataclasses.field(default=default, metadata=metadata)


def bounds_of(field: dataclasses.Field[Any]) -> Bounds | None:
    """The bounds of a settings field, if it has any."""
    return field.metadata.get("bounds")


def complaint(field: dataclasses.Field[Any], value: Any) -> str:
    """What to write instead of ``value``, if it is out of the field's bounds; else nothing."""
    bounds = bounds_of(field)
    return "" if bounds is None or bounds.hold(value) else f"write a number {bounds}"


class Bounded:
    """A settings dataclass that refuses numbers out of their fields' bounds, however it is made (ValueError)."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if wrong := complaint(field, value):
                raise ValueError(f"{field.name} is {value!r}: {wrong}")


def build(cls: type[S], values: Mapping[str, Any], *, where: str) -> S:
    """``cls(**values)`` after checking names, types and bounds; ``where`` names the method in errors (ConfigError)."""
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    types = typing.get_type_hints(cls)
    for name in values:
        if name not in fields:
            raise ConfigError(f"{where} has no setting {name!r}{nearest(name, fields)}")
    checked = {name: _check(value, types[name], f"{where}.{name}") for name, value in values.items()}
    for name, value in checked.items():
        if wrong := complaint(fields[name], value):
            raise ConfigError(f"{where}.{name} is {values[name]!r}: {wrong}")
    missing = [n for n, f in fields.items() if f.default is dataclasses.MISSING and n not in checked]
    if missing:
        raise ConfigError(f"{where} needs the setting{'s' * (len(missing) > 1)} {', '.join(missing)}")
    try:
        return cls(**checked)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def to_json(settings: Any) -> dict[str, Any]:
    """All fields as JSON values, in field order."""
    return dataclasses.asdict(settings)


def nearest(name: str, allowed: typing.Iterable[str]) -> str:
    """The tail of an error message: what ``name`` may have meant, and all that is allowed."""
    options = sorted(allowed)
    close = difflib.get_close_matches(str(name), options, n=1)
    hint = f": did you mean {close[0]!r}?" if close else ":"
    return f"{hint} allowed are {', '.join(options)}"


def _check(value: Any, kind: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return _check_literal(value, typing.get_args(kind), where)
    if kind is bool:
        if not isinstance(value, bool):
            raise ConfigError(f"{where} is {value!r}: write true or false")
        return value
    if kind is float:
        return _check_number(value, where)
    if kind is int:
        if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 != 0:
            raise ConfigError(f"{where} is {value!r}: write a whole number")
        return int(value)
    if kind is str:
        if not isinstance(value, str):
            raise ConfigError(f"{where} is {value!r}: write a text")
        return value
    raise TypeError(f"{where}: settings of type {kind} are not supported")


def _check_literal(value: Any, allowed: tuple[Any, ...], where: str) -> Any:
    if value not in allowed or isinstance(value, bool) != any(value is a for a in allowed if isinstance(a, bool)):
        raise ConfigError(f"{where} is {value!r}: allowed are {', '.join(map(repr, allowed))}")
    return value


def _check_number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{where} is {value!r}: write a finite number")
    return float(value)
