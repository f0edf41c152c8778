"""What a run takes beside its group's loop, as recorded rows tell."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.between import SOON, seconds_between


def stamp(second: float) -> str:
    return f"2026-11-29T12:00:{second:06.3f}+00:00"


def row(start: float, end: float, **changes: Any) -> dict[str, Any]:
    times = {"started_at": stamp(start), "finished_at": stamp(end)}
    place = {"host": "here", "device": "cuda:0", "method": "tent", "model": "resnet50-bn"}
    return {**times, **place, "seconds": 1.0, "decode_seconds": 0.0, "group_size": 1} | changes


def test_from_a_groups_start_to_the_next_ones_less_the_loop() -> None:
    rows = [row(0.0, 1.2), row(1.5, 2.7), row(3.0, 4.2)]
    assert seconds_between(rows) == pytest.approx(0.5)
    assert seconds_between(reversed(rows)) == pytest.approx(0.5)


def test_runs_side_by_side_share_it_and_reading_is_no_part_of_it() -> None:
    group = [row(0.0, 4.5, group_size=4, decode_seconds=d) for d in (0.1, 0.0, None, 0.0)]
    assert seconds_between(group) == pytest.approx(0.1)


def test_a_pause_or_another_worker_on_the_card_is_no_way_to_the_next_group() -> None:
    assert seconds_between([row(0.0, 1.25), row(1.25 + SOON + 0.1, 3.6)]) == pytest.approx(0.25)
    assert seconds_between([row(0.0, 1.25), row(0.5, 1.75)]) == pytest.approx(0.25)
    elsewhere = [row(0.0, 1.25), row(1.3, 2.55, host="there"), row(1.3, 2.55, device="cuda:1")]
    assert seconds_between(elsewhere) == pytest.approx(0.25)


def test_a_slow_first_group_does_not_count() -> None:
    assert seconds_between([row(0.0, 30.0), *[row(s, s + 1.2) for s in (31.5, 34.0, 37.0)]]) == pytest.approx(0.2)


def test_what_is_not_known_takes_no_time() -> None:
    assert seconds_between([]) == 0
    assert seconds_between([row(0.0, 9.0) | {name: None} for name in ("started_at", "finished_at", "group_size")]) == 0
    assert seconds_between([row(0.0, 0.4)]) == 0, "a resumed run's loop is longer than its last attempt"
