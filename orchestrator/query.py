"""SQL over results, with DuckDB: it sees the four views and nothing else, and can write nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from deyo.types import ConfigError
from orchestrator import schema
from orchestrator.results import GRAINS, Results, grain_schema, partial_rows, replaced_runs

if TYPE_CHECKING:
    import duckdb

_SETTINGS = (
    "SET python_enable_replacements = false",  # SQL must not see this process's Python variables
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


def query(results: Results, sql: str, *, partial: bool = False) -> pa.Table:
    """The result of one SQL query over ``runs``, ``batches``, ``samples`` and ``aggregates``.

    Raises:
        ConfigError: the statement is wrong, is more than one, or does anything but read.
    """
    import duckdb

    with connect(results, partial=partial) as connection:
        try:
            _check_reads(connection, sql)
            return connection.sql(sql).to_arrow_table()
        except duckdb.Error as error:
            raise ConfigError(
                f"query: {error}\nThere are the views {', '.join(GRAINS)}; see `DESCRIBE runs`"
            ) from error


def _check_reads(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    statements = connection.extract_statements(sql)
    kinds = [str(statement.type).rpartition(".")[2] for statement in statements]
    if len(kinds) != 1:
        raise ConfigError(f"query: give one SQL statement, got {len(kinds)}")
    if kinds[0] not in ("SELECT", "EXPLAIN", "RELATION"):
        raise ConfigError(f"query: only reading is possible (SELECT, DESCRIBE, EXPLAIN), not {kinds[0]}")


def connect(results: Results, *, partial: bool = False) -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB database with a view for each grain, closed to files, network and settings."""
    import duckdb

    connection = duckdb.connect()
    sources: dict[str, list[str]] = {grain: [] for grain in schema.GRAINS}
    for number, (tree, snapshot) in enumerate(results.snapshots()):
        hidden = ", ".join(f"'{run_id}'" for run_id in sorted(replaced_runs(snapshot)))
        where = f" WHERE run_id NOT IN ({hidden})" if hidden else ""
        mark = ", false AS partial" if partial else ""
        for grain, found in sources.items():
            name = f"stored_{grain}_{number}"
            connection.register(name, snapshot.dataset(grain))
            found.append(f"SELECT *{mark} FROM {name}{where}")
            if partial:
                connection.register(f"open_{grain}_{number}", partial_rows(tree, snapshot, grain))
                found.append(f"SELECT *, true AS partial FROM open_{grain}_{number}")
    connection.register("stored_aggregates", results.aggregates())
    connection.execute("CREATE VIEW aggregates AS SELECT * FROM stored_aggregates")
    for grain, found in sources.items():
        names = ", ".join(f'"{name}"' for name in grain_schema(grain, None, partial).names)
        connection.execute(f"CREATE VIEW {grain} AS SELECT {names} FROM ({' UNION ALL '.join(found)})")
    for setting in _SETTINGS:
        connection.execute(setting)
    return connection
