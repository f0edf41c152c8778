"""Expansion: products, defaults, variants and labels, merged duplicates, contradictions, identity."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from spec_fakes import CORRUPTIONS, FakeCatalog

from deyo.types import ConfigError
from orchestrator.expand import MAX_RUNS, expand, expansion
from orchestrator.identity import canonical, config_id, run_id
from orchestrator.spec import parse_spec
from orchestrator.types import RunConfig

GRID = """\
name: t
runs:
  - benchmark: digits-c
    models: [small-resnet-bn]
    methods: [tent]
"""


def runs_of(*overrides: str, text: str = GRID) -> list[RunConfig]:
    return expand(parse_spec(text, overrides, path="s.yaml"), FakeCatalog())


def error_of(*overrides: str, text: str = GRID) -> str:
    with pytest.raises(ConfigError) as caught:
        runs_of(*overrides, text=text)
    return str(caught.value)


def test_a_grid_is_the_product_of_its_lists() -> None:
    runs = runs_of(
        "seeds=[0, 1, 2]",
        "runs[0].corruptions=[contrast, shot_noise]",
        "runs[0].severities=[3, 5]",
        "runs[0].models=[small-resnet-bn, resnet50-gn]",
        "runs[0].methods=[no-adapt, tent, deyo]",
    )
    points = {(r.seed, r.corruption, r.severity, r.model, r.method) for r in runs}
    assert points == set(
        itertools.product(
            (0, 1, 2),
            ("contrast", "shot_noise"),
            (3, 5),
            ("small-resnet-bn", "resnet50-gn"),
            ("no-adapt", "tent", "deyo"),
        )
    )
    assert len(runs) == 72


def test_defaults() -> None:
    runs = runs_of()
    assert [r.corruption for r in runs] == [c for c in CORRUPTIONS if c != "spatter"], (
        "tuning corruptions only if named"
    )
    assert {(r.severity, r.seed, r.scenario, r.batch_size, r.protocol, r.precision) for r in runs} == {
        (5, 0, "mild", 64, "official", "tf32")
    }
    assert runs_of("runs[0].corruptions=[spatter]")[0].corruption == "spatter"


def test_pretraining_seeds_are_an_axis_only_of_networks_that_the_project_pretrains() -> None:
    runs = runs_of(
        "pretrain_seeds=[1, 2]", "runs[0].models=[small-resnet-bn, resnet50-gn]", "runs[0].corruptions=[contrast]"
    )
    assert [(r.model, r.pretrain_seed) for r in runs] == [
        ("small-resnet-bn", 1),
        ("small-resnet-bn", 2),
        ("resnet50-gn", None),
    ]


def test_settings_come_from_the_spec_the_grid_and_the_entry_the_nearest_wins() -> None:
    text = GRID.replace("[tent]", "[deyo, {name: deyo, label: own, settings: {patches: 6}}]") + (
        "    corruptions: [contrast]\n"
        "    settings: {deyo: {patches: 3}}\n"
        "settings: {deyo: {patches: 2, plpd_threshold: 0.5}}\n"
    )
    plain, own = runs_of(text=text)
    assert (plain.settings["patches"], plain.settings["plpd_threshold"], plain.label) == (3, 0.5, "deyo")
    assert (own.settings["patches"], own.settings["plpd_threshold"], own.label) == (6, 0.5, "own")


def test_lists_among_settings_are_axes_with_labels() -> None:
    runs = runs_of(
        "runs[0].corruptions=[contrast]",
        "runs[0].methods=[{name: deyo, settings: {filter_plpd: [false, true], plpd_threshold: [0.2, 0.3]}}]",
    )
    assert [r.label for r in runs] == [
        "deyo [filter_plpd=false, plpd_threshold=0.2]",
        "deyo [filter_plpd=false, plpd_threshold=0.3]",
        "deyo [filter_plpd=true, plpd_threshold=0.2]",
        "deyo [filter_plpd=true, plpd_threshold=0.3]",
    ]
    assert [r.settings["filter_plpd"] for r in runs] == [False, False, True, True]


def test_an_axis_can_be_set_from_the_command_line_alone() -> None:
    runs = runs_of(
        "settings.deyo.plpd_threshold=[0.2, 0.3]", "runs[0].methods=[deyo]", "runs[0].corruptions=[contrast]"
    )
    assert [r.label for r in runs] == ["deyo [plpd_threshold=0.2]", "deyo [plpd_threshold=0.3]"]


def test_a_variant_is_never_labelled_like_the_plain_method() -> None:
    runs = runs_of(
        "runs[0].corruptions=[contrast]", "runs[0].methods=[deyo, {name: deyo, settings: {plpd_threshold: 0.5}}]"
    )
    assert [r.label for r in runs] == ["deyo", "deyo [plpd_threshold=0.5]"]


def test_mixed_streams_span_the_corruptions_in_the_benchmarks_order() -> None:
    (run,) = runs_of(
        "runs[0].scenario=mixed", "runs[0].corruptions=[contrast, gaussian_noise]", "runs[0].severities=[3]"
    )
    assert (run.corruption, run.severity, run.corruptions) == (None, 3, ("gaussian_noise", "contrast"))


def test_continual_streams_keep_the_written_order_and_differ_by_reset() -> None:
    (run,) = runs_of("runs[0].scenario=continual", "runs[0].corruptions=[contrast, gaussian_noise]")
    assert run.corruptions == ("contrast", "gaussian_noise")


def test_scenario_options_are_axes_and_part_of_identity() -> None:
    runs = runs_of(
        "runs[0].scenario=label-shift",
        "runs[0].scenario_options={imbalance_ratio: [1, 500000]}",
        "runs[0].corruptions=[contrast]",
    )
    assert [r.scenario_options["imbalance_ratio"] for r in runs] == [1, 500000]
    assert config_id(runs[0]) != config_id(runs[1])
    (default,) = runs_of("runs[0].scenario=label-shift", "runs[0].corruptions=[contrast]")
    assert config_id(default) == config_id(runs[1]), "written or left out, the default is one run"


def test_batch_size_follows_the_scenario() -> None:
    runs = runs_of("runs[0].scenario=[mild, batch-size-1]", "runs[0].corruptions=[contrast]")
    assert [(r.scenario, r.batch_size) for r in runs] == [("mild", 64), ("batch-size-1", 1)]
    assert runs[1].settings["learning_rate"] < runs[0].settings["learning_rate"]
    message = error_of("runs[0].scenario=batch-size-1", "runs[0].batch_size=64")
    assert "contradicts the scenario batch-size-1" in message


def test_duplicates_are_merged_whatever_their_spelling() -> None:
    text = (
        GRID.replace(
            "[tent]",
            "[{name: deyo, settings: {learning_rate: 1e-3, patches: 4}}, "
            "{name: deyo, settings: {patches: 4.0, learning_rate: 0.001}}, "
            "{name: deyo, label: same, settings: {learning_rate: 0.001}}]",
        )
        + "    corruptions: [contrast]\n"
    )
    (only,) = expansion(parse_spec(text), FakeCatalog())
    assert only.duplicates == 2
    assert only.aliases == ("same",) or "same" in only.aliases
    (seeds,) = expansion(parse_spec(GRID, ["seeds=[4, 4]", "runs[0].corruptions=[contrast]"]), FakeCatalog())
    assert seeds.duplicates == 1


def test_samples_are_kept_if_any_duplicate_asks_for_them() -> None:
    text = (
        GRID
        + "    corruptions: [contrast]\n"
        + GRID.split("runs:\n")[1]
        + "    corruptions: [contrast]\n    samples: true\n"
    )
    (only,) = expansion(parse_spec(text), FakeCatalog())
    assert only.config.record_samples


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["runs[0].methods=[deyoo]"], ["runs[0].methods[0]", "did you mean 'deyo'"]),
        (["runs[0].benchmark=digits"], ["runs[0].benchmark", "did you mean 'digits-c'"]),
        (["runs[0].models=[small-resnet]"], ["runs[0].models", "small-resnet-bn"]),
        (["runs[0].scenario=biased"], ["digits-c has no scenario 'biased'", "mild"]),
        (["runs[0].scenario=mildd"], ["did you mean 'mild'"]),
        (["runs[0].corruptions=[contrst]"], ["runs[0].corruptions[0]", "did you mean 'contrast'"]),
        (["runs[0].benchmark_options={test_shar: 1}"], ["test_shar", "test_share"]),
        (["runs[0].scenario_options={imbalance_ratio: 5}"], ["imbalance_ratio"]),
        (["settings.tent.learning_rat=1"], ["settings.tent.learning_rat", "learning_rate"]),
        (["settings.tnt.learning_rate=1"], ["settings.tnt", "did you mean 'tent'"]),
        (["settings.tent.learning_rate=[]"], ["empty list"]),
        (["settings.tent.learning_rate={a: 1}"], ["a value"]),
        (["settings.tent.learning_rate=fast"], ["settings.tent.learning_rate", "write a number"]),
        (["data.digits=/x"], ["data.digits", "digits-c"]),
        (["data.digits-c=/x"], ["data.digits-c", "reads no folder"]),
        (["runs[0].benchmark=colored-digits", "runs[0].corruptions=[contrast]"], ["no such axis"]),
        (["runs[0].benchmark=colored-digits", "runs[0].severities=[3]"], ["no such axis"]),
        (["runs[0].models=['file:net.safetensors']", "runs[0].benchmark=colored-digits"], []),
    ],
)
def test_wrong_names_say_where_and_what_was_meant(overrides: list[str], words: list[str]) -> None:
    if not words:
        assert runs_of(*overrides)
        return
    message = error_of(*overrides)
    for word in words:
        assert word in message


def test_errors_in_settings_name_the_line_of_the_setting() -> None:
    text = GRID + "settings:\n  tent:\n    learning_rat: 3\n"
    assert error_of(text=text).startswith("s.yaml:8: settings.tent.learning_rat")


def test_products_beyond_the_limit_are_refused_by_arithmetic() -> None:
    axis = str(list(range(1000)))
    message = error_of(
        f"seeds={axis}",
        "runs[0].methods=[{name: deyo, settings: {patches: " + axis + ", plpd_threshold: " + axis + "}}]",
    )
    assert f"{MAX_RUNS:,}" in message
    assert "1,000,000,000" in message


def test_settings_are_resolved_once_for_each_distinct_question() -> None:
    catalog = FakeCatalog()
    expand(parse_spec(GRID, ["seeds=[0, 1, 2, 3, 4, 5]", "runs[0].severities=[1, 2, 3, 4, 5]"]), catalog)
    assert catalog.questions == 1


class TestIdentity:
    run = runs_of("runs[0].corruptions=[contrast]")[0]

    def test_it_is_sixteen_hex_digits_and_stable(self) -> None:
        identity = run_id(self.run, weights_id="w", numerics_version=1)
        assert len(identity) == 16
        assert int(identity, 16) >= 0
        assert identity == run_id(replace(self.run), weights_id="w", numerics_version=1)

    def test_every_field_but_the_label_decides(self) -> None:
        changed = {
            "benchmark": "x",
            "scenario": "x",
            "model": "x",
            "method": "x",
            "settings": {"learning_rate": 1.0},
            "seed": 9,
            "batch_size": 9,
            "corruption": "x",
            "severity": 1,
            "corruptions": ("x",),
            "benchmark_options": {"x": 1},
            "scenario_options": {"x": 1},
            "pretrain_seed": 9,
            "protocol": "paper",
            "precision": "bf16",
            "max_images": 9,
            "record_samples": True,
        }
        assert changed.keys() | {"label"} == set(RunConfig.__dataclass_fields__)
        mine = run_id(self.run, weights_id="w", numerics_version=1)
        for name, value in changed.items():
            other = replace(self.run, **{name: value})
            assert run_id(other, weights_id="w", numerics_version=1) != mine, name
        assert run_id(replace(self.run, label="x"), weights_id="w", numerics_version=1) == mine

    def test_weights_and_numerics_decide(self) -> None:
        identities = {run_id(self.run, weights_id=w, numerics_version=n) for w in "ab" for n in (1, 2)}
        assert len(identities) == 4

    def test_the_folder_of_a_weights_file_does_not_matter(self) -> None:
        here, there = (replace(self.run, model=f"file:{p}net.safetensors") for p in ("/a/", "b/"))
        assert config_id(here) == config_id(there)
        assert config_id(here) != config_id(replace(self.run, model="file:/a/other.safetensors"))

    def test_numbers_have_one_form(self) -> None:
        assert canonical({"b": 1.0, "a": (2, -0.0)}) == {"b": 1, "a": [2, 0]}
        assert canonical(True) is True
        assert config_id(replace(self.run, settings={"a": 1, "b": 2.0})) == config_id(
            replace(self.run, settings={"b": 2, "a": 1.0})
        )


def test_two_methods_of_a_grid_need_two_labels() -> None:
    message = error_of("runs[0].methods=[{name: tent, label: A}, {name: deyo, label: A}]")
    assert "label 'A' already stands for another entry" in message
    assert runs_of("runs[0].methods=[{name: tent, label: A}, {name: tent, label: A}]")  # the same runs, written twice


def test_labels_tell_settings_apart_that_differ_in_their_last_digits() -> None:
    values = (0.1234567, 0.1234568)
    runs = runs_of(f"runs[0].methods=[{{name: tent, settings: {{learning_rate: {list(values)}}}}}]")
    assert {r.label for r in runs} == {f"tent [learning_rate={v}]" for v in values}
