"""Runs done in one sweep are done for every sweep of the same results root: planned so, copied once, bit by bit."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest
import store_runs as sr
from spec_fakes import FakeCatalog

from orchestrator import open_results
from orchestrator.plan import make_plan
from orchestrator.reuse import done_elsewhere, take_over
from orchestrator.spec import parse_spec
from orchestrator.store import ParquetStore
from orchestrator.types import Plan

GRID = """\
name: first
seeds: [0, 1]
samples: true
runs:
  - benchmark: digits-c
    corruptions: [contrast]
    models: [small-resnet-bn]
    methods: [no-adapt, tent]
"""


def plan_of(name: str, root: str, *overrides: str) -> Plan:
    spec = parse_spec(GRID, [f"name={name}", *overrides])
    return make_plan(spec, ParquetStore(root, name), results=root, catalog=FakeCatalog())


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A results root whose sweep ``first`` has done three of its four runs."""
    store = ParquetStore(str(tmp_path), "first")
    for number, run in enumerate(plan_of("first", str(tmp_path)).runs[:3]):
        sr.run_once(store, run, accuracy=number / 10, host="there")
    store.close()
    return str(tmp_path)


def test_a_second_sweep_finds_what_the_first_has_done(root: str) -> None:
    plan = plan_of("second", root, "seeds=[0, 1, 2]")
    assert [run.status.value for run in plan.runs] == ["done", "done", "new", "done", "new", "new"]
    assert f"in {root}/first, attempt 1" in plan.runs[0].reason


def test_it_can_be_switched_off(root: str) -> None:
    assert len(plan_of("second", root, "reuse=false").todo) == 4


def test_runs_are_copied_once_with_rows_and_provenance(root: str) -> None:
    plan = plan_of("second", root)
    store = ParquetStore(root, "second")
    assert take_over(plan, store, root) == 3
    assert take_over(plan_of("second", root), store, root) == 0
    store.close()
    first, second = open_results(root, "first"), open_results(root, "second")
    ids = [run.run_id for run in plan.runs[:3]]
    for grain in ("batches", "samples"):
        assert getattr(second, grain)(ids).sort_by("run_id") == getattr(first, grain)(ids).sort_by("run_id")
    rows = second.runs()
    assert rows.num_rows == 3
    assert set(rows["sweep"].to_pylist()) == {"second"}
    assert set(rows["host"].to_pylist()) == {"there"}
    kept = [name for name in rows.column_names if name not in ("sweep", "aliases")]
    assert rows.select(kept).sort_by("run_id") == first.runs().select(kept).sort_by("run_id")
    assert plan_of("second", root).todo == plan_of("second", root).runs[3:]


def test_a_sweep_that_lacks_nothing_copies_nothing(root: str) -> None:
    store = ParquetStore(root, "first")
    assert take_over(plan_of("first", root), store, root) == 0
    assert done_elsewhere(root, "first") == {}


def test_runs_without_samples_do_not_stand_in_for_those_with(tmp_path: Path) -> None:
    root = str(tmp_path)
    store = ParquetStore(root, "first")
    for run in plan_of("first", root, "samples=false").runs:
        sr.run_once(store, run, samples=False)
    store.close()
    assert len(plan_of("second", root).todo) == 4
    assert len(plan_of("third", root, "samples=false").todo) == 0


def test_rows_of_different_runs_are_not_mixed(root: str) -> None:
    plan = plan_of("second", root)
    store = ParquetStore(root, "second")
    take_over(plan, store, root)
    store.close()
    rows = open_results(root, "second").runs()
    accuracies = {
        run.run_id: rows.filter(pc.equal(rows["run_id"], run.run_id))["accuracy"].to_pylist() for run in plan.runs[:3]
    }
    assert list(accuracies.values()) == [[0.0], [0.1], [0.2]]
