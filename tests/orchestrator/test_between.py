"""What a run takes beside its group's loop, as recorded rows tell."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from orchestrator.between import SOON, Between


def stamp(second: float) -> str:
    return f"2026-11-29T12:00:{second:06.3f}+00:00"


def row(start: float, end: float, **changes: Any) -> dict[str, Any]:
    times = {"started_at": stamp(start), "finished_at": stamp(end)}
    place = {"host": "here", "device": "cuda:0", "method": "tent", "model": "resnet50-bn"}
    return {**times, **place, "seconds": 1.0, "decode_seconds": 0.0, "group_size": 1} | changes


def seconds_between(rows: Iterable[dict[str, Any]]) -> float | None:
    between = Between()
    for each in rows:
        between.add(each)
    return between.seconds()


def test_from_a_groups_start_to_the_next_ones_less_the_loop() -> None:
    rows = [row(0.0, 1.2), row(1.5, 2.7), row(3.0, 4.2)]
    assert seconds_between(rows) == pytest.approx(0.5)
    assert seconds_between(reversed(rows)) == pytest.approx(0.5)


def test_runs_side_by_side_share_it_and_reading_is_no_part_of_it() -> None:
    ends = (4.5, 4.4, 4.3, 4.2)
    group = [row(0.0, e, group_size=4, decode_seconds=d) for e, d in zip(ends, (None, 0.0, 0.1, 0.0))]
    assert seconds_between(group) == seconds_between(reversed(group)) == pytest.approx(0.1)


def test_a_group_wider_than_its_runs_takes_its_whole_loop() -> None:
    assert seconds_between([row(0.0, 4.6, group_size=4), row(0.0, 4.5, group_size=4)]) == pytest.approx(0.3)


def test_runs_of_one_task_whose_streams_differ_have_loops_one_after_the_other() -> None:
    task = [row(0.0, 2.1, seconds=1.0, group_size=2), row(0.0, 2.1, seconds=1.0, group_size=2)]
    task += [row(0.0, 5.3, seconds=1.5, group_size=2), row(0.0, 5.4, seconds=1.5, group_size=2)]
    assert seconds_between(task) == pytest.approx(0.1)


@pytest.mark.parametrize("elsewhere", [{"host": "there"}, {"device": "cuda:1"}])
def test_another_devices_group_is_not_the_next_one(elsewhere: dict[str, str]) -> None:
    assert seconds_between([row(0.0, 1.25), row(1.75, 3.0, **elsewhere)]) == pytest.approx(0.25)


@pytest.mark.parametrize("start", [1.25 + SOON + 0.1, 0.5])
def test_a_pause_or_another_worker_on_the_device_is_no_way_to_the_next_group(start: float) -> None:
    assert seconds_between([row(0.0, 1.25), row(start, start + 1.25)]) == pytest.approx(0.25)


@pytest.mark.parametrize("other", [{"method": "deyo"}, {"model": "vit-base-ln"}])
def test_groups_that_begin_at_the_same_time_are_two(other: dict[str, str]) -> None:
    assert seconds_between([row(0.0, 1.25), row(0.0, 1.25, **other)]) == pytest.approx(0.25)


def test_a_slow_first_group_does_not_count() -> None:
    assert seconds_between([row(0.0, 30.0), *[row(s, s + 1.2) for s in (31.5, 34.0, 37.0)]]) == pytest.approx(0.2)


@pytest.mark.parametrize("name", ["started_at", "finished_at", "group_size", "seconds"])
def test_rows_without_times_say_nothing(name: str) -> None:
    assert seconds_between([row(0.0, 9.0) | {name: None}]) is None
    assert seconds_between([row(0.0, 9.0) | {name: None}, row(0.0, 1.25)]) == pytest.approx(0.25)


def test_times_that_are_none_say_nothing() -> None:
    assert seconds_between([]) is None
    assert seconds_between([row(0.0, 1.0, started_at="today"), row(0.0, 1.0, finished_at="today")]) is None


def test_a_resumed_runs_loop_may_be_longer_than_its_last_attempt() -> None:
    assert seconds_between([row(0.0, 0.4)]) == 0
