"""How plots look: Okabe and Ito's colours, told apart by marker and dash as well."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito (2008), without the yellow, which is too pale for lines on white.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
# Tol's "muted" colours, where these do not suffice.
FURTHER = ("#882255", "#44AA99", "#999933", "#332288", "#AA4499", "#117733", "#CC6677", "#661100", "#88CCEE")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1, 1, 1, 1, 1)))

FIXED = {
    "no-adapt": ("#666666", "x", (0, (1.5, 1.2))),
    "bn-adapt": ("#000000", "+", (0, (3, 2))),
    "tent": ("#56B4E9", "s", (0, (5, 1.5))),
    "eata": ("#009E73", "^", (0, (6, 1.5, 1.5, 1.5))),
    "sar": ("#E69F00", "D", (0, (3, 1, 1, 1, 1, 1))),
    "memo": ("#CC79A7", "v", (0, (2, 1))),
    "sentry": ("#0072B2", "P", (0, (4, 1, 1, 1))),
    "deyo": ("#D55E00", "o", "-"),
}

_PATH = re.compile(r' d="[^"]*"')
_DECIMALS = re.compile(r"(\.\d\d)\d+")

WIDTH, HEIGHT = 4.7, 3.1
"""Inches of a panel: at a phone's width its 9-point text is still about 9 pixels high."""

SETTINGS = {
    "font.size": 9,
    "font.family": "sans-serif",
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.edgecolor": "#888888",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "svg.fonttype": "none",
    "svg.hashsalt": "deyo-sweep",
    "pdf.fonttype": 42,
    "figure.constrained_layout.use": True,
}


@dataclass(frozen=True, kw_only=True)
class Look:
    """Colour, marker and dash of one method."""

    colour: str
    marker: str
    dash: Any


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A figure with its file name, heading and what it shows (also read out in place of the picture)."""

    name: str
    title: str
    caption: str
    figure: Figure = field(repr=False)


LEGEND_LINE = 0.17
"""Inches of one line of a legend."""


def looks(labels: Sequence[str]) -> dict[str, Look]:
    """A look for each label, the paper's methods always the same."""
    found: dict[str, Look] = {}
    taken = {FIXED[label][0] for label in labels if label in FIXED}
    used = {FIXED[label][1] for label in labels if label in FIXED}
    marks = [m for m in MARKERS if m not in used]
    others = [label for label in labels if label not in FIXED]
    free = [c for c in COLOURS if c not in taken]
    free += FURTHER if len(others) > len(free) else ()
    for i, label in enumerate(others):
        found[label] = Look(colour=free[i % len(free)], marker=marks[i % len(marks)], dash=DASHES[i % len(DASHES)])
    for label in labels:
        if label in FIXED:
            colour, marker, dash = FIXED[label]
            found[label] = Look(colour=colour, marker=marker, dash=dash)
    return found


@contextmanager
def styled() -> Iterator[None]:
    """Within it, figures are drawn in the page's style; matplotlib's global settings are left alone."""
    import matplotlib

    with matplotlib.rc_context(SETTINGS):
        yield


def panel(height: float = HEIGHT, width: float = WIDTH) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, apart from pyplot's global state; to be used within ``styled``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    return figure, figure.subplots()


def legend(axes: Axes, labels: Sequence[str]) -> None:
    """A legend below the axes (it never covers data), in as many columns as its ``labels`` leave room for."""
    entry = 0.058 * max(map(len, labels), default=1) + 0.58  # inches
    columns = max(min(int(WIDTH / entry), len(labels)), 1)
    lines = -(-len(labels) // columns)
    width, height = axes.figure.get_size_inches()
    axes.figure.set_size_inches(width, height + LEGEND_LINE * max(lines - 2, 0))  # room for it, not from the axes
    axes.figure.legend(loc="outside lower center", ncols=columns, handlelength=2.6, columnspacing=1.2)


def to_svg(figure: Figure) -> str:
    """The figure as an ``<svg>`` element, equal for equal data. Paths are rounded to 0.01 points: half the bytes."""
    out = io.StringIO()
    with styled():
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    figure.set_layout_engine("none")  # the layout is made: further formats need not make it again
    text = out.getvalue()
    return _PATH.sub(lambda path: _DECIMALS.sub(r"\1", path[0]), text[text.index("<svg") :])


def save(figure: Figure, path: str) -> None:
    """The figure as PNG (200 dpi) or PDF, by the path's ending."""
    with styled():
        metadata = {"CreationDate": None} if path.endswith(".pdf") else {}
        figure.savefig(path, dpi=200, metadata=metadata)
