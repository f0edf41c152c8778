"""``deyo-sweep table`` on a real store."""

from __future__ import annotations

import json

import pytest
from tables_fakes import CORRUPTIONS, grid, row, write_store
from typer.testing import CliRunner

from deyo.types import ConfigError
from orchestrator.cli.main import make_app


@pytest.fixture
def results(tmp_path):
    configs = grid(method=["no-adapt", "tent", "deyo"], corruption=CORRUPTIONS, seed=[0, 1, 2])
    base = {"no-adapt": 0.45, "tent": 0.72, "deyo": 0.77}

    def row_of(run):
        c = run.config
        if (c.method, c.corruption, c.seed) == ("tent", "contrast", 2):
            return None
        return row(run, accuracy=base[c.method] + 0.01 * c.seed)

    write_store(tmp_path / "results", "first", configs, row_of)
    write_store(tmp_path / "results", "second", configs, lambda run: row(run, accuracy=0.5))
    return tmp_path / "results"


def table(results, *arguments):
    return CliRunner().invoke(make_app(["table"]), ["table", *arguments, "--results", str(results)])


def test_prints_the_table_with_its_failure(results):
    done = table(results, "first")
    assert done.exit_code == 0, done.output
    assert "*78.0±1.0" in done.stdout
    assert "n=2/3, 1 failed" in done.stdout
    assert "Protocol: official" in done.stdout


def test_json_and_csv_and_output_file(results, tmp_path):
    assert json.loads(table(results, "first", "--json").stdout)["tables"][0]["name"] == "grid"
    target = tmp_path / "deep" / "t.md"
    done = table(results, "first", "--format", "markdown", "--output", str(target))
    assert done.stdout == ""
    assert "| **78.0±1.0** |" in target.read_text()


def test_pivots_comparisons_and_filters(results):
    assert "severity 5" in table(results, "first", "--rows", "label", "--cols", "severity").stdout
    assert "+5.0 [" in table(results, "first", "--versus", "deyo").stdout
    assert "second" in table(results, "first", "--compare", "second").stdout
    assert "no number to compare" in table(results, "first", "--compare", "paper").stdout
    only = table(results, "first", "--where", "method=tent,deyo", "--metric", "accuracy,forwards").stdout
    assert "No adapt." not in only


def test_layouts_are_listed(results):
    listed = table(results, "--layouts").stdout
    assert "imagenet-c" in listed
    assert "T18, T19" in listed


def test_errors_name_what_there_is(results):
    with pytest.raises(ConfigError, match="first"):
        raise table(results, "frist").exception
    with pytest.raises(ConfigError, match="spec"):
        raise table(results, "first", "--set", "seeds=[0]").exception
