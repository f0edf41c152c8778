"""``deyo-sweep query``: SQL over committed runs, batches, samples and aggregates."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.asked import answer_of, show, spec_there, words_typed

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("table", "csv", "json", "parquet")


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("query")(query)


def query(
    context: typer.Context,
    sql: Annotated[
        str, typer.Argument(metavar="SQL", help='For example "SELECT label, avg(accuracy) FROM runs GROUP BY 1".')
    ],
    sweep: Annotated[
        str | None, typer.Argument(metavar="[SWEEP]", help="A sweep's name or its spec; without it, all of them.")
    ] = None,
    results: options.Results = options.DEFAULT_RESULTS,
    fmt: Annotated[str, typer.Option("--format", help="table, csv, json or parquet.")] = "table",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Write there, not to stdout.")] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Rows of running runs too, with a column 'partial'.")
    ] = False,
    address: options.Address = None,
    allow_insecure: options.AllowInsecure = False,
) -> None:
    """Read-only SQL (DuckDB) over runs, batches and samples.

    Aggregates over seeds are there as well. Tables print as text by default; parquet goes to a file or a pipe. With
    --address http://HOST:8265 the cluster's head is asked about a SWEEP that was submitted to it.
    """
    from deyo.types import ConfigError
    from orchestrator.query import query as ask
    from orchestrator.results import open_results

    chosen = "json" if as_json else fmt
    if chosen not in FORMATS:
        raise ConfigError(f"--format {chosen}: expected one of {', '.join(FORMATS)}")
    if address:
        _ask(context, sql, sweep, chosen, address, allow_insecure, results, output)
        return
    if chosen == "parquet" and output is None and sys.stdout.isatty():
        raise ConfigError("--format parquet prints bytes: add --output FILE, or pipe it")
    name = None if sweep is None else options.sweep_name(sweep, results)
    data = render(ask(open_results(results, name), sql, partial=partial), chosen)
    if output is not None:
        _write(options.writable(output), data)
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _ask(
    context: typer.Context,
    sql: str,
    sweep: str | None,
    fmt: str,
    address: str,
    allow_insecure: bool,
    results: str,
    output: Path | None,
) -> None:
    from deyo.types import ConfigError

    if sweep is None:
        raise ConfigError("--address needs the sweep as well: deyo-sweep query SQL SWEEP --address http://HOST:8265")
    if fmt == "parquet":
        raise ConfigError("--format parquet: with --address an answer is text (csv or json)")
    name, there, spec = spec_there(sweep, [], False)
    words = ["query", sql, there, *words_typed(context)]
    text = answer_of(address, name, words, allow_insecure=allow_insecure, results=results, spec=spec)
    show(text, output)


def render(table: pa.Table, fmt: str) -> bytes:
    """``table`` in one of ``FORMATS``; text ends with a newline. NaN is null in JSON (which has no NaN)."""
    if fmt == "parquet":
        import pyarrow.parquet as pq

        sink = io.BytesIO()
        pq.write_table(table, sink, compression="zstd")
        return sink.getvalue()
    if fmt == "json":
        return (json.dumps([_plain(row) for row in table.to_pylist()], indent=1, default=str) + "\n").encode()
    if fmt == "csv":
        return _csv(table)
    return _text(table).encode()


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and (value != value or abs(value) == float("inf")) else value


def _csv(table: pa.Table) -> bytes:
    """Lists and structs as JSON text."""
    import csv

    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(table.column_names)
    for batch in table.to_batches(max_chunksize=16_384):
        for row in zip(*(column.to_pylist() for column in batch.columns)):
            writer.writerow(json.dumps(v, default=str) if isinstance(v, list | dict) else v for v in row)
    return sink.getvalue().encode()


def _text(table: pa.Table) -> str:
    rows = [table.column_names, *([_cell(v) for v in row.values()] for row in table.to_pylist())]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    numeric = [str(field.type) in ("int64", "double", "float", "int32", "decimal128(38, 0)") for field in table.schema]
    lines = [
        "  ".join(c.rjust(w) if n else c.ljust(w) for c, w, n in zip(row, widths, numeric)).rstrip() for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([*lines, f"({table.num_rows} rows)", ""])


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value, default=str) if isinstance(value, list | dict) else str(value)


def _write(path: Path, data: bytes) -> None:
    """All or nothing: the file never shows half a result."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    os.replace(temporary, path)
