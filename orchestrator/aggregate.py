"""Mean, standard deviation and counts over seeds: the ``aggregates`` table, from ``runs`` rows and the plan.

One row a condition and metric. A condition is what ``KEYS`` names; within it, runs differ in seed (and
pretraining seed) alone. With a plan, its runs and no others count, under its labels, and seeds that it expects
are listed as missing where there is no value: not run, failed, or NaN. NaN never enters a mean; such seeds are
also in ``nan_seeds``. ``std`` is the sample standard deviation (ddof 1).

Beside single conditions there are rows whose ``corruption`` is ``average`` (every corruption counts alike) or
``weighted-average`` (every image counts alike); ``corruptions`` lists what they span. They average over corruptions
within a seed first, and a seed that lacks one of the corruptions is missing there. Accuracies by group are the
metrics ``group_accuracy:<name>``; accuracies by corruption within one mixed or continual stream are the metric
``domain_accuracy``, with the corruption's name.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.averages import corruption_averages
from orchestrator.cells import KEYS, METRICS, Cells, Values, codes, values, with_column

_OWN = ("run_id", "config_id", "finished_at", "aliases", "seed", "pretrain_seed", "collapsed")
COLUMNS = tuple(dict.fromkeys((*_OWN, *KEYS, *METRICS, "group_accuracies", "domain_accuracies")))
"""The ``runs`` columns that ``aggregate`` reads."""


def aggregate(runs: pa.Table, plan: pa.Table | None = None) -> pa.Table:
    """The aggregates of ``runs`` (with at least ``COLUMNS``), as ``schema.AGGREGATES``.

    ``plan`` is the plan's table (``orchestrator.store.plan_table``).
    """
    rows = _planned_rows(runs, plan) if plan is not None else _labelled(current(runs))
    cells = Cells.of(rows)
    tables = [cells.aggregate(metric, values(rows[metric])) for metric in METRICS]
    tables += corruption_averages(rows)
    tables += _parts(rows, "group_accuracies")
    tables += _parts(rows, "domain_accuracies")
    return pa.concat_tables(tables)


def current(runs: pa.Table) -> pa.Table:
    """``runs`` without those that a later run of the same config (with newer code or weights) replaced."""
    order = pc.sort_indices(runs, sort_keys=[("config_id", "ascending"), ("finished_at", "ascending")])
    config = runs["config_id"].take(order).combine_chunks()
    last = np.ones(len(config), bool)
    if len(config) > 1:
        last[:-1] = ~np.asarray(pc.fill_null(pc.equal(config[:-1], config[1:]), False))
    return runs.take(pa.array(np.sort(np.asarray(order)[last])))


def _labelled(runs: pa.Table) -> pa.Table:
    """Each run once under its label and once under each alias; ``done`` says that it has a result."""
    aliases = runs["aliases"].combine_chunks()
    extra = with_column(runs.take(pc.list_parent_indices(aliases)), "label", pc.list_flatten(aliases))
    both = pa.concat_tables([runs, extra])
    return both.append_column("done", pa.array(np.ones(len(both), bool)))


def _planned_rows(runs: pa.Table, plan: pa.Table) -> pa.Table:
    """One row a planned run and label: the plan's axes, and the metrics of the committed run or nulls."""
    expected = plan.select([*KEYS, "run_id", "aliases", "seed", "pretrain_seed"])
    expected = _labelled(expected).drop_columns(["done"])
    at = pc.index_in(expected["run_id"], runs["run_id"].combine_chunks())
    for name in COLUMNS:
        if name not in expected.column_names:
            expected = expected.append_column(name, runs[name].take(at))
    return expected.append_column("done", pc.is_valid(at))


def _parts(rows: pa.Table, column: str) -> list[pa.Table]:
    """Accuracies of the parts of a stream (groups, or the corruptions of a mixed one) as metrics of their own."""
    lists = rows[column].combine_chunks()
    parents = np.asarray(pc.list_parent_indices(lists))
    flat = pc.list_flatten(lists)
    names = pc.struct_field(flat, "name")
    accuracy = values(pc.divide(pc.struct_field(flat, "correct").cast(pa.float64()), pc.struct_field(flat, "images")))
    condition = codes(rows, KEYS)
    tables = []
    for name in pc.unique(names.drop_null()).to_pylist():
        mine = np.asarray(pc.fill_null(pc.equal(names, name), False))
        spread = Values(np.full(len(rows), np.nan), np.ones(len(rows), bool))
        spread.numbers[parents[mine]] = accuracy.numbers[mine]
        spread.null[parents[mine]] = accuracy.null[mine]
        there = np.isin(condition, condition[parents[mine]])  # all seeds of the conditions that have this part
        chosen = rows.filter(pa.array(there))
        metric = f"group_accuracy:{name}"
        if column == "domain_accuracies":
            metric = "domain_accuracy"
            chosen = with_column(chosen, "corruption", pa.repeat(name, len(chosen)))
        tables.append(Cells.of(chosen).aggregate(metric, Values(spread.numbers[there], spread.null[there])))
    return tables
