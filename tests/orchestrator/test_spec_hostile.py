"""Random and hostile specs: always a clear error or a valid plan, never a traceback, nothing done by parsing."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spec_fakes import BENCHMARKS, CORRUPTIONS, METHODS, NETWORKS, FakeCatalog

from deyo.types import ConfigError
from orchestrator.cli.main import run as command_line
from orchestrator.expand import expand
from orchestrator.plan import make_plan
from orchestrator.spec import parse_spec
from orchestrator.specmodel import Grid, SweepSpec

GOOD = """\
name: fine
runs:
  - benchmark: digits-c
    corruptions: [contrast]
    models: [small-resnet-bn]
    methods: [tent]
"""

RELAXED = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def refusal(text: str, overrides: list[str] | None = None) -> str | None:
    """The message of the ``ConfigError``, or None for a valid plan; any other exception fails the test."""
    try:
        plan = make_plan(parse_spec(text, overrides or [], path="s.yaml"), catalog=FakeCatalog())
    except ConfigError as error:
        return str(error)
    assert plan.runs
    assert len({run.run_id for run in plan.runs}) == len(plan.runs)
    return None


def outcome(text: str, overrides: list[str] | None = None) -> str:
    """ "plan" or "error", whose message must be there and must not flood the terminal."""
    message = refusal(text, overrides)
    if message is None:
        return "plan"
    assert message.strip()
    assert len(message) < 8000
    return "error"


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from([*BENCHMARKS, *NETWORKS, *METHODS, *CORRUPTIONS, "mild", "mixed", "batch-size-1", "paper", "bf16"]),
)
keys = st.one_of(
    st.sampled_from([*SweepSpec.model_fields, *Grid.model_fields, "label", "settings"]), st.text(max_size=6)
)
trees = st.recursive(scalars, lambda t: st.lists(t, max_size=4) | st.dictionaries(keys, t, max_size=5), max_leaves=25)


@st.composite
def nearly_specs(draw: st.DrawFn) -> dict:
    """A good spec with a few of its values replaced or keys added."""
    spec = yaml.safe_load(GOOD)
    for _ in range(draw(st.integers(0, 3))):
        target = draw(st.sampled_from([spec, spec["runs"][0] if _is_grid(spec) else spec]))
        target[draw(keys)] = draw(trees)
    return spec


def _is_grid(spec: dict) -> bool:
    return isinstance(spec.get("runs"), list) and bool(spec["runs"]) and isinstance(spec["runs"][0], dict)


@RELAXED
@given(trees)
def test_random_trees(tree: object) -> None:
    assert outcome(yaml.safe_dump(tree, allow_unicode=True)) == "error" or isinstance(tree, dict)


@RELAXED
@given(nearly_specs())
def test_good_specs_with_something_changed(tree: dict) -> None:
    outcome(yaml.safe_dump(tree, allow_unicode=True))


@RELAXED
@given(st.text(max_size=200))
def test_random_text(text: str) -> None:
    outcome(text)


@RELAXED
@given(st.text(alphabet=string.printable, max_size=40))
def test_random_overrides(override: str) -> None:
    outcome(GOOD, [override])


@RELAXED
@given(st.integers(0, len(GOOD)), st.text(max_size=4))
def test_a_character_inserted_anywhere(at: int, extra: str) -> None:
    outcome(GOOD[:at] + extra + GOOD[at:])


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{c}: &{c} [{', '.join(['*' + p] * 10)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)
)

HOSTILE = {
    "object tag": GOOD.replace("[tent]", "!!python/object/apply:os.system ['touch hacked']"),
    "name tag": GOOD.replace("fine", "!!python/name:os.system"),
    "binary tag": GOOD.replace("fine", "!!binary aGFjaw=="),
    "path in name": GOOD.replace("fine", "../../etc/cron.d/x"),
    "dots in name": GOOD.replace("fine", ".."),
    "absolute name": GOOD.replace("fine", "/tmp/x"),
    "shell in name": GOOD.replace("fine", "'$(rm -rf ~)'"),
    "backtick name": GOOD.replace("fine", "'`reboot`'"),
    "newline in name": GOOD.replace("fine", '"a\\nb"'),
    "nul in name": GOOD.replace("fine", '"a\\0b"'),
    "look-alike name": GOOD.replace("fine", "fіne"),
    "look-alike method": GOOD.replace("tent", "tеnt"),
    "full-width benchmark": GOOD.replace("digits-c", "ｄｉｇｉｔｓ-c"),
    "shell in model": GOOD.replace("small-resnet-bn", "'$(rm -rf ~)'"),
    "dotted import": GOOD.replace("tent", "os.system"),
    "NaN": GOOD + "settings: {tent: {learning_rate: .nan}}\n",
    "infinity": GOOD + "settings: {tent: {learning_rate: .inf}}\n",
    "huge number": GOOD + f"seeds: [{'9' * 5000}]\n",
    "huge exponent": GOOD + "settings: {tent: {learning_rate: 1e999}}\n",
    "negative seed": GOOD + "seeds: [-1]\n",
    "boolean seed": GOOD + "seeds: [true]\n",
    "sexagesimal seed": GOOD + "seeds: [1:30]\n",
    "octal": GOOD + "seeds: [0o17]\n",
    "bad octal": GOOD + "seeds: [089]\n",
    "date": GOOD + "seeds: [2024-01-01]\n",
    "bad date": GOOD + "seeds: [2024-99-99]\n",
    "no seeds": GOOD + "seeds: []\n",
    "no runs": "name: x\nruns: []\n",
    "empty grid": "name: x\nruns: [{}]\n",
    "no methods": GOOD.replace("[tent]", "[]"),
    "zero batch": GOOD + "    batch_size: 0\n",
    "contradiction": GOOD + "    scenario: batch-size-1\n    batch_size: [1, 64]\n",
    "wrong scenario": GOOD + "    scenario: biased\n",
    "alias bomb": GOOD + BOMB,
    "alias of itself": GOOD + "settings: &s {tent: *s}\n",
    "merge of itself": GOOD + "settings: &s {<<: *s}\n",
    "merge of a scalar": GOOD + "settings: {<<: 3}\n",
    "unknown alias": GOOD + "settings: *nothing\n",
    "deep lists": GOOD + "settings: " + "[" * 3000 + "]" * 3000 + "\n",
    "deep mappings": GOOD + "settings: " + "{a: " * 3000 + "1" + "}" * 3000 + "\n",
    "list as key": GOOD + "settings: {[a]: 1}\n",
    "mapping as key": GOOD + "? {a: 1}\n: 2\n",
    "null key": GOOD + "~: 1\n",
    "control character": GOOD + "# \x07\n",
    "tabs": GOOD + "\tseeds: [1]\n",
    "two documents": GOOD + "---\n" + GOOD,
    "smoke of the wrong kind": GOOD + "smoke: 3\nsmok: 1\n",
    "password": GOOD + "mlflow: {tracking_uri: 'postgresql://u:p@h/d'}\n",
    "nested setting": GOOD + "settings: {tent: {learning_rate: {a: [1]}}}\n",
    "null setting": GOOD + "settings: {tent: {learning_rate: null}}\n",
    "text with many lines": GOOD + "samples: |\n  yes\n  no\n",
    "too many values": GOOD + f"seeds: [{'1,' * 60_000}]\n",
    "many aliases": "a: &a [1, 2, 3]\n" + GOOD + f"settings: [{'*a,' * 20_000}]\n",
    "very long key": GOOD + f"{'k' * 100_000}: 1\n",
    "a thousand unknown keys": GOOD + "".join(f"k{i}: 1\n" for i in range(1000)),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_specs_are_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert outcome(text) == "error"
    assert not list(tmp_path.iterdir())


def test_the_unharmed_spec_is_a_plan() -> None:
    assert outcome(GOOD) == "plan"


@pytest.mark.parametrize("seeds", [26, 5_000])
def test_products_of_many_lists_are_refused_before_they_are_made(seeds: int) -> None:
    axis = list(range(100))
    text = GOOD.replace("[tent]", f"[{{name: deyo, settings: {{patches: {axis}, plpd_threshold: {axis}}}}}]")
    assert outcome(text, [f"seeds={list(range(seeds))}"]) == "error"


@pytest.mark.parametrize("name", ["object tag", "NaN", "path in name", "alias bomb", "contradiction"])
def test_the_command_line_says_it_in_one_message(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(HOSTILE[name])
    assert command_line(["plan", "s.yaml"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: s.yaml:")
    assert "Traceback" not in said.err + said.out
    assert [p.name for p in tmp_path.iterdir()] == ["s.yaml"], "nothing was begun"


def test_expansion_asks_for_nothing_from_a_refused_spec() -> None:
    catalog = FakeCatalog()
    with pytest.raises(ConfigError):
        expand(
            parse_spec(GOOD, [f"seeds={list(range(5_000))}", "settings.tent.learning_rate=" + str([0.1] * 100)]),
            catalog,
        )
    assert catalog.questions == 0


@pytest.mark.parametrize("name", ["reports", "Reports", "mlflow.db", "mlflow.db-wal"])
def test_names_that_lie_beside_the_sweeps_are_refused(name: str) -> None:
    assert "another use under a results root" in (refusal(GOOD, [f"name={name}"]) or "")
    assert refusal(GOOD, ["name=reports-2"]) is None
