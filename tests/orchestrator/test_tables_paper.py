"""The paper's numbers: each is where its CSV says, and stands beside ours where it should."""

from __future__ import annotations

import csv
import math
import os
import re
from collections import Counter
from pathlib import Path

import pytest
from tables_fakes import config, grid, sweep

from orchestrator.tables.differences import compared
from orchestrator.tables.layouts import LAYOUTS, layout
from orchestrator.tables.paper import FOLDER, published
from orchestrator.tables.render import render
from orchestrator.tables.request import Request

NUMBER = re.compile(r"(?<![\w.,])(\d[\d,]*(?:\.\d+)?)(?:\$_\{\\pm(\d+\.\d+)\}\$)?")


def records() -> list[dict[str, str]]:
    found = []
    for path in sorted(FOLDER.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as lines:
            found += list(csv.DictReader(lines))
    return found


def paper_lines() -> list[str]:
    """The paper's source, line 1 first."""
    folder = os.environ.get("DEYO_TEST_PAPER")
    if folder is None and "DEYO_TEST_DATA" in os.environ:
        folder = str(Path(os.environ["DEYO_TEST_DATA"]).parent / "paper")
    found = sorted(Path(folder).glob("000_*.txt")) if folder else []
    if not found:
        pytest.skip("the paper's source is not at hand: DEYO_TEST_PAPER names its folder")
    return found[0].read_text(encoding="utf-8").split("\n")


def printed(line: str) -> list[tuple[str, str]]:
    """The values of a table's row with their ±, in order."""
    body = re.sub(r"\\(rowcolor|textcolor)\{[^}]*\}", "", line.partition("&")[2].split(r"\\")[0])
    body = re.sub(r"\\ding\{\d+\}", "", body)
    return [(v.replace(",", ""), s) for v, s in NUMBER.findall(body)]


def test_every_number_stands_on_its_line_of_the_paper_in_order():
    lines = paper_lines()
    by_line: dict[int, list[dict[str, str]]] = {}
    for r in records():
        if r["experiment"] != "T7":
            by_line.setdefault(int(r["line"]), []).append(r)
    for number, rows in by_line.items():
        assert [(r["value"], r["std"]) for r in rows] == printed(lines[number - 1]), f"line {number}"


def test_bold_and_underlined_are_the_papers():
    lines = paper_lines()
    for r in records():
        line = lines[int(r["line"]) - 1]
        bold = re.search(rf"\\textbf\{{{re.escape(r['value'])}(?![\d.])", line) is not None
        under = re.search(rf"\\underline\{{{re.escape(r['value'])}(?![\d.])", line) is not None
        if r["mark"]:
            assert {"bold": bold, "underlined": under}[r["mark"]], r
        elif Counter(v for v, _ in printed(line))[r["value"]] == 1:
            assert not bold, r
            assert not under, r


def test_every_table_row_of_the_paper_is_here():
    """No line with results between the first and the last table is left out."""
    lines, used = paper_lines(), {int(r["line"]) for r in records()}
    for number in range(430, 1232):
        line = lines[number - 1]
        values = [v for v, _ in printed(line) if "." in v] if "&" in line else []
        if values and "multicolumn" not in line and "cfrac" not in line and "theta" not in line.partition("&")[2]:
            assert number in used, f"line {number}: {line.strip()[:80]}"


def test_efficiency_counts_follow_from_the_papers_sums():
    lines = paper_lines()
    for r in records():
        if r["experiment"] == "T7":
            cells = [c.strip() for c in lines[int(r["line"]) - 1].split("&")]
            text = cells[{"forwards": 3, "backwards": 4, "seconds": 6}[r["metric"]]].replace(",", "")
            terms = [
                math.prod(map(int, re.findall(r"\d+", part))) for part in text.split("+") if re.search(r"\d", part)
            ]
            assert sum(terms) == int(r["value"]), r


def test_the_papers_averages_are_means_of_its_corruptions():
    cells: dict[tuple, dict[str, float]] = {}
    for p in published():
        if p.experiment in ("T1", "T5a", "T5b", "T8", "T9a", "T9b"):
            cells.setdefault((p.experiment, p.model, p.method), {})[p.corruption] = p.value
    assert len(cells) == 6 + 12 + 12 + 5 + 12 + 12
    for key, values in cells.items():
        average = values.pop("average")
        assert len(values) == 15
        assert abs(sum(values.values()) / 15 - average) <= 0.1 + 1e-9, key


def test_all_twenty_tables_are_here_and_have_a_layout():
    here = {p.experiment for p in published()}
    expected = {f"T{i}" for i in range(1, 21)} - {"T5", "T9"} | {"T5a", "T5b", "T9a", "T9b"}
    assert here == expected
    assert {e for name in LAYOUTS for e in layout(name).experiments} == expected


def paper_cell(text: str, row: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.strip().startswith(row))
    return line.split()


def imagenet_c(accuracy, **axes):
    corruptions = [p.corruption for p in published() if p.experiment == "T1" and p.method == "tent"][:-1]
    configs = grid(
        benchmark=["imagenet-c"],
        model=["resnet50-bn"],
        method=axes.pop("method", ["tent", "deyo"]),
        corruption=axes.pop("corruption", corruptions),
        severity=axes.pop("severity", [5]),
        seed=axes.pop("seed", [0, 1, 2]),
        **axes,
    )
    return sweep(configs, accuracy)


def test_our_number_stands_over_the_papers_and_the_difference_is_judged():
    data = imagenet_c(lambda c: {"tent": 0.431, "deyo": 0.600}[c.method] + 0.001 * c.seed)
    tables = compared(data, Request(), paper=True)
    assert tables[0].name == "imagenet-c"
    rows = [(r.title, r.kind) for r in tables[0].rows]
    assert rows[:3] == [("Tent", "value"), ("paper", "paper"), ("Δ", "difference")]
    average = [row[-1] for row in tables[0].cells]
    assert average[1].summary.mean == 43.1
    assert average[2].flag == ""
    assert average[4].summary.mean == 48.6
    assert average[5].summary.mean == pytest.approx(60.1 - 48.6)
    assert average[5].flag == "outside"
    assert "more than two standard errors" in render(tables, "text")


def test_without_any_spread_nothing_is_judged():
    data = imagenet_c(lambda c: 0.9, method=["tent"], seed=[0])
    flags = {c.flag for row in compared(data, Request(), paper=True)[0].cells for c in row if c is not None}
    assert flags == {""}


def test_an_average_over_some_corruptions_meets_the_papers_over_the_same():
    data = imagenet_c(lambda c: 0.4, corruption=["fog", "frost"])
    table = compared(data, Request(layout="imagenet-c"), paper=True)[0]
    assert [c.title for c in table.columns] == ["ours", "paper", "Δ"] * 3
    assert table.cells[0][-2].summary.mean == pytest.approx((57.7 + 41.5) / 2)


def test_severity_three_meets_table_eight_and_gn_has_no_mild_table():
    three = imagenet_c(lambda c: 0.5, severity=[3])
    table = compared(three, Request(), paper=True)[0]
    assert table.cells[1][-1].summary.mean == 59.2
    gn = sweep([config(benchmark="imagenet-c", model="resnet50-gn", seed=s) for s in (0, 1)], lambda c: 0.5)
    assert any("no number to compare" in n for n in compared(gn, Request(), paper=True)[0].notes)


def test_variants_are_not_taken_for_the_method():
    configs = [
        config(
            benchmark="waterbirds",
            scenario="biased",
            model="resnet50-bn",
            corruption=None,
            severity=None,
            method="deyo",
            label=label,
            seed=s,
        )
        for label in ("deyo", "deyo [τ=0.9]")
        for s in (0, 1)
    ]
    data = sweep(configs, lambda c: 0.8, extra=lambda c: {"average_accuracy": 0.8, "worst_group_accuracy": 0.7})
    table = compared(data, Request(layout="biased"), paper=True)[0]
    assert [c.title for c in table.columns] == ["ours", "paper", "Δ"] * 2
    assert [row[1] and row[1].summary.mean for row in table.cells] == [87.42, None]


SHIFT = {"scenario": "label-shift", "model": "vit-base-ln", "corruption": None, "severity": None}
VISDA = {**SHIFT, "benchmark": "visda-2021"}
RENDITIONS = {**SHIFT, "benchmark": "imagenet-r"}
NOISE = {**SHIFT, "benchmark": "imagenet-c", "corruption": "gaussian_noise", "severity": 5}
BIRDS = {**VISDA, "benchmark": "waterbirds", "scenario": "biased", "model": "resnet50-bn"}
COLORED = {**BIRDS, "benchmark": "colored-mnist", "model": "resnet18-bn"}
RESOLVED = {"imbalance_ratio": 500_000, "each_image_once": None}


def beside_paper(**axes):
    """The table of Tent and of DeYO beside the paper, and whether any number of the paper is in it."""
    configs = [config(**axes, method=m, seed=s) for m in ("tent", "deyo") for s in (0, 1)]
    metrics = {"average_accuracy": 0.8, "worst_group_accuracy": 0.7} if axes["scenario"] == "biased" else {}
    (table,) = compared(sweep(configs, lambda c: 0.5, extra=lambda c: metrics), Request(), paper=True)
    return table, "paper" in {c.kind for c in (*table.columns, *table.rows)}


@pytest.mark.parametrize(
    "axes",
    [
        {**NOISE, "scenario_options": RESOLVED},
        {**NOISE, "precision": "tf32", "protocol": "paper"},
        {**NOISE, "scenario": "batch-size-1", "batch_size": 1},
        {**NOISE, "model": "vit-base-ln+paper", "scenario_options": {**RESOLVED, "each_image_once": False}},
        {**RENDITIONS, "benchmark_options": {"entropy_classes": 1000}, "scenario_options": RESOLVED},
        {**VISDA, "benchmark_options": {"classes": 1000}, "scenario_options": {**RESOLVED, "each_image_once": True}},
        {**BIRDS, "benchmark_options": {"preprocessing": "official"}},
        {**COLORED, "benchmark_options": {"recipe": "official", "numpy_seed": 2024}},
        {**COLORED, "benchmark_options": {"recipe": "paper", "numpy_seed": 2024}},
    ],
)
def test_runs_of_the_papers_own_setting_have_its_numbers(axes):
    assert beside_paper(**axes)[1]


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({**NOISE, "scenario_options": {**RESOLVED, "imbalance_ratio": 1}}, '{"imbalance_ratio": 1}'),
        ({**NOISE, "scenario_options": {**RESOLVED, "each_image_once": True}}, '{"each_image_once": true}'),
        ({**NOISE, "model": "vit-base-ln+modern"}, "vit-base-ln+modern"),
        ({**RENDITIONS, "model": "vit-base-ln+modern"}, "vit-base-ln+modern"),
        ({**RENDITIONS, "benchmark_options": {"entropy_classes": 200}}, '"entropy_classes": 200'),
        ({**VISDA, "benchmark_options": {"classes": 200}}, '"classes": 200'),
        ({**BIRDS, "benchmark_options": {"preprocessing": "group_dro"}}, "group_dro"),
        ({**BIRDS, "model": "resnet50-bn+random-init"}, "random-init"),
        ({**BIRDS, "model": "resnet50-bn+epochs=4"}, "epochs=4"),
        ({**COLORED, "benchmark_options": {"numpy_seed": 7}}, '"numpy_seed": 7'),
        ({**NOISE, "batch_size": 8}, '"batch_size": 8'),
        ({**NOISE, "scenario": "batch-size-1"}, '"batch_size": 64'),
        ({**NOISE, "precision": "bf16"}, '"precision": "bf16"'),
    ],
)
def test_runs_of_another_setting_do_not(axes, said):
    table, there = beside_paper(**axes)
    assert not there
    assert any(n.startswith("The paper has no number to compare with") and said in n for n in table.notes)


def differences(table):
    """The flags of our numbers' differences to the paper's."""
    return {cell.flag for row in table.cells for cell in row if cell is not None and cell.signed}


def test_runs_over_a_part_of_the_stream_are_marked_and_not_judged():
    whole, part = (beside_paper(**NOISE, max_images=images)[0] for images in (None, 2000))
    assert differences(whole) == {"outside"}
    assert differences(part) == {"part"}
    legend = "§ ours is over the beginning of the stream only"
    assert legend in render([part], "text")
    assert legend not in render([whole], "text")


@pytest.mark.parametrize(
    ("model", "random"),
    [("resnet18-bn", True), ("resnet18-bn+random-init", True), ("resnet18-bn+pretrained-init", False)],
)
def test_a_start_from_random_weights_is_named_under_the_papers_numbers(model, random):
    table, there = beside_paper(**{**COLORED, "model": model})
    assert there
    assert any("start from ImageNet weights" in n and f"{model} on colored-mnist" in n for n in table.notes) == random
    assert not any("start from ImageNet weights" in n for n in beside_paper(**BIRDS)[0].notes)
