"""Paired differences: between methods and between sweeps."""

from __future__ import annotations

import pytest
from tables_fakes import CORRUPTIONS, config, grid, sweep

from deyo.types import ConfigError
from orchestrator.tables.cells import parts
from orchestrator.tables.differences import compared
from orchestrator.tables.render import render
from orchestrator.tables.request import Request

NOISE = {(s, c): 0.02 * ((7 * s + 3 * i) % 5 - 2) for s in range(3) for i, c in enumerate(CORRUPTIONS)}


def data(gain=0.05, seeds=(0, 1, 2), **changes):
    configs = grid(method=["tent", "deyo"], corruption=CORRUPTIONS, seed=seeds)
    configs = [config(**{**c.__dict__, **changes}) for c in configs]
    jitter = {("deyo", 1): 0.001}
    return sweep(
        configs,
        lambda c: (
            0.5 + NOISE[c.seed, c.corruption] + (gain if c.method == "deyo" else 0) + jitter.get((c.method, c.seed), 0)
        ),
    )


@pytest.mark.parametrize("kind", ["t", "bootstrap"])
def test_versus_takes_what_seeds_share_out(kind):
    table = compared(data(), Request(), versus="deyo", interval=kind)[0]
    assert [r.title for r in table.rows] == ["Tent"]
    average = table.cells[0][-1]
    assert average.summary.mean == pytest.approx(5.0 + 0.1 / 3)
    assert average.interval[0] > 4.5
    assert average.flag == ""
    assert kind in table.notes[0]
    assert "deyo minus each other method" in table.title


def test_versus_marks_what_is_not_distinguishable():
    table = compared(data(gain=0.0), Request(), versus="deyo")[0]
    assert {c.flag for c in table.cells[0]} == {"unclear"}
    assert "≈" in render([table], "text")


def test_versus_with_one_pair_gives_no_interval_and_says_so():
    table = compared(data(seeds=(0,)), Request(where=["corruption=contrast"]), versus="deyo")[0]
    assert table.cells[0][0].interval is None
    assert table.cells[0][0].flag == "unclear"


def test_versus_counts_the_pairs_that_are_missing():
    configs = grid(method=["tent", "deyo"], corruption=CORRUPTIONS, seed=[0, 1, 2])
    found = sweep(configs, lambda c: None if (c.method, c.corruption, c.seed) == ("tent", "contrast", 0) else 0.5)
    table = compared(found, Request(), versus="deyo")[0]
    assert [parts(c).short for c in table.cells[0]] == ["", "", "n=2/3", "n=6/9"]


def test_versus_gives_no_average_where_a_corruption_has_no_pair():
    configs = grid(method=["tent", "deyo"], corruption=CORRUPTIONS, seed=[0, 1])
    found = sweep(configs, lambda c: None if (c.method, c.corruption) == ("tent", "contrast") else 0.5)
    table = compared(found, Request(), versus="deyo")[0]
    assert [parts(c).mean for c in table.cells[0]] == ["+0.0", "+0.0", "–", "–"]


def test_versus_with_methods_across():
    table = compared(data(), Request(rows=["corruption"], cols=["label"]), versus="deyo")[0]
    assert [c.title for c in table.columns] == ["Tent"]
    assert parts(table.cells[-1][0]).mean == "+5.0"


def test_versus_unknown_names_the_methods():
    with pytest.raises(ConfigError, match="the sweep has tent, deyo"):
        compared(data(), Request(), versus="sar")


def test_one_comparison_at_a_time():
    with pytest.raises(ConfigError, match="one comparison"):
        compared(data(), Request(), versus="deyo", paper=True)
    with pytest.raises(ConfigError, match="--interval normal"):
        compared(data(), Request(), versus="deyo", interval="normal")


def test_compare_with_a_sweep_pairs_runs_and_says_what_differs():
    ours, other = data(gain=0.07), data(gain=0.05, precision="bf16")
    table = compared(ours, Request(cols=["severity"]), other=other)[0]
    assert [c.title for c in table.columns] == ["ours", "fake", "Δ"]
    deyo = next(line for r, line in zip(table.rows, table.cells) if r.title == "DeYO")
    assert parts(deyo[2]).mean == "+2.0"
    assert deyo[2].flag == ""
    tent = next(line for r, line in zip(table.rows, table.cells) if r.title == "Tent")
    assert tent[2].flag == "unclear"
    assert any("differ in precision" in n for n in table.notes)


def test_compare_with_a_sweep_without_common_runs():
    other = data(model="small-resnet-gn")
    table = compared(data(), Request(), other=other)[0]
    assert any("no run to pair" in n for n in table.notes)


def test_compare_with_a_sweep_that_has_two_candidates_is_refused():
    configs = [config(method="tent", precision=p) for p in ("bf16", "tf32")]
    with pytest.raises(ConfigError, match="several runs like tent"):
        compared(data(), Request(), other=sweep(configs, lambda c: 0.5))


def test_versus_says_what_it_cannot_compare():
    alone = sweep(grid(method=["tent"], seed=[0, 1]), lambda c: 0.5)
    with pytest.raises(ConfigError, match="no other method than tent"):
        compared(alone, Request(), versus="tent")
    two = sweep(grid(method=["tent", "deyo"], seed=[0, 1]), lambda c: 0.5)
    with pytest.raises(ConfigError, match="no such method here; the sweep has tent, deyo"):
        compared(two, Request(), versus="memo")
