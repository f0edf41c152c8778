"""Puts a report together: tables, plots and facts of a sweep to a page and picture files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from deyo.types import ConfigError
from orchestrator.analyses import is_analysis
from orchestrator.report import analysis_plots, confidence_plots, facts, result_plots, stream_plots, style
from orchestrator.report.curves import Curve, read_curves
from orchestrator.report.style import Plot
from orchestrator.tables.data import SweepData
from orchestrator.tables.differences import compared
from orchestrator.tables.generated import generated_note
from orchestrator.tables.layouts.base import LayoutOptions
from orchestrator.tables.model import Table
from orchestrator.tables.render import render
from orchestrator.tables.request import Request

if TYPE_CHECKING:
    from orchestrator.results import Results

CSS = Path(__file__).with_name("page.css")


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Plots of one kind, under a heading ("" for none), shown at once or, ``folded``, on demand."""

    plots: tuple[Plot, ...]
    heading: str = ""
    folded: bool = False


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page; left out where it has nothing to show."""

    anchor: str
    title: str
    html: str = ""
    galleries: tuple[Gallery, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.html and not any(g.plots for g in self.galleries)


@dataclass(frozen=True, kw_only=True)
class Written:
    """The files of a report."""

    page: Path
    pictures: tuple[Path, ...]


def make_sections(
    data: SweepData, results: Results | None, request: Request = Request(), *, paper: bool = False
) -> list[Section]:
    """The report's sections in order. ``results`` gives rows along the stream, where it is at hand."""
    adapting = data.where(lambda e: not is_analysis(e.axes["method"]))
    curves = _curves(adapting, results)
    with style.styled():
        return [
            Section(anchor="tables", title="Tables", html=render(_tables(data, request, paper), "html")),
            *_result_sections(data, request),
            Section(anchor="stream", title="Along the stream", galleries=_stream_galleries(adapting, curves)),
            Section(
                anchor="confidence",
                title="Confidence: risk, coverage, entropy and PLPD",
                galleries=(Gallery(plots=tuple(confidence_plots.confidence_plots(data))),),
            ),
            Section(
                anchor="analyses",
                title="Analyses",
                galleries=(Gallery(plots=tuple(analysis_plots.analysis_plots(data))),),
            ),
            Section(
                anchor="speed",
                title="Speed and cost",
                html=_efficiency(data, request) + facts.cost_table(data),
                galleries=(Gallery(plots=tuple(result_plots.speed(adapting, request.pivot))),),
            ),
            Section(anchor="failures", title="Failures and collapses", html=facts.failures(data)),
            Section(anchor="provenance", title="Provenance", html=facts.provenance(data, results)),
        ]


def _stream_galleries(data: SweepData, curves: dict[str, Curve]) -> tuple[Gallery, ...]:
    each = tuple(stream_plots.by_corruption(data, curves))
    return (
        Gallery(heading="Running accuracy", plots=tuple(stream_plots.running_accuracy(data, curves))),
        Gallery(heading="Running accuracy on each corruption", plots=each, folded=True),
        Gallery(heading="Selected share", plots=tuple(stream_plots.selected_share(data, curves))),
    )


def _result_sections(data: SweepData, request: Request) -> list[Section]:
    options = request.pivot
    plots = {
        "Accuracy by corruption": result_plots.accuracy_by_corruption(data, options),
        "Accuracy by group": result_plots.accuracy_by_group(data, options),
        "Sensitivity": result_plots.sensitivity_curves(data, LayoutOptions(pivot=options)),
    }
    return [
        Section(anchor=title.rpartition(" ")[2].lower(), title=title, galleries=(Gallery(plots=tuple(found)),))
        for title, found in plots.items()
    ]


def _tables(data: SweepData, request: Request, paper: bool) -> list[Table]:
    tables = compared(data, request, paper=paper)
    if "deyo" in {e.axes["method"] for e in data.entries} and not paper:
        tables += _optional(lambda: compared(data, request, versus="deyo"))
    return tables


def _optional(make: Callable[[], Sequence[Table]]) -> list[Table]:
    """Tables that not every sweep can have."""
    try:
        return list(make())
    except ConfigError:
        return []


def _efficiency(data: SweepData, request: Request) -> str:
    return render(
        _optional(lambda: compared(data, replace(request, layout="efficiency", rows=(), cols=(), metrics=()))), "html"
    )


def _curves(data: SweepData, results: Results | None) -> dict[str, Curve]:
    return {} if results is None else read_curves(results, [e.run_id for e in facts.done_runs(data)])


def make_page(data: SweepData, sections: Sequence[Section]) -> str:
    """The page: one HTML document that needs nothing else."""
    shown = [s for s in sections if not s.empty]
    nav = "".join(f'<a href="#{s.anchor}">{escape(s.title)}</a>' for s in shown)
    numbers = "".join(
        f"<div{' class=bad' if f.bad else ''}><dt>{escape(f.name)}</dt><dd>{escape(f.value)}</dd></div>"
        for f in facts.summary(data)
    )
    note = generated_note(data.entries)
    what = ", ".join(
        ", ".join(str(v) for v in data.values(axis) if v is not None) for axis in ("benchmark", "scenario", "model")
    )
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(data.sweep)} – deyo-sweep report</title>",
            f"<style>\n{CSS.read_text(encoding='utf-8')}</style>\n</head>\n<body>",
            f'<header><h1>{escape(data.sweep)}</h1><p class="lead">{escape(what)}</p>',
            f'<dl class="facts">{numbers}</dl><nav aria-label="Sections">{nav}</nav></header>\n<main>',
            *(_section(s, note) for s in shown),
            "</main>\n<footer>Written by deyo-sweep from the sweep's committed runs.</footer>\n</body>\n</html>\n",
        ]
    )


def _section(section: Section, note: str) -> str:
    """``note`` goes to sections with plots: tables have captions of their own."""
    parts = [f'<section id="{section.anchor}">', f"<h2>{escape(section.title)}</h2>", section.html]
    if note and any(g.plots for g in section.galleries):
        parts.append(f"<p>{escape(note)}</p>")
    return "\n".join([*parts, *map(_gallery, section.galleries), "</section>"])


def _gallery(gallery: Gallery) -> str:
    if not gallery.plots:
        return ""
    heading, inside = escape(gallery.heading), "".join(map(_figure, gallery.plots))
    plots = f'<div class="plots">{inside}</div>'
    if gallery.folded:
        return f"<details><summary>{heading}</summary>{plots}</details>"
    return (f"<h3>{heading}</h3>" if heading else "") + plots


def _figure(plot: Plot) -> str:
    svg = style.to_svg(plot.figure).replace("<svg", f'<svg role="img" aria-label="{escape(plot.caption)}"', 1)
    return f"<figure>{svg}<figcaption>{escape(plot.caption)}</figcaption></figure>"


def write_report(
    data: SweepData,
    results: Results | None,
    folder: Path,
    request: Request = Request(),
    *,
    paper: bool = False,
    formats: Sequence[str] = ("png", "pdf"),
) -> Written:
    """Write ``report.html`` and the plots (``plots/NAME.FORMAT``) into ``folder``."""
    sections = make_sections(data, results, request, paper=paper)
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "report.html"
    page.write_text(make_page(data, sections), encoding="utf-8")
    pictures = []
    for plot in (p for s in sections for g in s.galleries for p in g.plots):
        for fmt in formats:
            path = folder / "plots" / f"{plot.name}.{fmt}"
            path.parent.mkdir(exist_ok=True)
            style.save(plot.figure, str(path))
            pictures.append(path)
    return Written(page=page, pictures=tuple(pictures))
