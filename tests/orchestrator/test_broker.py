"""Sweeps that share a cluster: by priority, evenly among equals, nothing wasted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.executors import broker
from orchestrator.executors.broker import FORGET_SECONDS, Broker, Claim, claim_of, shares
from orchestrator.executors.growth import Growth
from orchestrator.executors.layout import WorkerLayout
from orchestrator.executors.ray import RayExecutor
from orchestrator.session import worker_layout
from orchestrator.specmodel import Resources


def claim(sweep: str, wanted: int, priority: int = 0, capacity: int = 8, kind: str = "gpu") -> Claim:
    return Claim(sweep=sweep, priority=priority, wanted=wanted, size=1.0, pools={kind: capacity})


def host(gpus: int = 0, kind: str = "", cpus: int = 16) -> dict[str, Any]:
    """As ``ray.nodes()`` tells of one."""
    labels = {"ray.io/accelerator-type": kind} if kind else {}
    return {"Resources": {"CPU": float(cpus), "GPU": float(gpus)}, "Labels": labels}


def split(nodes: list[dict[str, Any]], *asked: Resources) -> list[int]:
    """Workers of sweeps with these resources, a hundred runs each, side by side on one cluster."""
    claims = [claim_of(str(n), a.priority, worker_layout(a), nodes, 100) for n, a in enumerate(asked)]
    found = shares(claims)
    return [found[str(n)] for n in range(len(asked))]


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
    assert split([host(4), host(cpus=8)], Resources(), Resources(gpus=0, cpus_per_worker=4)) == [4, 6]
    assert split([host(4, "T4"), host(2, "H100")], Resources(gpu_type="T4"), Resources(gpu_type="H100")) == [4, 2]


@pytest.mark.parametrize("other", [Resources(gpus=8), Resources(gpu_type="H100"), Resources(workers=8)])
def test_sweeps_that_use_the_same_gpus_are_rivals_however_they_ask(other: Resources) -> None:
    nodes = [host(4, "H100"), host(4, "H100")]
    assert split(nodes, Resources(), other) == [4, 4]
    assert split(nodes, Resources(priority=1), other) == [8, 0]


def test_sweeps_with_shares_of_gpus_are_rivals_of_those_with_whole_ones() -> None:
    assert split([host(8)], Resources(), Resources(gpu_fraction=0.5)) == [4, 8]


def test_who_can_take_any_gpu_leaves_the_wanted_kind_to_others() -> None:
    nodes = [host(4, "H100"), host(4, "T4")]
    assert split(nodes, Resources(), Resources(gpu_type="H100")) == [4, 4]
    assert split(nodes, Resources(), Resources(gpu_type="H100"), Resources(gpu_type="H100")) == [4, 2, 2]


@pytest.mark.parametrize("few", [Resources(workers=1), Resources(gpus=1), Resources(gpus=2, workers=1)])
def test_a_sweep_claims_no_more_workers_than_it_may_have(few: Resources) -> None:
    assert split([host(8)], few, Resources()) == [1, 7]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(-2, 2)), min_size=1, max_size=8), st.integers(1, 20))
def test_never_too_many_and_never_idle_while_wanted(asked: list[tuple[int, int]], capacity: int) -> None:
    claims = [claim(f"s{k}", wanted, priority, capacity) for k, (wanted, priority) in enumerate(asked)]
    found = shares(claims)
    assert sum(found.values()) == min(capacity, sum(c.wanted for c in claims))
    assert all(0 <= found[c.sweep] <= c.wanted for c in claims)


def test_an_autoscaler_is_asked_for_all_sweeps_together_and_what_died_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, asked = [0.0], []
    monkeypatch.setattr(broker.threading, "Thread", lambda **named: Still())
    monkeypatch.setattr(broker.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(broker, "_request", lambda wanted: asked.append(wanted) or True)
    one = Broker()
    one.claim(replace(claim("a", 5), asks=(2, {"GPU": 1.0})))
    one.claim(replace(claim("b", 5), asks=(1, {"CPU": 4.0})))
    one.claim(replace(claim("b", 5), asks=(1, {"CPU": 4.0})))
    assert asked == [[{"GPU": 1.0}] * 2, [{"GPU": 1.0}] * 2 + [{"CPU": 4.0}]], "said once, and of all"
    one.leave("b")
    assert asked[-1] == [{"GPU": 1.0}] * 2
    clock[0] += FORGET_SECONDS + 1
    one._look()
    assert asked[-1] == [], "the driver of a sweep was killed: its hosts may go"


class Still:
    """A thread that does not run."""

    def start(self) -> None: ...


def excuse_of(nodes: list[dict[str, Any]], *, failed_starts: int = 0, grows: bool = True) -> str:
    """What an executor with no workers and no share says on a cluster that was asked to grow by two GPUs."""
    executor = object.__new__(RayExecutor)  # without a Ray to connect to
    executor.layout, executor.quota, executor.trouble, executor._actors = WorkerLayout(device="gpu", gpus=2), 0, "", {}
    executor._nodes = {str(n): node for n, node in enumerate(nodes)}
    executor._failures = Counter({"0": failed_starts})
    executor.growth = Growth(workers=2, bundle={"GPU": 1.0}, since=executor.now(), able=grows)
    return executor.excuse()


def test_a_head_alone_waits_for_the_autoscaler_and_not_for_other_sweeps() -> None:
    assert excuse_of([host()]).startswith("the autoscaler was asked for 2 workers")
    assert excuse_of([host()], grows=False) == ""
    assert excuse_of([host(), host(2)]) == "other sweeps of this cluster go first"


def test_workers_that_cannot_start_are_not_waited_for() -> None:
    assert excuse_of([host()], failed_starts=9) == ""
