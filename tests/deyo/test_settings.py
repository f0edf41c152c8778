"""Settings of every method: each number has bounds, defaults lie within them, and what lies outside is refused."""

from __future__ import annotations

import dataclasses
import math
import typing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deyo.methods import method_names, settings_class
from deyo.settings import Bounds, bounds_of, build
from deyo.types import ConfigError
from orchestrator.analyses import ANALYSES, load_analysis

UNBOUNDED = {("memo", "prior_strength")}
"""Numbers of which any is allowed."""

CLASSES = {name: settings_class(name) for name in method_names()}
CLASSES |= {name: load_analysis(name).Settings for name in ANALYSES}
NUMBERS = [
    (name, field)
    for name, cls in CLASSES.items()
    for field in dataclasses.fields(cls)
    if typing.get_type_hints(cls)[field.name] in (int, float)
]
BOUNDED = [(name, field) for name, field in NUMBERS if (name, field.name) not in UNBOUNDED]


def refusal(name: str, field: str, value: object) -> str:
    with pytest.raises(ConfigError) as caught:
        build(CLASSES[name], {field: value}, where=name)
    return str(caught.value)


def ids(value: object) -> str:
    return value if isinstance(value, str) else value.name


@pytest.mark.parametrize(("name", "field"), BOUNDED, ids=ids)
def test_every_number_has_bounds_that_its_default_keeps(name: str, field: dataclasses.Field) -> None:
    bounds = bounds_of(field)
    assert bounds is not None
    assert field.default is dataclasses.MISSING or bounds.hold(field.default)


@pytest.mark.parametrize(("name", "field"), BOUNDED, ids=ids)
@settings(max_examples=50, deadline=None)
@given(value=st.one_of(st.integers(-(10**9), 10**9), st.floats(-2, 2), st.floats(allow_nan=True)))
def test_a_number_out_of_bounds_is_refused_by_name(name: str, field: dataclasses.Field, value: float) -> None:
    """With the setting, the value and what is allowed; a number within bounds is never refused for itself."""
    bounds, whole = bounds_of(field), typing.get_type_hints(CLASSES[name])[field.name] is int
    allowed = math.isfinite(value) and bounds.hold(value) and (not whole or value == int(value))
    needed = {f.name: 0.5 for f in dataclasses.fields(CLASSES[name]) if f.default is dataclasses.MISSING}
    try:
        made = build(CLASSES[name], {**needed, field.name: value}, where=name)
    except ConfigError as error:
        assert not allowed
        text = str(error)
        assert text.startswith(f"{name}.{field.name} is {value!r}: write a ")
        assert str(bounds) in text or "finite" in text or "whole" in text
    else:
        assert allowed
        assert getattr(made, field.name) == value


@pytest.mark.parametrize(
    ("method", "setting", "value", "allowed"),
    [
        ("tent", "learning_rate", -1e-3, "at least 0"),
        ("tent", "momentum", 1, "at least 0 and below 1"),
        ("deyo", "patches", 1, "at least 2"),
        ("deyo", "entropy_margin", 0, "above 0"),
        ("deyo", "entropy_reference", -0.4, "above 0"),
        ("deyo", "plpd_threshold", 1.5, "at least -1 and at most 1"),
        ("deyo", "plpd_threshold", math.nan, "finite"),
        ("sentry", "magnitude", 31, "at least 0 and at most 30"),
        ("eata", "fisher_size", 0, "at least 1"),
    ],
)
def test_what_is_refused_and_what_it_says(method: str, setting: str, value: float, allowed: str) -> None:
    text = refusal(method, setting, value)
    assert f"{method}.{setting} is {value!r}" in text
    assert allowed in text


def test_bounds_in_words() -> None:
    assert str(Bounds(above=0, at_most=1)) == "above 0 and at most 1"
    assert str(Bounds(at_least=-1)) == "at least -1"


@pytest.mark.parametrize(("name", "field"), BOUNDED, ids=ids)
def test_settings_made_without_a_spec_keep_their_bounds_too(name: str, field: dataclasses.Field) -> None:
    bounds, cls = bounds_of(field), CLASSES[name]
    if bounds.at_least is None and bounds.above is None:
        pytest.skip("no lower bound")
    wrong = (bounds.at_least if bounds.at_least is not None else bounds.above) - 1
    needed = {f.name: 0.5 for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING}
    with pytest.raises(ValueError, match=f"{field.name} is .*: write a number"):
        cls(**{**needed, field.name: wrong})
