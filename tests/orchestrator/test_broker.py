"""Sweeps that share a cluster: by priority, evenly among equals, nothing wasted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.executors.broker import Claim, shares


def claim(sweep: str, wanted: int, priority: int = 0, capacity: int = 8, kind: str = "gpu") -> Claim:
    return Claim(sweep=sweep, priority=priority, wanted=wanted, capacity=capacity, kind=kind)


def test_alone_a_sweep_gets_what_it_wants() -> None:
    assert shares([claim("a", 5)]) == {"a": 5}
    assert shares([claim("a", 50)]) == {"a": 8}


def test_a_higher_priority_goes_first() -> None:
    assert shares([claim("low", 8), claim("high", 6, priority=1)]) == {"high": 6, "low": 2}
    assert shares([claim("low", 8), claim("high", 20, priority=1)]) == {"high": 8, "low": 0}


def test_equals_share_evenly_and_what_one_leaves_the_other_takes() -> None:
    assert shares([claim("a", 8), claim("b", 8)]) == {"a": 4, "b": 4}
    assert shares([claim("a", 1), claim("b", 8)]) == {"a": 1, "b": 7}


def test_workers_of_another_kind_are_no_rivals() -> None:
    assert shares([claim("a", 8), claim("b", 4, kind="cpu", capacity=4)]) == {"a": 8, "b": 4}


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(-2, 2)), min_size=1, max_size=8), st.integers(1, 20))
def test_never_too_many_and_never_idle_while_wanted(asked: list[tuple[int, int]], capacity: int) -> None:
    claims = [claim(f"s{k}", wanted, priority, capacity) for k, (wanted, priority) in enumerate(asked)]
    found = shares(claims)
    assert sum(found.values()) == min(capacity, sum(c.wanted for c in claims))
    assert all(0 <= found[c.sweep] <= c.wanted for c in claims)
