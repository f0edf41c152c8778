"""Aggregates: against pandas, and the cases that a plain group-by gets wrong."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import store_runs as sr

from orchestrator import schema
from orchestrator.aggregate import COLUMNS, aggregate
from orchestrator.cells import KEYS, METRICS
from orchestrator.store import ParquetStore, commits, plan_table
from orchestrator.types import Plan, PlannedRun, RunStatus

NAN = float("nan")


def runs_table(rows: list[tuple[PlannedRun, dict[str, Any]]]) -> pa.Table:
    whole = [commits.runs_row(run, 1, {"images": 100, **values}, "s", "2026-01-01T00:00:00Z") for run, values in rows]
    return pa.Table.from_pylist(whole, schema=schema.RUNS).select(COLUMNS)


def plan_of(runs: list[PlannedRun]) -> pa.Table:
    return plan_table.read(_Tree(plan_table.encode(Plan(sweep="s", runs=tuple(runs)))))


class _Tree:
    def __init__(self, data: bytes) -> None:
        self.read = lambda path: data


def find(table: pa.Table, metric: str = "accuracy", **where: Any) -> list[dict[str, Any]]:
    found = [r for r in table.to_pylist() if r["metric"] == metric]
    return [r for r in found if all(r[k] == v for k, v in where.items())]


def only(table: pa.Table, metric: str = "accuracy", **where: Any) -> dict[str, Any]:
    found = find(table, metric, **where)
    assert len(found) == 1, found
    return found[0]


def random_rows(
    seed: int, draws: int = 400, corruptions: tuple[str, ...] = (*sr.CORRUPTIONS, "snow")
) -> list[tuple[PlannedRun, dict[str, Any]]]:
    dice = np.random.default_rng(seed)
    rows, taken = [], set()
    for _ in range(draws):
        run = sr.planned(
            int(dice.integers(5)),
            str(dice.choice(["tent", "deyo"])),
            str(dice.choice(corruptions)),
            severity=int(dice.choice([3, 5])),
            model=str(dice.choice(["a", "b"])),
            pretrain_seed=None if dice.random() < 0.5 else int(dice.integers(2)),
            precision=str(dice.choice(["tf32", "bf16"])),
        )
        if run.run_id in taken:
            continue
        taken.add(run.run_id)
        values = {m: float(dice.normal()) for m in ("accuracy", "aurc", "mean_plpd", "seconds")}
        for metric in values:
            values[metric] = NAN if dice.random() < 0.05 else values[metric]
        if dice.random() < 0.1:
            values["aurc"] = None
        rows.append((run, {**values, "images": int(dice.integers(50, 200)), "collapsed": bool(dice.random() < 0.1)}))
    return rows


@pytest.mark.parametrize("seed", range(3))
def test_single_conditions_agree_with_pandas(seed):
    rows = random_rows(seed)
    table = aggregate(runs_table(rows))
    frame = runs_table(rows).to_pandas()
    keys = [k for k in KEYS if k != "corruptions"]
    for metric in ("accuracy", "aurc", "mean_plpd", "seconds", "images"):
        ours = {tuple(r[k] for k in keys): r for r in find(table, metric) if not r["corruption"].endswith("average")}
        theirs = frame.groupby(keys, dropna=False)
        seen = 0
        for key, group in theirs:
            key = tuple(None if isinstance(k, float) and math.isnan(k) else k for k in key)
            values = group[metric].astype(float)
            if key not in ours:
                assert runs_table(rows).filter(pc.is_in(pc.field("run_id"), pa.array(group["run_id"])))[
                    metric
                ].null_count == len(group)
                continue
            row, seen = ours[key], seen + 1
            assert row["n"] == values.count()
            assert row["mean"] == pytest.approx(values.mean(), rel=1e-12) or (row["mean"] is None and row["n"] == 0)
            assert row["std"] == pytest.approx(values.std(), rel=1e-9) or (row["std"] is None and row["n"] < 2)
            assert row["seeds"] == sorted(group["seed"][values.notna()])
            assert sorted(row["missing_seeds"]) == sorted(group["seed"][values.isna()])
            assert row["collapsed"] == group["collapsed"].sum()
        assert seen == len(ours) > 10


@pytest.mark.parametrize(("name", "weighted"), [("average", False), ("weighted-average", True)])
def test_averages_over_corruptions_agree_with_pandas(name, weighted):
    rows = random_rows(5, 400, ("fog", "snow"))
    frame = runs_table(rows).to_pandas()
    keys = [k for k in KEYS if k not in ("corruption", "corruptions")]
    table = aggregate(runs_table(rows))
    checked = 0
    for key, family in frame.groupby(keys, dropna=False):
        wanted = family["corruption"].nunique()
        key = {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in zip(keys, key)}
        if wanted < 2:
            assert not find(table, corruption=name, **key)
            continue
        row = only(table, corruption=name, **key)
        values, missing = [], []
        for (seed, _), unit in family.groupby(["seed", "pretrain_seed"], dropna=False):
            weights = unit["images"] if weighted else np.ones(len(unit))
            value = np.average(unit["accuracy"], weights=weights) if len(unit) == wanted else NAN
            (missing if math.isnan(value) else values).append(seed if math.isnan(value) else value)
        assert row["n"] == len(values)
        assert sorted(row["missing_seeds"]) == sorted(missing)
        assert sorted(row["corruptions"]) == sorted(family["corruption"].unique())
        if values:
            assert row["mean"] == pytest.approx(np.mean(values), rel=1e-12)
            checked += 1
        if len(values) > 1:
            assert row["std"] == pytest.approx(np.std(values, ddof=1), rel=1e-9)
    assert checked > 3


def test_five_seeds_one_failed_one_nan_are_three_of_five():
    runs = [sr.planned(seed) for seed in range(5)]
    rows = [(r, {"accuracy": [0.5, 0.6, 0.7, NAN][i], "collapsed": i == 0}) for i, r in enumerate(runs[:4])]
    row = only(aggregate(runs_table(rows), plan_of(runs)))
    assert (row["n"], row["seeds"], row["missing_seeds"], row["nan_seeds"]) == (3, [0, 1, 2], [3, 4], [3])
    assert row["mean"] == pytest.approx(0.6)
    assert row["std"] == pytest.approx(0.1)
    assert row["collapsed"] == 1


def test_one_seed_has_no_std_and_no_seed_is_still_a_row():
    done, missing = sr.planned(0, "tent"), sr.planned(0, "eata")
    table = aggregate(runs_table([(done, {"accuracy": 0.5})]), plan_of([done, missing]))
    assert (only(table, label="tent")["mean"], only(table, label="tent")["std"]) == (0.5, None)
    empty = only(table, label="eata")
    assert (empty["n"], empty["mean"], empty["std"], empty["missing_seeds"]) == (0, None, None, [0])
    assert not find(table, "aurc")  # nothing recorded it, so nothing is missing


def test_a_metric_that_some_seeds_lack_is_missing_there():
    runs = [sr.planned(seed) for seed in range(3)]
    table = aggregate(runs_table([(r, {"accuracy": 0.5, "aurc": None if i else 0.2}) for i, r in enumerate(runs)]))
    row = only(table, "aurc")
    assert (row["seeds"], row["missing_seeds"], row["nan_seeds"]) == ([0], [1, 2], [])


def test_runs_that_the_plan_does_not_have_do_not_count():
    current, dropped = sr.planned(0), sr.planned(0, settings={"lr": 1.0})
    rows = [(current, {"accuracy": 0.5}), (dropped, {"accuracy": 0.9})]
    assert only(aggregate(runs_table(rows), plan_of([current])))["mean"] == 0.5
    assert sorted(r["mean"] for r in find(aggregate(runs_table(rows)))) == [0.5, 0.9]  # two conditions, never mixed


@pytest.mark.parametrize(
    "change",
    [
        {"settings": {"lr": 1.0}},
        {"batch_size": 1},
        {"protocol": "paper"},
        {"precision": "bf16"},
        {"scenario": "continual"},
        {"scenario_options": {"reset": True}},
        {"benchmark_options": {"imbalance_ratio": 100}},
        {"max_images": 50},
        {"severity": 1},
        {"corruption": None, "corruptions": ("fog",)},
    ],
)
def test_conditions_are_never_averaged_together(change):
    rows = [(sr.planned(0), {"accuracy": 0.2}), (sr.planned(1, **change), {"accuracy": 0.8})]
    assert sorted(r["mean"] for r in find(aggregate(runs_table(rows)))) == [0.2, 0.8]


def test_a_run_stands_under_each_of_its_labels():
    merged = sr.planned(0, "deyo", aliases=("tau=0.4",))
    other = sr.planned(0, "tau=0.5", settings={"tau": 0.5})
    for plan in (None, plan_of([merged, other])):
        table = aggregate(runs_table([(merged, {"accuracy": 0.5}), (other, {"accuracy": 0.25})]), plan)
        assert {r["label"]: r["mean"] for r in find(table)} == {"deyo": 0.5, "tau=0.4": 0.5, "tau=0.5": 0.25}


def test_a_label_changed_in_the_spec_is_the_plans():
    run = sr.planned(0, "old name")
    renamed = PlannedRun(
        run_id=run.run_id, config=sr.planned(0, "new name").config, status=RunStatus.DONE, stamps=run.stamps
    )
    assert only(aggregate(runs_table([(run, {"accuracy": 0.5})]), plan_of([renamed])))["label"] == "new name"


def test_a_replaced_run_does_not_count_beside_its_successor():
    both = [sr.planned(0, run_id=c * 16, stamps={"config_id": "f" * 16}) for c in "ab"]
    dates = {"finished_at": "2026-01-01T00:00:00Z"}, {"finished_at": "2026-01-02T00:00:00Z"}
    table = runs_table([(both[0], {"accuracy": 0.9, **dates[1]}), (both[1], {"accuracy": 0.5, **dates[0]})])
    row = only(aggregate(table))
    assert (row["n"], row["mean"]) == (1, 0.9)


def test_pretraining_seeds_are_replicates():
    runs = [sr.planned(seed, pretrain_seed=p) for seed in (0, 1) for p in (0, 1)]
    row = only(aggregate(runs_table([(r, {"accuracy": i / 10}) for i, r in enumerate(runs)])))
    assert (row["n"], row["seeds"], row["pretrain_seeds"]) == (4, [0, 0, 1, 1], [0, 1, 0, 1])


def test_a_seed_that_lacks_a_corruption_has_no_average():
    runs = list(sr.grid(range(2), ["deyo"]))
    rows = [(r, {"accuracy": 0.3 * (1 + r.config.seed)}) for r in runs[:-1]]
    row = only(aggregate(runs_table(rows), plan_of(runs)), corruption="average")
    assert (row["n"], row["seeds"], row["missing_seeds"]) == (1, [0], [1])
    assert row["mean"] == pytest.approx(0.3)


def test_plain_and_weighted_averages_differ_where_corruptions_have_different_numbers_of_images():
    rows = [
        (sr.planned(0, corruption="fog"), {"accuracy": 0.2, "images": 100}),
        (sr.planned(0, corruption="snow"), {"accuracy": 0.8, "images": 300}),
    ]
    table = aggregate(runs_table(rows))
    assert only(table, corruption="average")["mean"] == pytest.approx(0.5)
    assert only(table, corruption="weighted-average")["mean"] == pytest.approx(0.65)
    assert not find(table, "seconds", corruption="weighted-average")


def test_groups_and_domains_have_rows_of_their_own():
    def parts(*correct: int) -> list[dict[str, Any]]:
        return [{"name": n, "images": 10, "correct": c} for n, c in zip(("land", "water"), correct)]

    runs = [sr.planned(seed, corruption=None, corruptions=("land", "water")) for seed in range(3)]
    rows = [(r, {"accuracy": 0.5, "group_accuracies": parts(2 + i, 8)}) for i, r in enumerate(runs[:2])]
    table = aggregate(runs_table(rows), plan_of(runs))
    row = only(table, "group_accuracy:land")
    assert (row["mean"], row["seeds"], row["missing_seeds"]) == (pytest.approx(0.25), [0, 1], [2])
    rows = [(r, {"accuracy": 0.5, "domain_accuracies": parts(4, 6)}) for r in runs]
    table = aggregate(runs_table(rows))
    assert only(table, "domain_accuracy", corruption="water")["mean"] == pytest.approx(0.6)
    assert only(table, "domain_accuracy", corruption="land")["n"] == 3


def test_nothing_gives_an_empty_table_with_the_schema():
    for plan in (None, plan_of([])):
        table = aggregate(schema.RUNS.empty_table().select(COLUMNS), plan)
        assert table.schema.equals(schema.AGGREGATES)
        assert len(table) == 0


def test_every_metric_column_of_the_schema_is_aggregated():
    numeric = {f.name for f in schema.RUNS if pa.types.is_integer(f.type) or pa.types.is_floating(f.type)}
    left_out = {"attempt", "severity", "seed", "pretrain_seed", "batch_size", "max_images", "schema_version"}
    assert set(METRICS) == numeric - left_out - {"numerics_version", "group_size"}


def test_the_stored_table_is_refreshed_as_runs_are_committed(tmp_path, monkeypatch):
    store = ParquetStore(str(tmp_path), "s")
    runs = [sr.planned(seed) for seed in range(3)]
    store.write_plan(Plan(sweep="s", runs=tuple(runs)))
    path = tmp_path / "s/tables/aggregates/aggregates.parquet"
    monkeypatch.setattr(store._aggregation, "due", lambda: True)
    for done, run in enumerate(runs, 1):
        sr.run_once(store, run, accuracy=done / 10)
        store.flush()
        row = only(pq.read_table(path))
        assert (row["n"], len(row["missing_seeds"])) == (done, 3 - done)
    assert pd.read_parquet(path).shape[1] == len(schema.AGGREGATES)
    assert json.loads(row["settings"]) == {"lr": 0.001}
