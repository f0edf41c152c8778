"""The whole-sweep benchmark: what it says the full sweep would take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from experiments.benchmarks.sweep_figures import (
    Group,
    add_ratios,
    first_of_methods,
    full_seconds,
    groups_of,
    loops_by_method,
    parts,
)
from experiments.benchmarks.sweep_setup import FULL_CORRUPTIONS, FULL_IMAGES, FULL_SEEDS, Shape

SPEEDS = {"sar": 3_000.0, "deyo": 6_000.0, "no-adapt": 25_000.0}
START, COMPILE, GAP, DECODE, WIDTH = 8.0, 30.0, 0.25, 2_500.0, 5
SHAPE = Shape(
    network="resnet50-bn",
    methods=tuple(SPEEDS),
    corruptions=5,
    seeds=3,
    per_class=4,
    max_images=None,
    batch_size=64,
    precision="bf16",
    group_size=WIDTH,
)


def played(corruptions: int, images: int) -> tuple[list[Group], float]:
    """The groups of a sweep on one GPU that takes exactly what is said above, and the seconds of its command."""
    now, groups = START, []
    for method, speed in SPEEDS.items():
        for number in range(corruptions * SHAPE.seeds // WIDTH):
            waited = 0.0 if groups else 2 * images / DECODE  # five runs: two corruptions
            loop = WIDTH * images / speed + (0.0 if number else COMPILE)
            end = now + waited + loop
            size = {"corruptions": 2, "images": WIDTH * images}
            groups.append(Group(method=method, start=now, end=end, loop=loop, waited=waited, **size))
            now += waited + loop + GAP
    return groups, now - GAP


def test_a_small_sweep_foretells_the_full_one() -> None:
    groups, command = played(SHAPE.corruptions, SHAPE.images)
    found: dict[str, Any] = parts(groups, 1)
    assert found["first_groups_seconds"] == pytest.approx(3 * COMPILE)
    assert loops_by_method(groups) == pytest.approx({f"loops_{name}": speed for name, speed in SPEEDS.items()})
    assert (found["first_waits_seconds"], found["later_waits_seconds"]) == (2 * 4_000 / DECODE, 0.0)
    row = found | {"command_seconds": command, "window_seconds": command - START}
    assert SHAPE.seeds == FULL_SEEDS
    full = played(FULL_CORRUPTIONS, FULL_IMAGES)[1]
    assert full_seconds(row, SHAPE) == pytest.approx(full, abs=3 * GAP)  # one gap fewer than groups
    slow = row | {"first_waits_seconds": 1000.0, "loop_seconds": 90.0}  # decoding alone takes longer than all the rest
    bound = 1000.0 * FULL_IMAGES / SHAPE.images * FULL_CORRUPTIONS / 2
    assert full_seconds(slow, SHAPE) == pytest.approx(START + 3 * COMPILE + bound)
    waiting = full_seconds(row | {"later_waits_seconds": 1.0}, SHAPE) - full_seconds(row, SHAPE)
    assert waiting == pytest.approx(FULL_IMAGES * FULL_CORRUPTIONS / (SHAPE.images * SHAPE.corruptions))


def test_the_parts_are_those_of_each_gpu() -> None:
    alone, command = played(SHAPE.corruptions, SHAPE.images)
    both = sorted([*alone, *(replace(group, start=group.start + 0.001) for group in alone)], key=lambda g: g.start)
    one, two = parts(alone, 1), parts(both, 2)
    for name in ("loop_seconds", "first_waits_seconds", "later_waits_seconds", "between_a_group"):
        assert two[name] == pytest.approx(one[name], abs=0.01), name
    found = {"command_seconds": command, "window_seconds": command - START, "numbers": {}}
    baseline = dict.fromkeys((*SPEEDS, "feed"), 900.0)
    for gpus, figures in ((1, one), (2, two)):
        row = found | figures | {"gpus": gpus}
        add_ratios(row, SHAPE, baseline)
        assert ("full_ratio_feed_903" in row) == (gpus == 1)  # each of several compiles: one number does not tell


def test_groups_are_told_by_their_starts() -> None:
    row = {
        "method": "tent",
        "corruption": "fog",
        "started_at": "2026-01-01T00:00:01.000+00:00",
        "seconds": 2.0,
        "decode_seconds": 0.5,
        "images": 100,
    }
    later = {**row, "started_at": "2026-01-01T00:00:09.000+00:00", "decode_seconds": 0.0, "seconds": 0.5}
    ends = [{"finished_at": f"2026-01-01T00:00:{second}.000+00:00"} for second in ("06", "07", "10")]
    third = {**row, **ends[0], "corruption": "snow", "seconds": 1.0}  # another worker's, which began as soon
    other, first, second = groups_of(
        [{**later, **ends[2]}, {**row, **ends[0]}, third, {**row, **ends[1], "corruption": "frost"}]
    )
    assert (other.loop, other.corruptions, first.corruptions) == (1.0, 1, 2)
    assert (other.images, first.images) == (100, 200)
    assert (first.end - first.start, first.loop, first.waited) == (6.0, 4.0, 1.0)
    assert (second.end - second.start, second.loop, second.waited) == (1.0, 0.5, 0.0)
    assert first_of_methods([first, second]) == 3.5
