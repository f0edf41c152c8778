"""The paper's layouts: which one a sweep gets by default, and what each shows."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tables_fakes import CORRUPTIONS, biased_row, config, grid, planned, row, runs_table, samples, sweep

from deyo.confidence import aurc
from deyo.types import ConfigError
from orchestrator.tables.cells import parts
from orchestrator.tables.data import from_runs
from orchestrator.tables.differences import compared
from orchestrator.tables.layouts import LAYOUTS, default_layout, layout
from orchestrator.tables.layouts.ablation import SWITCHES
from orchestrator.tables.render import render
from orchestrator.tables.request import Request, make_tables

BIASED = {"benchmark": "waterbirds", "scenario": "biased", "model": "resnet50-bn", "corruption": None, "severity": None}
DEYO = {
    "transform": "patch",
    "patches": 4,
    "plpd_threshold": 0.5,
    "copies": 8,
    "entropy_copies": 0,
    **dict.fromkeys(SWITCHES, True),
}


def biased(configs, groups=lambda c: (0.9, 0.7), failed=()):
    plan = planned(configs)
    rows = [biased_row(r, groups(r.config)) for i, r in enumerate(plan) if i not in failed]
    return from_runs(runs_table(rows), sweep="fake", planned=plan)


def ablations(**axes):
    found = []
    for n, bits in enumerate(itertools.product([False, True], repeat=4), start=1):
        settings = {**DEYO, **dict(zip(SWITCHES, bits))}
        found += [config(**axes, method="deyo", label=f"variant {n}", settings=settings, seed=s) for s in (0, 1)]
    return found


def variants(changes, **axes):
    return [
        config(**{**BIASED, **axes}, method="deyo", label=f"deyo {c}", settings={**DEYO, **c}, seed=s)
        for c in changes
        for s in (0, 1)
    ]


def numbers(table):
    return [[parts(c).mean for c in line] for line in table.cells]


def test_every_layout_is_found_by_name_and_says_what_it_is():
    for name in LAYOUTS:
        assert layout(name).name == name
        assert layout(name).help


def default(data):
    return default_layout(data).name


def test_default_layouts():
    fifteen = ["gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "snow", "fog", "contrast"]
    assert default(sweep(grid(corruption=CORRUPTIONS), lambda c: 0.5)) == "grid"
    assert default(sweep(grid(corruption=fifteen), lambda c: 0.5)) == "imagenet-c"
    assert (
        default(sweep([config(scenario="mixed", corruption=None, corruptions=CORRUPTIONS)], lambda c: 0.5)) == "mixed"
    )
    assert default(sweep(grid(benchmark=["imagenet-r"], corruption=[None]), lambda c: 0.5)) == "imagenet-r"
    assert default(biased([config(**BIASED)])) == "biased"
    assert default(biased(ablations(**BIASED))) == "ablation"
    assert default(biased(variants([{"patches": p} for p in (2, 3, 4)]))) == "sensitivity"
    assert default(biased(variants([{"entropy_copies": n} for n in (0, 4)]))) == "multiple-augmentations"
    assert (
        default(biased([config(**{**BIASED, "model": m}) for m in ("resnet50-bn", "resnet50-bn+plpd")]))
        == "pretraining"
    )


def test_quickstart_fits_a_hundred_columns():
    configs = grid(
        model=["small-resnet-bn", "small-resnet-gn"],
        method=["no-adapt", "tent", "deyo"],
        corruption=CORRUPTIONS,
        severity=[3, 5],
        seed=[0, 1, 2],
    )
    text = render(make_tables(sweep(configs, lambda c: 0.7 + 0.01 * c.seed)), "text", width=100)
    heads = [line for line in text.splitlines() if "Gauss." in line]
    assert len(heads) == 1
    assert heads[0].split() == ["method", *["Gauss.", "Defoc.", "Contr.", "Avg."] * 2]


def test_imagenet_c_has_the_papers_column_groups():
    data = sweep(grid(corruption=["fog", "gaussian_noise", "contrast", "zoom_blur"]), lambda c: 0.5)
    table = make_tables(data, Request(layout="imagenet-c"))[0]
    assert [(c.group, c.title) for c in table.columns] == [
        ("Noise", "Gauss."),
        ("Blur", "Zoom"),
        ("Weather", "Fog"),
        ("Digital", "Contr."),
        ("", "Avg."),
    ]


def test_biased_prints_two_decimals_and_names_the_average():
    data = biased([config(**BIASED, method=m, seed=s) for m in ("tent", "deyo") for s in (0, 1)])
    table = make_tables(data)[0]
    assert [c.title for c in table.columns] == ["Avg Acc", "Worst-Group Acc"]
    assert numbers(table)[0] == ["80.00", "70.00"]
    assert any("unweighted mean over groups" in n for n in table.notes)
    one = make_tables(data, Request(metrics=["group:g0", "worst"]))[0]
    assert numbers(one)[0] == ["90.00", "70.00"]


def test_mixed_puts_level_five_first():
    configs = [config(scenario="mixed", corruption=None, corruptions=CORRUPTIONS, severity=s, seed=0) for s in (3, 5)]
    table = make_tables(sweep(configs, lambda c: c.severity / 10))[0]
    assert [c.title for c in table.columns] == ["Level 5", "Level 3"]
    assert numbers(table) == [["50.0", "30.0"]]


def test_ablation_has_sixteen_rows_in_order_with_ticks():
    data = biased(ablations(**BIASED), lambda c: (0.9, 0.5 + 0.01 * int(c.label.split()[1])))
    table = make_tables(data)[0]
    assert [r.title for r in table.rows] == [
        {1: "(1) Tent", 6: "(6) PLPD", 11: "(11) Ent", 16: "(16) DeYO"}.get(n, f"({n})") for n in range(1, 17)
    ]
    assert [parts(c).mean for c in table.cells[5][:4]] == ["", "✓", "", "✓"]
    worst = [row[4] for row in table.cells]
    assert [c.best for c in worst] == [False] * 15 + [True]
    assert [c.second for c in worst] == [False] * 14 + [True, False]


def test_ablation_beside_the_paper():
    table = compared(biased(ablations(**BIASED)), Request(), paper=True)[0]
    papers = [row[5].summary.mean for row in table.cells]
    assert papers[0] == 55.29
    assert papers[7] == 75.95
    assert papers[15] == 73.14


def test_sensitivity_gives_each_setting_its_panel():
    changes = [
        {},
        {"patches": 2},
        {"patches": 6},
        {"plpd_threshold": 0.0},
        {"plpd_threshold": 0.7},
        {"transform": "pixel"},
    ]
    tables = compared(biased(variants(changes)), Request(layout="sensitivity"), paper=True)
    assert [t.stub for t in tables] == ["patches P×P", "τ_PLPD", "transform"]
    patches, threshold, transform = tables
    assert [r.title for r in patches.rows] == ["2", "4", "6"]
    assert [row[1].summary.mean for row in patches.cells] == [86.98, 88.16, 87.40]
    assert [row[4].summary.mean for row in threshold.cells] == [58.84, 74.18, 74.02]
    assert sorted(r.title for r in transform.rows) == ["patch", "pixel"]


def test_sensitivity_leaves_no_run_out():
    changes = [{}, {"patches": 2}, {"plpd_threshold": 0.1}, {"patches": 2, "plpd_threshold": 0.1}]
    data = biased(variants(changes) + [config(**BIASED, method="tent", seed=s) for s in (0, 1)])
    tables = make_tables(data, Request(layout="sensitivity"))
    shown = {e.run_id for t in tables for line in t.cells for c in line for e in c.entries}
    assert shown == {e.run_id for e in data.entries}


def test_multiple_augmentations_beside_the_paper():
    changes = [{"transform": "augmix"}, {"transform": "pixel"}, {"transform": "patch"}, {"entropy_copies": 4}]
    colored = {"benchmark": "colored-mnist", "model": "resnet18-bn"}
    data = biased(variants(changes) + variants(changes, **colored))
    table = compared(data, Request(), paper=True)[0]
    assert [c.group for c in table.columns] == ["waterbirds"] * 2 + ["colored-mnist"] * 2
    papers = [[parts(c).mean for c in line] for line, r in zip(table.cells, table.rows) if r.kind == "paper"]
    assert papers == [
        ["82.94", "60.75", "53.53", "4.19"],
        ["85.11", "64.17", "69.68", "50.78"],
        ["86.56", "74.18", "77.61", "65.51"],
        ["86.81", "74.45", "77.83", "65.58"],
    ]


def test_pretraining_beside_the_paper():
    configs = [
        config(**{**BIASED, "model": m}, method=method, seed=s)
        for m in ("resnet50-bn", "resnet50-bn+plpd")
        for method in ("tent", "deyo")
        for s in (0, 1)
    ]
    table = compared(biased(configs), Request(), paper=True)[0]
    papers = [[parts(c).mean for c in line] for line, r in zip(table.cells, table.rows) if r.kind == "paper"]
    assert papers == [["82.98", "52.90", "86.74", "74.18"], ["84.45", "58.72", "87.90", "77.66"]]


def test_efficiency_counts_samples_and_names_the_device():
    configs = grid(benchmark=["imagenet-c"], model=["resnet50-bn"], method=["no-adapt", "eata", "deyo"], seed=[0])
    counts = {"no-adapt": (50_000, 0), "eata": (50_000, 19_085), "deyo": (83_943, 25_836)}
    extra = lambda c: dict(zip(("forwards", "backwards"), counts[c.method]))  # noqa: E731
    table = compared(sweep(configs, lambda c: 0.5, extra=extra), Request(layout="efficiency"), paper=True)[0]
    deyo = next(i for i, r in enumerate(table.rows) if r.title == "DeYO")
    assert [parts(c).mean for c in table.cells[deyo][:5]] == ["no", "yes", "PLPD", "83,943", "25,836"]
    assert [parts(c).mean for c in table.cells[deyo + 1][3:6]] == ["83,943", "25,836", "114"]
    assert any("Fake GPU" in n for n in table.notes)
    assert not any(c.best for line in table.cells for c in line if c)


def with_samples(configs):
    plan = planned(configs)
    table = pa.Table.from_batches([samples(r) for r in plan])
    rows = [biased_row(r, (0.9, 0.7)) for r in plan]
    return table, from_runs(runs_table(rows), sweep="fake", planned=plan, samples=lambda ids: table)


def test_aurc_is_of_the_worst_group_of_the_network_as_it_was():
    configs = [
        config(**BIASED, method="no-adapt", seed=0),
        config(**BIASED, method="deyo", label="patch", settings={**DEYO, "learning_rate": 0.0}, seed=0),
        config(**BIASED, method="deyo", label="occ", settings={**DEYO, "transform": "occlusion"}, seed=0),
    ]
    table, data = with_samples(configs)
    found = compared(data, Request(layout="aurc"), paper=True)[0]
    assert [r.title for r in found.rows if r.kind == "value"] == [
        "Entropy (No adapt.)",
        "Entropy (patch)",
        "Entropy (occ)",
        "Patch PLPD (patch)",
        "Occlusion PLPD (occ)",
    ]
    papers = [line[0].summary.mean for r, line in zip(found.rows, found.cells) if r.kind == "paper"]
    assert papers == [56.30, 56.30, 14.75]
    assert any("Scored while adapting, not before: occ." in n for n in found.notes)
    frame = table.to_pandas()
    frame["right"] = frame.label == frame.prediction
    base = frame[frame.run_id == "0" * 16]
    worst = base.groupby("group").right.mean().idxmin()
    mine = frame[(frame.run_id == f"{1:016x}") & (frame.group == worst)].sort_values("position")
    by_title = {r.title: line for r, line in zip(found.rows, found.cells)}
    ours = by_title["Patch PLPD (patch)"][0].summary.mean
    assert ours == pytest.approx(100 * aurc(mine.plpd.to_numpy(np.float64), mine.right.to_numpy()))


def test_aurc_keeps_the_variants_of_one_benchmark_apart():
    variants = [{"preprocessing": "official"}, {"preprocessing": "group_dro"}]
    configs = [config(**BIASED, benchmark_options=o, method="no-adapt", seed=s) for o in variants for s in (0, 1)]
    _, data = with_samples(configs)
    found = make_tables(data, Request(layout="aurc"))[0]
    assert [r.title for r in found.rows] == ["Entropy (No adapt.)"] * 2
    assert [["official" in r.section, "group_dro" in r.section] for r in found.rows] == [[True, False], [False, True]]
    assert [line[0].summary.n for line in found.cells] == [2, 2]


def test_aurc_over_several_corruptions_is_the_mean_over_them():
    table, data = with_samples([config(method="no-adapt", corruption=c) for c in ("fog", "frost")])
    frame = table.to_pandas()
    second = frame.run_id == f"{1:016x}"
    frame.loc[second, "prediction"] = frame.loc[second, "label"].to_numpy()[::-1]
    frame["group"] = np.int16(-1)
    data = replace(data, samples=lambda ids: pa.Table.from_pandas(frame, schema=table.schema))
    line = make_tables(data, Request(layout="aurc"))[0].cells[0]
    runs = [part.sort_values("position") for _, part in frame.groupby("run_id")]
    each = [aurc(-run.entropy.to_numpy(np.float64), (run.label == run.prediction).to_numpy()) for run in runs]
    assert each[0] != each[1]
    assert line[0].summary.mean == pytest.approx(100 * np.mean(each))
    assert line[3].summary.mean == len(frame)


def test_aurc_without_samples_says_what_to_do():
    with pytest.raises(ConfigError, match="samples: true"):
        make_tables(biased([config(**BIASED)]), Request(layout="aurc"))


def test_per_seed_values_and_median():
    data = sweep(grid(seed=[0, 1, 2]), lambda c: [0.1, 0.5, None][c.seed])
    table = make_tables(data, Request(seeds=True))[0]
    assert [(r.title, parts(line[0]).mean) for r, line in zip(table.rows, table.cells)] == [
        ("Tent", "30.0"),
        ("seed 0", "10.0"),
        ("seed 1", "50.0"),
        ("seed 2", "missing"),
        ("median", "30.0"),
    ]
    assert not any(c.best for line in table.cells for c in line)


def test_row_helper_is_a_sound_runs_row():
    run = planned([config()])[0]
    assert set(row(run)) <= set(runs_table([]).column_names)


def test_by_default_an_ablation_beside_baselines_keeps_the_baselines():
    configs = [*ablations(**BIASED), *(config(**BIASED, method="no-adapt", settings={}, seed=s) for s in (0, 1))]
    assert default(biased(configs)) != "ablation"


def test_a_replicate_without_some_condition_is_in_no_mean_of_aurc() -> None:
    from types import SimpleNamespace

    from orchestrator.tables.data import AXES
    from orchestrator.tables.layouts.aurc import _cells

    def scored(seed: int, condition: str, right: int) -> Any:
        correct = np.arange(10) < right
        entry = SimpleNamespace(replicate=(seed, None), axes={**dict.fromkeys(AXES), "corruption": condition})
        return SimpleNamespace(entry=entry, score=np.arange(10.0), correct=correct, group=np.zeros(10))

    both = [scored(0, "fog", 4), scored(0, "snow", 6), scored(1, "fog", 8), scored(1, "snow", 8)]
    accuracy = _cells([*both, scored(2, "fog", 10)], None, 1)[2]
    assert accuracy.summary.mean == pytest.approx(100 * (0.5 + 0.8) / 2)
    assert (accuracy.summary.n, accuracy.summary.expected) == (2, 3)
    apart = _cells([both[0], both[3]], None, 1)[2]  # as many, but not the same
    assert (apart.summary.n, apart.summary.expected) == (0, 2)
