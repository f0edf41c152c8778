"""Reports of ablations and sensitivity sweeps: many variants stay readable, and baselines stand beside curves."""

from __future__ import annotations

import itertools

import pytest
from tables_fakes import config, sweep

from orchestrator.report import result_plots, style
from orchestrator.tables import names

SWITCHES = ("filter_entropy", "filter_plpd", "weight_entropy", "weight_plpd")


def ablations():
    configs = []
    for bits in itertools.product([False, True], repeat=4):
        settings = dict(zip(SWITCHES, bits))
        label = "deyo [" + ", ".join(f"{k}={str(v).lower()}" for k, v in settings.items()) + "]"
        configs += [
            config(method="deyo", label=label, settings=settings, corruption=c) for c in ("contrast", "gaussian_noise")
        ]
    return sweep(configs, lambda c: 0.5)


@pytest.mark.parametrize(
    ("bits", "title"), [((0, 0, 0, 0), "(1) ––––"), ((0, 1, 0, 1), "(6) –P–P"), ((1, 1, 1, 1), "(16) EPEP")]
)
def test_ablations_have_the_papers_row_numbers(bits, title):
    label = ", ".join(f"{name}={str(bool(bit)).lower()}" for name, bit in zip(SWITCHES, bits))
    assert names.title("label", f"deyo [{label}]") == title
    assert names.title("label", "deyo [filter_plpd=true]") == "deyo [filter_plpd=true]"


def test_sixteen_variants_leave_room_for_the_axes():
    with style.styled():
        (plot,) = result_plots.accuracy_by_corruption(ablations())
        style.to_svg(plot.figure)
        (axes,) = plot.figure.axes
        assert axes.get_window_extent().height / plot.figure.bbox.height > 0.4


def test_the_baseline_is_a_level_line_beside_the_curve():
    configs = [
        config(method="deyo", label=f"deyo [patches={p}]", settings={"patches": p, "plpd_threshold": 0.2})
        for p in (2, 3, 4)
    ]
    data = sweep([*configs, config(method="eata", settings={})], lambda c: 0.4 if c.method == "eata" else 0.5)
    with style.styled():
        (plot,) = result_plots.sensitivity_curves(data)
    levels = [line for line in plot.figure.axes[0].lines if line.get_label() == "EATA"]
    assert [line.get_ydata()[0] for line in levels] == [pytest.approx(40)]
    assert "Level lines: EATA." in plot.caption
