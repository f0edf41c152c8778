"""Every format carries every number, and nothing in a label can break one."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables_fakes import CORRUPTIONS, grid, sweep

from deyo.types import ConfigError
from orchestrator.tables.differences import compared
from orchestrator.tables.names import CORRUPTION_GROUPS
from orchestrator.tables.render import FORMATS, render
from orchestrator.tables.render.latex import escape
from orchestrator.tables.render.text import display_width
from orchestrator.tables.request import Request, make_tables

METHODS = ("no-adapt", "tent", "deyo")
HOSTILE = "50% & $x_1$ #~^\\{a}<b>|`c`*d* \"e\" 'f' -- τ=0,5 × µ é 中"


def data(labels=METHODS, corruptions=CORRUPTIONS, **more):
    base = {label: 0.1 + 0.05 * i for i, label in enumerate(labels)}
    return sweep(
        grid(label=labels, corruption=corruptions, severity=[3, 5], seed=[0, 1, 2]),
        lambda c: base[c.label] + 0.013 * c.seed,
        **more,
    )


@pytest.mark.parametrize("fmt", FORMATS)
def test_each_format_carries_the_numbers(fmt):
    tables = make_tables(data(), Request())
    text = render(tables, fmt)
    if fmt == "csv":
        means = [r["mean"] for r in csv.DictReader(io.StringIO(text))]
        assert len(means) == sum(len(row) for t in tables for row in t.cells)
        assert float(means[0]) == pytest.approx(11.3)
    elif fmt == "json":
        loaded = json.loads(text)["tables"][0]
        assert loaded["cells"][0][0]["mean"] == pytest.approx(11.3)
        assert [s["value"] for s in loaded["cells"][0][0]["seeds"]] == pytest.approx([10.0, 11.3, 12.6])
    else:
        assert "11.3" in text
        assert "1.3" in text


def test_unknown_format_is_refused():
    with pytest.raises(ConfigError, match="did you mean markdown"):
        render([], "markdwn")


def test_text_marks_best_and_missing_and_keeps_to_the_width():
    found = data(failed=[0])
    text = render(make_tables(found, Request()), "text", width=60)
    assert "*21.3±1.3" in text
    assert "n=2/3, 1 failed" in text
    assert "n=a/b" in text
    assert max(map(display_width, text.splitlines())) <= 60


def test_text_in_colour_has_bold_and_no_stars():
    text = render(make_tables(data(), Request()), "text", color=True)
    assert "\x1b[1m21.3±1.3\x1b[0m" in text
    assert "*21.3" not in text


@given(st.integers(40, 200))
@settings(max_examples=30, deadline=None)
def test_text_shows_every_column_at_any_width(width):
    text = render(make_tables(data(), Request(averages="none")), "text", width=width)
    assert max(map(display_width, text.splitlines())) <= width
    for short in ("Gauss.", "Defoc.", "Contr."):
        assert len(re.findall(re.escape(short), text)) == 2


def test_markdown_table_is_rectangular_whatever_the_label():
    text = render(make_tables(data(labels=("tent", HOSTILE)), Request()), "markdown")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    assert "**" in text


class Counter(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@given(st.text(min_size=1, max_size=12).filter(str.isprintable))
@settings(max_examples=40, deadline=None)
def test_no_label_breaks_html_csv_or_json(label):
    tables = make_tables(data(labels=("tent", label + "x"), corruptions=("fog",)), Request())
    page = Counter()
    page.feed(render(tables, "html"))
    page.close()
    assert page.open == []
    records = list(csv.DictReader(io.StringIO(render(tables, "csv"), newline="")))
    assert {r["row"] for r in records} == {r.title for r in tables[0].rows}
    assert [r["title"] for r in json.loads(render(tables, "json"))["tables"][0]["rows"]] == [
        r.title for r in tables[0].rows
    ]


@given(st.text(max_size=30))
def test_latex_escape_leaves_ascii_without_bare_specials(text):
    escaped = escape(text)
    assert escaped.isascii()
    bare = re.sub(r"\\([a-zA-Z]+(\{[^{}]*\})*|[&%$#_{}])", "", escaped).replace("{`}", "").replace("-{}-", "")
    assert not set(bare) & set("&%$#_^~")


def test_latex_escapes_what_must_be():
    assert escape("a_b 50% & $x$ #1 {c} d\\e") == r"a\_b 50\% \& \$x\$ \#1 \{c\} d\textbackslash{}e"
    assert escape("τ≤½") == r"\ensuremath{\tau}\ensuremath{\leq}1[U+2044]2" or "1" in escape("τ≤½")


needs_latex = pytest.mark.skipif(
    shutil.which("pdflatex") is None, reason="no pdflatex (Debian: texlive-latex-recommended)"
)


def compiled(tables, folder, options=""):
    """What pdflatex says of a document with the tables; it is ``t.pdf`` in ``folder``."""
    document = (
        f"\\documentclass[{options}]{{article}}\n\\usepackage{{booktabs,graphicx,rotating}}\n"
        "\\begin{document}\n" + render(tables, "latex") + "\n\\end{document}\n"
    )
    (folder / "t.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Missing character" not in done.stdout
    return done.stdout


def text_of(folder):
    """The words of ``t.pdf``."""
    if not shutil.which("pdftotext"):
        pytest.skip("it compiles; reading the page needs pdftotext (Debian: poppler-utils)")
    subprocess.run(["pdftotext", "-layout", "t.pdf"], cwd=folder, check=True, timeout=60)
    return (folder / "t.txt").read_text(encoding="utf-8")


@needs_latex
def test_latex_compiles_and_prints_what_it_should(tmp_path):
    hostile = ("tent", HOSTILE, "中 first", "[in brackets]")
    found = data(labels=hostile, failed=[3], extra=lambda c: {"collapsed": c.seed == 2, "nan_steps": 1})
    tables = [
        *make_tables(found, Request(seeds=True)),
        *compared(found, Request(cols=["severity"]), versus="tent"),
        *compared(found, Request(), versus="tent", interval="bootstrap"),
    ]
    compiled(tables, tmp_path)
    page = text_of(tmp_path)
    assert "50% & $x" in page
    assert "[in brackets]" in page
    assert "11.3" in page


@needs_latex
@pytest.mark.parametrize("options", ["", "twocolumn"])
def test_latex_tables_fit_the_page(tmp_path, options):
    names = [name for group in list(CORRUPTION_GROUPS.values())[:4] for name in group]
    wide, narrow = data(corruptions=names, failed=[3]), data()
    tables = [
        *make_tables(wide, Request(layout="imagenet-c")),
        *compared(wide, Request(layout="imagenet-c"), versus="tent"),
        *compared(wide, Request(layout="imagenet-c"), paper=True),
        *make_tables(narrow, Request()),
        *compared(narrow, Request(), versus="tent"),
    ]
    said = compiled(tables, tmp_path, options)
    assert [float(points) for points in re.findall(r"Overfull \\hbox \(([\d.]+)pt", said) if float(points) > 2] == []
    assert "Float too large" not in said
    assert "JPEG" in text_of(tmp_path)
