"""What is shown of a running sweep: the time left is shown when it can be told, and then it is about right."""

from __future__ import annotations

import io

import pytest

from orchestrator.progress import COLD_SECONDS, PlainProgress, Tally


def sweep(
    runs: int, slots: int, seconds: float, cold: float, *, group: int = 1, apart: bool = True
) -> list[tuple[float, float | None]]:
    """(time, the time left that is shown) after each look at a sweep whose workers' first groups take ``cold`` more.

    ``apart``: workers' groups end at different times.
    """
    tally = Tally(sweep="s", total=runs, slots=slots, cost_left=float(runs))
    tally.begin(0.0)
    ends = [cold + seconds * (1 + apart * worker / slots) for worker in range(slots)]
    shown, now = [], 0.0
    while tally.done < runs:
        now += 0.25
        for worker, end in enumerate(ends):
            if now >= end and tally.done < runs:
                tally.done += group
                tally.cost_done += group
                tally.cost_left -= group
                ends[worker] = end + seconds
        tally.estimate(now)
        shown.append((now, tally.eta))
    return shown


@pytest.mark.parametrize(("slots", "group"), [(1, 1), (2, 1), (4, 8)])
def test_a_cold_start_does_not_spoil_the_time_left(slots: int, group: int) -> None:
    shown = sweep(240, slots, seconds=2.0, cold=30.0, group=group)
    end = shown[-1][0]
    told = [(now, eta) for now, eta in shown if eta is not None]
    assert told
    for now, eta in told:
        assert abs(eta - (end - now)) <= 0.4 * (end - now) + 4.0, (now, eta)


def test_nothing_is_told_before_every_worker_had_a_second_run() -> None:
    shown = sweep(20, 4, seconds=2.0, cold=30.0)
    assert all(eta is None for now, eta in shown if now < 32.0 + 2.0)


def test_few_long_runs_are_told_too() -> None:
    shown = sweep(6, 2, seconds=2 * COLD_SECONDS, cold=30.0, apart=False)
    end = shown[-1][0]
    now, eta = next((now, eta) for now, eta in shown if eta is not None)
    assert now < 2.2 * COLD_SECONDS
    assert abs(eta - (end - now)) < 0.2 * (end - now)


def test_the_line_has_no_time_left_where_none_is_known() -> None:
    stream = io.StringIO()
    progress = PlainProgress(stream=stream, every=0.0)
    tally = Tally(sweep="s", total=3, done=1, slots=1)
    progress.update(tally)
    tally.eta, tally.done = 75.0, 2
    progress.update(tally)
    first, second = stream.getvalue().splitlines()
    assert first == "s: 1/3 done, 0 failed, 2 left, 0 running on 1 worker"
    assert second.endswith("1 min 15 s left")


def test_the_last_line_is_not_printed_twice() -> None:
    stream = io.StringIO()
    progress = PlainProgress(stream=stream, every=0.0)
    tally = Tally(sweep="s", total=1, done=1)
    progress.update(tally)
    progress.close(tally)
    assert len(stream.getvalue().splitlines()) == 1
    progress.note("a note")
    progress.close(tally)
    assert len(stream.getvalue().splitlines()) == 3
