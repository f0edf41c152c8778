"""Table 7 of the paper: forwards and backwards in samples, and the time that adaptation took."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.tables.data import SweepData
from orchestrator.tables.layouts.base import Layout, LayoutOptions
from orchestrator.tables.metrics import metric
from orchestrator.tables.model import Cell, Column, Table
from orchestrator.tables.pivot import pivot

METRICS = ("forwards", "backwards", "seconds", "decode_seconds", "images_per_second", "peak_memory_bytes")
TITLES = {
    "forwards": "#Forward",
    "backwards": "#Backward",
    "seconds": "Time (s)",
    "decode_seconds": "Decoding (s)",
    "images_per_second": "Images/s",
    "peak_memory_bytes": "Memory (GiB)",
}
# What the paper's columns "Need source data?", "Online update?" and "Other computation" say.
TRAITS = {
    "no-adapt": ("no", "no", "–"),
    "bn-adapt": ("no", "no", "batch statistics"),
    "memo": ("no", "no", "AugMix"),
    "tent": ("no", "yes", "–"),
    "eta": ("no", "yes", "–"),
    "eata": ("yes", "yes", "regularizer"),
    "sar": ("no", "yes", "second update"),
    "sar-official": ("no", "yes", "second update"),
    "sentry": ("no", "yes", "RandAugment"),
    "deyo": ("no", "yes", "PLPD"),
}


def build(data: SweepData, options: LayoutOptions) -> list[Table]:
    metrics = options.metrics or tuple(map(metric, METRICS))
    table = pivot(data, ["label"], [], metrics, options.pivot, name="efficiency")
    method_of = {e.axes["label"]: e.axes["method"] for e in data.entries}
    traits = (
        Column(title="Source?", kind="text"),
        Column(title="Online?", kind="text"),
        Column(title="Other", kind="text"),
    )
    columns = tuple(replace(c, title=TITLES.get(c.metric, c.title), higher=None) for c in table.columns)
    cells = [
        (*(Cell(text=t) for t in TRAITS.get(method_of.get(row.key.get("label")), ("", "", ""))), *_plain(values))
        for row, values in zip(table.rows, table.cells)
    ]
    return [
        replace(table, columns=(*traits, *columns), cells=tuple(cells)).with_notes(
            "#Forward and #Backward count samples by the paper's rules. Time is adaptation alone, device "
            "synchronised, decoding apart; runs side by side share their group's time equally."
        )
    ]


def _plain(values: tuple[Cell | None, ...]) -> list[Cell | None]:
    """Cells without a best: a cost is no contest."""
    return [None if c is None else replace(c, best=False, second=False) for c in values]


LAYOUT = Layout(
    name="efficiency",
    help="methods down; forwards and backwards in samples, time, images per second, memory (T7)",
    experiments=("T7",),
    suits=lambda data: False,
    build=build,
)
