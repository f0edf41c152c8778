"""Pivots: what stands where, what is best, what is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables_fakes import CORRUPTIONS, config, grid, planned, runs_table, sweep

from deyo.types import ConfigError
from orchestrator.tables.cells import number, parts
from orchestrator.tables.data import from_runs
from orchestrator.tables.metrics import metric
from orchestrator.tables.pivot import PivotOptions, pivot
from orchestrator.tables.request import Request, make_tables
from orchestrator.types import Failure, FailureClass

ACCURACY = metric("accuracy")
METHODS = ("no-adapt", "tent", "deyo")


def table(data, rows=("label",), cols=("corruption",), **options):
    return pivot(data, rows, cols, [ACCURACY], PivotOptions(**options))


def cell(of, row: str, column: str, section: str = ""):
    i = next(i for i, r in enumerate(of.rows) if r.title == row and (not section or r.section == section))
    j = next(j for j, c in enumerate(of.columns) if c.title == column)
    return of.cells[i][j]


def full(**changes):
    return grid(**{"method": METHODS, "corruption": CORRUPTIONS, "seed": [0, 1, 2], **changes})


def by_method(c):
    return {"no-adapt": 0.45, "tent": 0.72, "deyo": 0.77}[c.method] + 0.01 * c.seed


def test_rows_columns_and_average_in_the_papers_order():
    found = table(sweep(full(), by_method))
    assert [r.title for r in found.rows] == ["No adapt.", "Tent", "DeYO"]
    assert [c.title for c in found.columns] == ["Gauss.", "Defoc.", "Contr.", "Avg."]
    assert parts(cell(found, "Tent", "Avg.")).mean == "73.0"
    assert parts(cell(found, "Tent", "Avg.")).std == "1.0"


def test_axes_that_are_not_shown_split_the_rows():
    data = sweep(full(model=["small-resnet-bn", "small-resnet-gn"], protocol=["official", "paper"]), by_method)
    found = table(data)
    assert list(dict.fromkeys(r.section for r in found.rows)) == [
        "small-resnet-bn, official protocol",
        "small-resnet-bn, paper protocol",
        "small-resnet-gn, official protocol",
        "small-resnet-gn, paper protocol",
    ]
    assert all(c.summary.expected == 3 for row in found.cells for c in row)
    assert any("MIXED protocols: official, paper" in n for n in found.notes)


def test_missing_and_failed_seeds_show_in_their_cell_and_the_average():
    configs = full()
    at = configs.index(config(method="tent", corruption="contrast", seed=2))
    data = sweep(
        configs,
        lambda c: None if (c.method, c.corruption, c.seed) == ("deyo", "contrast", 1) else by_method(c),
        failed=[at],
    )
    found = table(data)
    assert parts(cell(found, "DeYO", "Contr.")).short == "n=2/3"
    assert parts(cell(found, "DeYO", "Avg.")).short == "n=2/3"
    assert parts(cell(found, "DeYO", "Gauss.")).short == ""
    assert parts(cell(found, "Tent", "Contr.")).short == "n=2/3, 1 failed"


def test_nothing_yet_is_a_dash_and_not_planned_is_empty():
    configs = [c for c in full() if (c.method, c.corruption) != ("tent", "contrast")]
    found = table(sweep(configs, lambda c: None if c.method == "deyo" else by_method(c)))
    assert parts(cell(found, "DeYO", "Gauss.")).mean == "–"
    assert parts(cell(found, "DeYO", "Gauss.")).short == "n=0/3"
    assert cell(found, "Tent", "Contr.") is None


def test_an_average_over_fewer_corruptions_than_its_neighbours_is_not_shown():
    configs = [c for c in full() if (c.method, c.corruption) != ("tent", "contrast")]
    found = table(sweep(configs, by_method))
    assert cell(found, "Tent", "Avg.").summary.mean is None
    assert parts(cell(found, "Tent", "Avg.")).short == "n=0/3"
    hidden = table(sweep(configs, by_method), cols=())
    assert cell(hidden, "Tent", "accuracy").summary.mean is None


def test_without_a_plan_seeds_of_other_cells_count_as_missing():
    data = sweep(full(), lambda c: None if (c.method, c.seed) == ("deyo", 1) else by_method(c), with_plan=False)
    found = table(data)
    assert parts(cell(found, "DeYO", "Gauss.")).short == "n=2/3"
    assert any("plan is not at hand" in n for n in found.notes)


def test_nan_and_collapse_are_visible():
    data = sweep(
        full(),
        lambda c: math.nan if (c.method, c.seed) == ("tent", 0) else by_method(c),
        extra=lambda c: {"collapsed": c.method == "deyo" and c.seed == 0, "nan_steps": int(c.method == "no-adapt")},
    )
    found = table(data)
    assert parts(cell(found, "Tent", "Gauss.")).short == "n=2/3, 1 NaN"
    assert parts(cell(found, "DeYO", "Gauss.")).marks == "†"
    assert parts(cell(found, "No adapt.", "Gauss.")).marks == "‡"


def test_weighted_average_shows_only_where_it_differs():
    sizes = dict(zip(CORRUPTIONS, (1000, 1000, 4000)))
    uneven = sweep(
        full(),
        lambda c: by_method(c) - 0.1 * CORRUPTIONS.index(c.corruption),
        extra=lambda c: {"images": sizes[c.corruption]},
    )
    assert [c.title for c in table(uneven).columns][-2:] == ["Avg.", "Avg. by images"]
    even = sweep(full(), lambda c: 0.1 + 1.1 * by_method(c) / 7, extra=lambda c: {"images": 1797})
    assert [c.title for c in table(even).columns][-1] == "Avg."
    assert "Avg. by images" in [c.title for c in table(even, averages="both").columns]
    assert "Avg." not in [c.title for c in table(even, averages="none").columns]


@given(st.lists(st.integers(0, 40), min_size=2, max_size=6), st.sampled_from([1, 2]))
def test_best_is_every_cell_that_prints_as_the_best(tenths, scale):
    accuracies = [0.5 + t / (2000 * scale) for t in tenths]
    methods = [f"method {i}" for i in range(len(tenths))]
    data = sweep(grid(method=methods, seed=[0]), lambda c: accuracies[methods.index(c.method)])
    found = table(data)
    printed = [float(number(row[0].summary.mean, row[0])) for row in found.cells]
    assert [row[0].best for row in found.cells] == [p == max(printed) for p in printed]


def test_lower_is_better_where_it_is():
    data = sweep(
        grid(method=METHODS, seed=[0]), by_method, extra=lambda c: {"seconds": 9.0 if c.method == "tent" else 5.0}
    )
    found = pivot(data, ["label"], [], [metric("seconds")])
    assert [row[0].best for row in found.cells] == [True, False, True]


def test_methods_across_compete_along_the_row():
    found = table(sweep(full(), by_method), rows=("corruption",), cols=("label",))
    assert [c.best for c in found.cells[0]] == [False, False, True]
    assert found.rows[-1].title == "Avg."
    assert found.cells[-1][2].best


def test_metrics_side_by_side():
    data = sweep(full(), by_method)
    found = pivot(data, ["label"], ["severity"], [ACCURACY, metric("forwards")])
    assert [(c.group, c.title) for c in found.columns] == [("severity 5", "accuracy"), ("severity 5", "forwards")]


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("weights_sha256", {0: "a" * 64, 1: "b" * 64}, "MIXED weights of small-resnet-bn: aaaaaaaa, bbbbbbbb"),
        ("data_fingerprint", {0: "c" * 32, 1: "d" * 32}, "MIXED data of digits-c gaussian_noise 5"),
        ("numerics_version", {0: 1, 1: 2}, "MIXED versions of the engine's numerics: 1, 2"),
    ],
)
def test_a_cell_that_mixes_stamps_is_refused_or_says_so(column, values, said):
    data = sweep(grid(seed=[0, 1]), lambda c: 0.5, extra=lambda c: {column: values[c.seed]})
    with pytest.raises(ConfigError, match="--allow-mixed") as refused:
        table(data, cols=())
    assert said in str(refused.value)
    allowed = table(data, cols=(), allow_mixed=True)
    assert any(said in note for note in allowed.notes)


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("libraries", ['{"torch": "2.11.0"}', '{"torch": "2.14.1"}'], "MIXED torch versions: 2.11.0, 2.14.1."),
        ("device_name", ["A100", "H100"], "MIXED devices: A100, H100."),
        ("weights_source", ["timm", "torchvision"], "MIXED sources of the weights of {model}: timm, torchvision."),
        ("code_digest", ["a" * 16, "b" * 16], "MIXED engine code (digest): aaaaaaaa, bbbbbbbb."),
    ],
)
def test_runs_made_differently_are_averaged_and_the_caption_says_so(column, values, said):
    def notes(*made):
        data = sweep(grid(seed=[0, 1]), lambda c: 0.5, extra=lambda c: {column: made[c.seed]})
        return table(data, cols=()).notes

    assert said.format(model="small-resnet-bn") in notes(*values)
    assert not any("MIXED" in note for note in notes(values[0], values[0]))
    assert not any("MIXED" in note for note in notes(None, values[0]))


def test_the_same_weights_in_files_of_other_names_are_no_mixture():
    """The network that a sweep pretrained lies in the cache at first, and beside its results afterwards."""
    names = ["net-0a3f-17d2-seed0.safetensors", "net-501b-seed0-bcb7.safetensors"]
    data = sweep(grid(seed=[0, 1]), lambda c: 0.5, extra=lambda c: {"weights_source": names[c.seed]})
    assert not any("MIXED" in note for note in table(data, cols=()).notes)
    other = sweep(grid(seed=[0, 1]), lambda c: 0.5, extra=lambda c: {"weights_source": [*names, "timm"][1 + c.seed]})
    assert any("MIXED sources of the weights" in note for note in table(other, cols=()).notes)


def test_networks_of_different_sources_are_no_mixture_and_devices_are_named_once():
    configs = grid(model=["small-resnet-bn", "small-resnet-gn"], seed=[0])
    source = {"small-resnet-bn": "torchvision", "small-resnet-gn": "timm"}
    data = sweep(
        configs, lambda c: 0.5, extra=lambda c: {"weights_source": source[c.model], "device_name": source[c.model]}
    )
    found = pivot(data, ["model"], [], [metric("seconds")])
    assert [note.partition(";")[0] for note in found.notes if "MIXED" in note] == ["MIXED devices: torchvision, timm"]


def test_weights_of_different_pretraining_seeds_are_no_mixture():
    configs = [config(seed=s, pretrain_seed=s) for s in range(3)]
    data = sweep(configs, lambda c: 0.5, extra=lambda c: {"weights_sha256": str(c.seed) * 64})
    assert table(data, cols=()).cells[0][0].summary.n == 3


def test_precision_is_never_averaged_over():
    data = sweep(grid(precision=["float32", "bf16"], seed=[0, 1]), lambda c: 0.5)
    assert [r.section for r in table(data, cols=()).rows] == ["float32", "bf16"]


def test_caption_names_protocol_precision_weights_data_and_seeds():
    notes = " ".join(table(sweep(full(), by_method)).notes)
    for said in (
        "Protocol: official",
        "precision: float32",
        "small-resnet-bn abababab",
        "digits-c",
        "seeds 0, 1, 2",
        "ddof 1",
    ):
        assert said in notes


def test_axis_inside_settings():
    configs = [config(method="deyo", settings={"plpd_threshold": t}, seed=s) for t in (0.3, 0.2) for s in (0, 1)]
    found = table(sweep(configs, lambda c: c.settings["plpd_threshold"]), rows=("settings.plpd_threshold",), cols=())
    assert [r.title for r in found.rows] == ["0.2", "0.3"]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"rows": ["metod"]}, "no axis 'metod'"),
        ({"rows": ["seed"]}, "--seeds"),
        ({"rows": ["label"], "cols": ["label"]}, "both in --rows and --cols"),
        ({"where": ["method=tend"]}, "the sweep has method: no-adapt, tent, deyo"),
        ({"where": ["method"]}, "AXIS=VALUE"),
        ({"layout": "imagenet"}, "did you mean imagenet-"),
        ({"metrics": ["acuracy"]}, "accuracy"),
        ({"layout": "grid", "rows": ["label"]}, "--layout has its own"),
        ({"ddof": 2}, "--ddof 2"),
        ({"averages": "some"}, "auto, plain, weighted, both, none"),
    ],
)
def test_errors_teach(request_, said):
    data = sweep(full(), by_method)
    with pytest.raises(ConfigError) as error:
        make_tables(data, Request(**request_))
    assert said in str(error.value)


def test_merged_duplicates_stand_under_each_label():
    from dataclasses import replace

    from tables_fakes import planned, row, runs_table

    from orchestrator.tables.data import from_runs

    plan = [replace(r, aliases=("DeYO (16)",)) for r in planned(grid(method=["deyo"], seed=[0, 1]))]
    data = from_runs(runs_table([row(r) for r in plan]), planned=plan)
    assert [r.title for r in table(data, cols=()).rows] == ["DeYO", "DeYO (16)"]


def test_a_stale_run_stands_in_for_its_successor_and_is_named():
    from dataclasses import replace

    from tables_fakes import planned, row, runs_table

    from orchestrator.tables.data import from_runs

    plan = [replace(r, stamps={"config_id": f"c{i}"}) for i, r in enumerate(planned(grid(seed=[0, 1])))]
    rows = [row(plan[0], config_id="c0"), row(plan[1], run_id="older", config_id="c1", accuracy=0.7)]
    found = table(from_runs(runs_table(rows), planned=plan), cols=())
    assert found.cells[0][0].summary.n == 2
    assert any("STALE: 1 of 2 runs" in n for n in found.notes)
    unplanned = from_runs(runs_table([*rows, row(plan[1], config_id="c1", finished_at="2027", accuracy=0.9)]))
    assert sorted(e.row["accuracy"] for e in unplanned.entries) == [0.5, 0.9]


def test_a_clash_says_what_to_type():
    configs = [config(method="deyo", label=f"deyo [patches={p}]", settings={"patches": p}) for p in (1, 2)]
    with pytest.raises(ConfigError) as caught:
        make_tables(sweep(configs, lambda c: 0.5), Request(rows=("method",), cols=("corruption",)))
    assert "--rows label)" in str(caught.value)
    assert "--where 'label=deyo [patches=1]')" in str(caught.value)


def test_runs_that_were_stopped_are_missing_and_not_failed():
    plan = planned(grid(seed=[0, 1]))
    kinds = {plan[0].run_id: FailureClass.CANCELLED, plan[1].run_id: FailureClass.ERROR}
    failures = {run_id: Failure(kind=kind, message="m") for run_id, kind in kinds.items()}
    data = from_runs(runs_table([]), planned=plan, failures=failures)
    assert [e.status for e in data.entries] == ["missing", "failed"]
