"""SQL over results: what it sees, what it refuses, how it prints; the verbs ``query`` and ``results``."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys

import pandas as pd
import pyarrow.parquet as pq
import pytest
import store_runs as sr

from deyo.types import ConfigError
from orchestrator import open_results
from orchestrator.cli.main import run as cli
from orchestrator.query import query
from orchestrator.store import ParquetStore, compactor
from orchestrator.types import Failure, FailureClass, Plan


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A sweep of 18 runs, one part of them compacted, and one run in flight. Not to be changed."""
    folder = tmp_path_factory.mktemp("query")
    store = ParquetStore(str(folder / "results"), "sweep")
    runs = list(sr.grid())
    store.write_plan(Plan(sweep="sweep", runs=tuple(runs)))
    for number, run in enumerate(runs[:-1]):
        sr.run_once(store, run, accuracy=run.config.seed / 10)
        if number == 9:
            compactor.compact(store.tree)
    store.begin(runs[-1], 1)
    store.append(runs[-1].run_id, 1, "batches", sr.batch_rows(range(2)))
    store.flush()
    return str(folder / "results")


def rows(root: str, sql: str, **options) -> list[dict]:
    return query(open_results(root), sql, **options).to_pylist()


def test_the_four_views_hold_what_the_readers_give(root):
    results = open_results(root)
    for grain in ("runs", "batches", "samples", "aggregates"):
        expected = getattr(results, grain)()
        table = query(results, f"SELECT * FROM {grain}")
        assert table.column_names == expected.column_names
        assert table.num_rows == expected.num_rows
    sql = "SELECT label, count(*) AS n, sum(b.correct) AS correct FROM runs r JOIN batches b USING (run_id) GROUP BY 1"
    assert sorted(rows(root, sql), key=lambda r: r["label"]) == [
        {"label": "deyo", "n": 32, "correct": 48},
        {"label": "tent", "n": 36, "correct": 54},
    ]


def test_partial_rows_come_when_asked_for(root):
    sql = "SELECT partial, count(*) AS n FROM batches GROUP BY 1 ORDER BY 1"
    assert rows(root, sql, partial=True) == [{"partial": False, "n": 68}, {"partial": True, "n": 2}]
    with pytest.raises(ConfigError, match="partial"):
        rows(root, sql)
    assert rows(root, "SELECT count(*) AS n FROM runs WHERE partial", partial=True) == [{"n": 1}]


def test_replaced_runs_are_in_no_view(tmp_path):
    store = ParquetStore(str(tmp_path), "sweep")
    for number, run_id in enumerate(("a" * 16, "b" * 16)):
        run = sr.planned(0, run_id=run_id, stamps={"config_id": "c" * 16})
        sr.run_once(store, run, finished_at=f"2026-01-0{number + 1}T00:00:00Z")
    for grain in ("runs", "batches", "samples"):
        assert rows(str(tmp_path), f"SELECT DISTINCT run_id FROM {grain}") == [{"run_id": "b" * 16}]


@pytest.mark.parametrize(
    "sql",
    [
        "COPY runs TO 'out.csv'",
        "COPY (SELECT 1) TO 'out.parquet'",
        "EXPORT DATABASE 'out'",
        "ATTACH 'out.db'",
        "CREATE TABLE t AS SELECT 1",
        "DROP VIEW runs",
        "INSERT INTO runs VALUES (1)",
        "DELETE FROM runs",
        "SET enable_external_access = true",
        "PRAGMA database_list; SELECT 1",
        "SELECT 1; SELECT 2",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SELECT * FROM read_csv('secret.csv')",
        "SELECT * FROM read_text('secret.csv')",
        "SELECT * FROM 'secret.csv'",
        "SELECT * FROM glob('*')",
        "SELECT * FROM sniff_csv('secret.csv')",
        "SELECT * FROM results",
        "SELECT * FROM os",
        "SELEC 1",
        "SELECT colour FROM runs",
        "",
    ],
)
def test_sql_can_neither_write_nor_read_anything_else(root, tmp_path, monkeypatch, sql):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.csv").write_text("a\n1\n")
    before = sorted(p for p in tmp_path.rglob("*") if p.is_file())
    with pytest.raises(ConfigError, match="query:"):
        rows(root, sql)
    assert sorted(p for p in tmp_path.rglob("*") if p.is_file()) == before


def test_the_connection_of_results_is_closed_to_files_too(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.csv").write_text("a\n1\n")
    import duckdb

    with open_results(root).duckdb() as connection:
        assert connection.sql("SELECT count(*) FROM runs").fetchall() == [(17,)]
        for sql in ("COPY runs TO 'x.csv'", "FROM read_csv('secret.csv')", "SET enable_external_access = true"):
            with pytest.raises(duckdb.Error):
                connection.execute(sql).fetchall()
    assert not (tmp_path / "x.csv").exists()


def test_describe_and_explain_work(root):
    assert "accuracy" in [r["column_name"] for r in rows(root, "DESCRIBE runs")]
    assert rows(root, "EXPLAIN SELECT 1")
    assert rows(root, "WITH a AS (SELECT 1 AS x) SELECT x FROM a") == [{"x": 1}]


_SQL = "SELECT label, seed, accuracy, aliases FROM runs WHERE corruption = 'fog' ORDER BY label, seed LIMIT 2"


def test_output_as_table_csv_json_and_parquet(root, tmp_path, capfdbinary):
    def out(*arguments: str) -> bytes:
        assert cli(["query", _SQL, "sweep", "--results", root, *arguments]) == 0
        return capfdbinary.readouterr().out

    text = out().decode().splitlines()
    assert text[0].split() == ["label", "seed", "accuracy", "aliases"]
    assert text[2].split() == ["deyo", "0", "0", "[]"]
    assert text[3].split() == ["deyo", "1", "0.1", "[]"]
    assert text[4] == "(2 rows)"
    frame = pd.read_csv(io.BytesIO(out("--format", "csv")))
    assert frame["accuracy"].tolist() == [0.0, 0.1]
    assert json.loads(out("--json"))[1] == {"label": "deyo", "seed": 1, "accuracy": 0.1, "aliases": []}
    assert pq.read_table(io.BytesIO(out("--format", "parquet")))["seed"].to_pylist() == [0, 1]
    assert out("--format", "parquet", "--output", str(tmp_path / "q.parquet")) == b""
    assert pq.read_table(tmp_path / "q.parquet")["seed"].to_pylist() == [0, 1]


def test_json_has_no_nan(tmp_path, capfdbinary):
    store = ParquetStore(str(tmp_path), "sweep")
    sr.run_once(store, sr.planned(), aurc=float("nan"))
    assert cli(["query", "SELECT aurc, settings FROM runs", "--results", str(tmp_path), "--json"]) == 0
    text = capfdbinary.readouterr().out
    assert json.loads(text, parse_constant=pytest.fail) == [{"aurc": None, "settings": '{"lr": 0.001}'}]


def test_wrong_use_is_one_clear_line(root, capsys):
    assert cli(["query", "SELECT 1", "--results", root, "--format", "xml"]) == 2
    assert "expected one of table, csv, json, parquet" in capsys.readouterr().err
    assert cli(["query", "SELECT 1", "swep", "--results", root]) == 2
    assert "swep" in capsys.readouterr().err
    assert cli(["query", "SELECT 1", "--results", root + "/nowhere"]) == 2
    assert "no results under" in capsys.readouterr().err


def test_folders_that_are_no_sweeps_are_not_suggested_as_such(root, tmp_path, capsys):
    root = shutil.copytree(root, tmp_path / "copy")
    (root / ".mlflow").mkdir()
    (root / "reports").mkdir()
    for name in ("nothing", ".", "..", "sweep/../sweep"):
        assert cli(["query", "SELECT 1", name, "--results", str(root)]) == 2
        assert f"no sweep '{name}' under {root}; allowed: sweep\n" in capsys.readouterr().err


def test_the_verb_results_lists_sweeps_with_counts_and_paths(root, tmp_path, capsys):
    root = shutil.copytree(root, tmp_path / "copy").as_posix()
    store = ParquetStore(root, "other")
    store.begin(sr.planned(), 1)
    store.fail(sr.planned().run_id, 1, Failure(kind=FailureClass.ERROR, message="m"))
    store.begin(sr.planned(1), 1)
    store.fail(sr.planned(1).run_id, 1, Failure(kind=FailureClass.CANCELLED, message="stopped by SIGINT"))
    assert cli(["results", "--results", root]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("other  0 runs committed, 1 failed  ")
    assert lines[1].startswith("sweep  17 of 18 runs committed, 1 running  ")
    assert cli(["results", "sweep", "--results", root, "--json"]) == 0
    entry = json.loads(capsys.readouterr().out)[0]
    assert (entry["committed"], entry["planned"]) == (17, 18)
    assert os.path.isdir(entry["tables"]["runs"])


def test_the_store_needs_neither_duckdb_nor_mlflow_nor_ray_nor_torch():
    code = (
        "import sys\n"
        "for name in ('duckdb', 'mlflow', 'ray', 'torch'): sys.modules[name] = None\n"
        "import orchestrator.store, orchestrator.results, orchestrator.aggregate\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
