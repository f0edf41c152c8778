"""Generated corruptions: named in every caption, and never in one table with released ones."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from tables_fakes import config, grid, row, sweep, write_store

from deyo.benchmarks import registry
from deyo.types import ConfigError
from orchestrator.report.build import make_page, make_sections
from orchestrator.tables import generated
from orchestrator.tables.differences import compared
from orchestrator.tables.layouts import LAYOUTS
from orchestrator.tables.load import load
from orchestrator.tables.render import render
from orchestrator.tables.request import Request, make_tables

NOTE = "Corruptions generated here: image-folder."


def meeting(**axes):
    """Runs on released and on generated corruptions."""
    return grid(
        benchmark=axes.pop("benchmark", ["imagenet-c", "image-folder"]),
        model=["resnet50-bn"],
        method=["tent", "deyo"],
        corruption=["fog", "contrast"],
        seed=[0, 1],
        **axes,
    )


def benchmarks(table):
    return {e.axes["benchmark"] for line in table.cells for cell in line if cell is not None for e in cell.entries}


PIVOTS = [
    *(Request(layout=name) for name in LAYOUTS if name not in ("aurc", "proposition", "ablation")),
    Request(),
    Request(rows=["label"], cols=["corruption"]),
    Request(rows=["label"], cols=["benchmark"]),
    Request(rows=["benchmark", "label"]),
    Request(seeds=True),
]


@pytest.mark.parametrize(
    "request_", PIVOTS, ids=[r.layout or "-".join((*r.rows, *r.cols)) or "default" for r in PIVOTS]
)
def test_released_and_generated_stand_in_tables_of_their_own(request_):
    data = sweep(meeting(), lambda c: 0.5)
    tables = make_tables(data, request_)
    assert [benchmarks(t) for t in tables] == [{"imagenet-c"}, {"image-folder"}]
    assert [NOTE in t.notes for t in tables] == [False, True]
    assert NOTE in render(tables, "text")


def test_they_are_apart_in_comparisons_too():
    data = sweep(meeting(), lambda c: 0.5)
    for tables in (compared(data, paper=True), compared(data, other=data), compared(data, versus="deyo")):
        assert [benchmarks(t) <= {b} for t, b in zip(tables, ("imagenet-c", "image-folder"))] == [True, True]
        assert [NOTE in t.notes for t in tables] == [False, True]


def test_a_method_that_one_kind_lacks_gives_no_empty_table():
    configs = [c for c in meeting() if (c.benchmark, c.method) != ("image-folder", "tent")]
    (table,) = compared(sweep(configs, lambda c: 0.5), versus="deyo")
    assert "imagenet-c" in table.title


def test_one_kind_alone_is_one_table():
    both = sweep(meeting(benchmark=["digits-c", "image-folder"]), lambda c: 0.5)
    (table,) = make_tables(both)
    assert "Corruptions generated here: digits-c, image-folder." in table.notes
    (table,) = make_tables(sweep(meeting(benchmark=["imagenet-c", "cifar10-c"]), lambda c: 0.5))
    assert "generated here" not in " ".join(table.notes)


def test_images_without_a_corruption_are_neither():
    clean = config(benchmark="image-folder", corruption=None, severity=None, benchmark_options={"generate": False})
    (table,) = make_tables(sweep([clean, config(benchmark="image-folder")], lambda c: 0.5))
    assert NOTE in table.notes
    (table,) = make_tables(sweep([clean, config(benchmark="imagenet-c")], lambda c: 0.5))
    assert NOTE not in table.notes
    mixed = config(benchmark="image-folder", scenario="mixed", corruption=None, corruptions=("fog", "snow"))
    (table,) = make_tables(sweep([mixed], lambda c: 0.5))
    assert NOTE in table.notes


def test_a_layout_that_does_not_fit_one_kind_says_which():
    data = sweep(meeting(), lambda c: 0.5)
    with pytest.raises(ConfigError, match=r"imagenet-c alone.*--where benchmark=NAME"):
        make_tables(data, Request(layout="aurc"))


def test_the_list_of_benchmarks_is_true():
    for name in registry.BUILT_IN:
        assert registry.benchmark_info(name).generated == (name in generated.BENCHMARKS), name


def test_a_benchmark_of_another_package_says_it_itself(monkeypatch):
    described = {"mine-c": True, "theirs-c": False}
    announced = {
        name: SimpleNamespace(
            load=lambda flag=flag: SimpleNamespace(describe=lambda **options: SimpleNamespace(generated=flag))
        )
        for name, flag in described.items()
    }
    monkeypatch.setattr(registry, "_announced", lambda: announced)
    generated._generates.cache_clear()
    data = sweep([config(benchmark=name) for name in (*described, "unknown")], lambda c: 0.5)
    assert [generated.is_generated(e) for e in data.entries] == [True, False, False]
    generated._generates.cache_clear()


def test_the_report_names_them_in_each_section_with_plots(tmp_path):
    write_store(tmp_path, "s", meeting(), row, steps=4)
    data, results = load("s", str(tmp_path))
    page = make_page(data, make_sections(data, results))
    sections = dict(re.findall(r'<section id="(\w+)">(.*?)</section>', page, re.DOTALL))
    assert {name for name, html in sections.items() if NOTE in html} >= {"tables", "corruption", "stream", "speed"}
    assert "generated here" not in sections["provenance"]
