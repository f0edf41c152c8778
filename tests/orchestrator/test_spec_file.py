"""Spec files and overrides: lines in errors, YAML as data, the override grammar."""

from __future__ import annotations

import json

import pytest
import yaml

from deyo.types import ConfigError
from orchestrator.overrides import apply_overrides
from orchestrator.spec import load_spec, parse_spec, resolved_spec
from orchestrator.specfile import parse_document, parse_value

SPEC = """\
name: quickstart
seeds: [0, 1, 2]
runs:
  - benchmark: digits-c
    scenario: mild
    corruptions: [gaussian_noise, contrast]
    severities: [3, 5]
    models: [small-resnet-bn]
    methods: [no-adapt, tent, deyo]
settings:
  deyo: {plpd_threshold: 0.2}
smoke:
  runs[*].corruptions: [contrast]
"""


def error_of(text: str, overrides: list[str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_spec(text, overrides or [], path="sweep.yaml")
    return str(caught.value)


def test_the_issues_example_is_a_spec() -> None:
    spec = parse_spec(SPEC)
    assert spec.name == "quickstart"
    assert spec.seeds == [0, 1, 2]
    assert [m.name for m in spec.runs[0].methods] == ["no-adapt", "tent", "deyo"]
    assert spec.settings == {"deyo": {"plpd_threshold": 0.2}}


def test_plain_values_are_those_of_safe_load() -> None:
    text = "a: 1\nb: [x, 2.5, true, null]\nc: {d: 'no', e: no}\nbase: &b {x: 1, y: 2}\nf: {<<: *b, y: 3}\n"
    assert parse_document(text, "f").tree == yaml.safe_load(text)


@pytest.mark.parametrize(("text", "value"), [("1e-3", 0.001), ("1E3", 1000.0), ("-2e+4", -2e4), ("0.001", 0.001)])
def test_exponents_without_a_dot_are_numbers(text: str, value: float) -> None:
    assert parse_value(text, "--set") == value


@pytest.mark.parametrize(
    ("broken", "line", "words"),
    [
        (SPEC.replace("scenario:", "scenaro:"), 5, ["runs[0].scenaro", "unknown key", "did you mean 'scenario'"]),
        (SPEC.replace("seeds: [0, 1, 2]", "seeds: [0, x, 2]"), 2, ["seeds[1]", "whole number", "'x'"]),
        (SPEC.replace("seeds: [0, 1, 2]", "seeds: 0"), 2, ["seeds", "a list"]),
        (SPEC.replace("[3, 5]", "[3, 9]"), 7, ["runs[0].severities[1]", "9"]),
        (SPEC.replace("settings:", "setings:"), 10, ["setings", "did you mean 'settings'"]),
        (SPEC.replace("    models: [small-resnet-bn]\n", ""), 4, ["runs[0].models", "missing"]),
        (SPEC.replace("models: [small-resnet-bn]", "models: []"), 8, ["runs[0].models", "empty"]),
        (SPEC.replace("[no-adapt, tent, deyo]", "[{name: deyo, setings: {}}]"), 9, ["setings", "did you mean"]),
        (SPEC + "seeds: [3]\n", 14, ["seeds", "written twice"]),
        (SPEC + "samples: maybe\n", 14, ["samples", "true or false"]),
        (SPEC + "resources: {gpus: two}\n", 14, ["resources.gpus", "whole number"]),
        (SPEC + "protocol: papr\n", 14, ["protocol", "'papr'", "'official' or 'paper'"]),
        (SPEC + "bad: [1, 2\n", 15, ["not valid YAML"]),
    ],
)
def test_errors_name_file_line_key_and_what_is_allowed(broken: str, line: int, words: list[str]) -> None:
    message = error_of(broken)
    assert f"sweep.yaml:{line}:" in message
    for word in words:
        assert word in message


def test_several_errors_come_together() -> None:
    message = error_of(SPEC.replace("seeds: [0, 1, 2]", "seeds: []").replace("settings:", "setings:"))
    assert len(message.splitlines()) == 2


def test_overrides_change_lists_mappings_and_every_grid() -> None:
    document = parse_document(SPEC, "f")
    changed = apply_overrides(
        document,
        ["seeds=[7]", "runs[0].methods=[deyo]", "settings.tent.learning_rate=1e-3", "runs[*].batch_size=8"],
    ).tree
    assert changed["seeds"] == [7]
    assert changed["runs"][0]["methods"] == ["deyo"]
    assert changed["settings"]["tent"] == {"learning_rate": 0.001}
    assert changed["runs"][0]["batch_size"] == 8
    assert document.tree["seeds"] == [0, 1, 2], "the document itself stays as it was"


def test_the_last_override_of_a_key_counts() -> None:
    assert parse_spec(SPEC, ["seeds=[1]", "seeds=[2]"]).seeds == [2]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("seeds", ["KEY=VALUE"]),
        ("=3", ["KEY=VALUE"]),
        ("runs[4].methods=[deyo]", ["1 entries", "no [4]"]),
        ("runs.methods=[deyo]", ["runs is not a mapping", "runs[0].methods"]),
        ("seeds.x=1", ["seeds is not a mapping"]),
        ("runs[0.methods=[deyo]", ["is no key"]),
        ("runs[0].metods=[deyo]", ["unknown key", "did you mean 'methods'"]),
        ("seeds=[0", ["not valid YAML"]),
        ("seeds=[1, a]", ["--set 'seeds=[1, a]'", "seeds[1]", "whole number"]),
        ("runs[0].methods=[!!python/object:os.system x]", ["tag", "not allowed"]),
    ],
)
def test_wrong_overrides_say_which_and_why(override: str, words: list[str]) -> None:
    message = error_of(SPEC, [override])
    for word in words:
        assert word in message


def test_errors_in_what_an_override_replaced_blame_the_override() -> None:
    message = error_of(SPEC, ["runs[0].severities=[3, 9]"])
    assert "--set" in message
    assert "sweep.yaml" not in message


def test_smoke_applies_its_section_then_overrides_and_renames_the_sweep() -> None:
    spec = parse_spec(SPEC, ["seeds=[5]"], smoke=True)
    assert spec.name == "quickstart-smoke"
    assert spec.runs[0].corruptions == ["contrast"]
    assert spec.max_images == 128
    assert spec.seeds == [5]
    assert parse_spec(SPEC, smoke=True).seeds == [0]


def test_a_resolved_spec_reads_back_as_itself() -> None:
    spec = parse_spec(
        SPEC, ["mlflow=false", "runs[0].methods=[{name: deyo, settings: {plpd_threshold: [1e-05, 0.3]}}]"]
    )
    again = parse_spec(json.dumps(resolved_spec(spec)))
    assert resolved_spec(again) == resolved_spec(spec)


def test_files_that_are_not_specs(tmp_path) -> None:
    for content, words in [
        (b"", "empty"),
        (b"- a\n", "not a mapping"),
        (b"name: \xff\xfe\n", "not UTF-8"),
        (b"name: x\x00\n", "not valid YAML"),
        (b"a: 1\n---\nb: 2\n", "not valid YAML"),
    ]:
        path = tmp_path / "s.yaml"
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=words):
            load_spec(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_spec(tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_spec(tmp_path)


def test_passwords_are_refused_and_never_repeated() -> None:
    message = error_of(SPEC, ["mlflow.tracking_uri=http://me:hunter2@host:5000"])
    assert "environment" in message
    assert "hunter2" not in message


def test_a_folder_for_mlflow_is_refused_with_the_line_to_paste() -> None:
    assert "sqlite:///" in error_of(SPEC, ["mlflow.tracking_uri=./mlruns"])


def test_tracking_can_be_left_to_its_defaults() -> None:
    for uri in ("auto", "none", "sqlite:///x.db", "http://localhost:5000"):
        assert parse_spec(SPEC, [f"mlflow.tracking_uri={uri}"]).mlflow.tracking_uri == uri


def test_precisions_are_the_engines() -> None:
    from deyo.precision import PROFILES

    for name in PROFILES:
        assert parse_spec(SPEC, [f"precision={name}"]).precision == [name]
    assert "float32" in error_of(SPEC, ["precision=float16"])


def test_the_reference_names_every_key_and_its_example_is_a_spec() -> None:
    from pathlib import Path

    from orchestrator.specmodel import Grid, MethodEntry, Mlflow, Resources, SweepSpec

    text = (Path(__file__).parents[2] / "experiments" / "SPEC.md").read_text(encoding="utf-8")
    for model in (SweepSpec, Grid, Mlflow, Resources):
        for key in model.model_fields:
            assert f"`{key}`" in text, key
    assert f"{{{', '.join(MethodEntry.model_fields)}}}" in text
    example = text.split("```yaml\n")[1].split("```")[0]
    assert parse_spec(example).name == "my-sweep"
