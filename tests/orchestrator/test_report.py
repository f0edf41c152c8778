"""The report: everything that the issue lists is on one page that needs nothing else."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from browser import chromium_or_skip, run_script
from PIL import Image
from tables_fakes import CORRUPTIONS, biased_row, config, grid, row, sweep, write_store
from typer.testing import CliRunner

from deyo.confidence import risk_coverage
from orchestrator import open_results
from orchestrator.analyses.pictures import encoded
from orchestrator.cli.main import make_app
from orchestrator.report import analysis_plots, confidence_plots, facts, result_plots, stream_plots, style
from orchestrator.report.curves import POINTS, WINDOWS, on_grid, read_curves, reduce
from orchestrator.report.panels import panels, slug
from orchestrator.tables.load import load

BIASED = {"benchmark": "waterbirds", "scenario": "biased", "model": "resnet50-bn", "corruption": None, "severity": None}
DEYO = {"transform": "patch", "patches": 4, "plpd_threshold": 0.5, "entropy_margin": 0.5}
STEPS = 6


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    found = tmp_path_factory.mktemp("report") / "results"
    configs = grid(method=["no-adapt", "deyo"], corruption=CORRUPTIONS[:2], severity=[3, 5], seed=[0, 1])

    def row_of(run):
        c = run.config
        if (c.method, c.corruption, c.severity, c.seed) == ("deyo", "defocus_blur", 5, 1):
            return None
        accuracy = {"no-adapt": 0.45, "deyo": 0.77}[c.method] + 0.01 * c.seed
        return row(run, accuracy=accuracy, collapsed=c.method == "no-adapt" and c.seed == 1)

    write_store(found, "quick", configs, row_of, steps=STEPS)
    birds = [
        config(**BIASED, method=m, label=label, settings=s, seed=k)
        for m, label, s in (("no-adapt", "no-adapt", {}), ("deyo", "deyo", DEYO))
        for k in (0, 1)
    ]
    groups = {"no-adapt": (0.97, 0.6), "deyo": (0.95, 0.75)}
    write_store(found, "birds", birds, lambda r: biased_row(r, groups[r.config.method]), steps=STEPS, with_samples=True)
    return found


@pytest.fixture(scope="module")
def written(root, tmp_path_factory):
    folders = {}
    for name in ("quick", "birds"):
        folders[name] = tmp_path_factory.mktemp(name)
        plots = {"quick": "none", "birds": "png,pdf"}[name]
        arguments = ["report", name, "--results", str(root), "--output", str(folders[name]), "--plots", plots]
        done = CliRunner().invoke(make_app(["report"]), arguments)
        assert done.exit_code == 0, (done.output, done.exception)
    return folders


class Page(HTMLParser):
    """Checks that tags are closed, and gathers ids, links, text and headings."""

    VOID = frozenset({"meta", "path", "use", "image", "br", "rect", "circle", "link", "line"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: set[str] = set()
        self.urls: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.add(value)
            if name in ("href", "src", "xlink:href"):
                self.urls.append(value)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def pages(written):
    return {name: Page((folder / "report.html").read_text(encoding="utf-8")) for name, folder in written.items()}


@pytest.mark.parametrize("name", ["quick", "birds"])
def test_the_page_is_whole_and_needs_no_network(pages, written, name):
    page = pages[name]
    assert page.open == []
    assert all(url.startswith("#") for url in page.urls)
    assert {url[1:] for url in page.urls if url[1:] in page.ids or not url.startswith("#m")} <= page.ids
    text = (written[name] / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"url\((?!#)", text)
    assert "<script" not in text
    assert not re.search(r"(src|@import)\s*=?\s*[\"']?https?:", text)
    assert 'name="viewport"' in text


def test_a_sweep_over_corruptions_shows_all_its_parts(pages):
    text = pages["quick"].text
    for heading in ("Tables", "Accuracy by corruption", "Along the stream", "Running accuracy", "Selected share",
                    "Speed and cost", "Failures and collapses", "Provenance"):  # fmt: skip
        assert heading in text
    assert "15 of 16" in text
    assert "it broke" in text
    assert "n=1/2, 1 failed" in text
    assert "Fake GPU" in text
    assert "2.14.1" in text
    assert "name: quick" in text
    assert "The spec as run" in text
    assert "risk-coverage" not in text


def test_a_biased_sweep_with_samples_shows_groups_and_confidence(pages):
    text = pages["birds"].text
    for part in ("Worst-Group Acc", "Accuracy by group", "risk-coverage curves", "quartiles of entropy", "four areas"):
        assert part in text
    assert "None: every planned run has a result." in text


def test_plots_are_png_and_pdf_files_with_something_on_them(written):
    folder = written["birds"] / "plots"
    pngs, pdfs = sorted(folder.glob("*.png")), sorted(folder.glob("*.pdf"))
    assert [p.stem for p in pngs] == [p.stem for p in pdfs]
    assert len(pngs) >= 5
    for png in pngs:
        assert np.asarray(Image.open(png).convert("L")).std() > 5
    assert all(p.read_bytes().startswith(b"%PDF") for p in pdfs)


def test_page_is_light(written):
    assert (written["quick"] / "report.html").stat().st_size < 600_000


def test_default_folder_json_and_no_plots(root):
    arguments = ["report", "quick", "--results", str(root), "--plots", "none", "--json", "--where", "severity=5"]
    arguments += ["--where", "corruption=contrast,gaussian_noise"]
    done = CliRunner().invoke(make_app(["report"]), arguments)
    assert json.loads(done.stdout) == {"page": str(root / "reports" / "quick" / "report.html"), "plots": []}
    again = (root / "reports" / "quick" / "report.html").read_bytes()
    CliRunner().invoke(make_app(["report"]), arguments)
    assert (root / "reports" / "quick" / "report.html").read_bytes() == again


def test_curves_are_those_of_the_rows(root):
    results = open_results(str(root), "quick")
    run_id = results.runs()["run_id"][0].as_py()
    curve = read_curves(results, [run_id])[run_id]
    frame = results.batches([run_id]).to_pandas().sort_values("step")
    assert curve.position.tolist() == frame.images.cumsum().tolist()
    assert curve.accuracy == pytest.approx((frame.correct.cumsum() / frame.images.cumsum()).to_numpy())
    assert curve.selected == pytest.approx((frame.selected / frame.images).to_numpy())
    assert set(read_curves(results, results.runs()["run_id"].to_pylist())) == set(results.runs()["run_id"].to_pylist())


def test_long_streams_are_reduced_and_end_where_they_end():
    steps = 5000
    rows = np.stack([np.arange(steps)[::-1], np.full(steps, 7), np.arange(steps)[::-1] % 8, np.full(steps, 3)], axis=1)
    curve = reduce(rows)
    assert len(curve.position) == POINTS
    assert len(curve.window) == WINDOWS
    assert curve.position[-1] == 7 * steps
    assert curve.accuracy[-1] == pytest.approx((np.arange(steps) % 8).sum() / (7 * steps))
    assert curve.selected == pytest.approx(3 / 7)


def test_bands_are_over_seeds_after_the_mean_over_corruptions():
    data = sweep(grid(corruption=CORRUPTIONS[:2], seed=[0, 1]), lambda c: 0.5)
    levels = {
        (0, "gaussian_noise"): 0.2,
        (0, "defocus_blur"): 0.4,
        (1, "gaussian_noise"): 0.4,
        (1, "defocus_blur"): 0.6,
    }
    rows = {
        e.run_id: reduce(np.array([[i, 100, 100 * levels[e.replicate[0], e.axes["corruption"]], 0] for i in range(4)]))
        for e in data.entries
    }
    _, mean, low, high = stream_plots.band(data.entries, rows, lambda c: (c.position, c.accuracy))
    assert mean == pytest.approx(0.4)
    assert high - low == pytest.approx(2 * np.std([0.3, 0.5], ddof=1))


def test_bands_stay_between_0_and_100_percent():
    data = sweep(grid(seed=[0, 1, 2], batch_size=[1]), lambda c: 0.5)
    first = {0: 1, 1: 1, 2: 0}  # the first image alone: all right or all wrong
    rows = {e.run_id: reduce(np.array([[i, 1, first[e.replicate[0]], 0] for i in range(4)])) for e in data.entries}
    _, mean, _, high = stream_plots.band(data.entries, rows, lambda c: (c.position, c.accuracy))
    assert mean[0] == pytest.approx(2 / 3)
    assert high[0] == 1
    with style.styled():
        (plot,) = stream_plots.running_accuracy(data, rows)
    axes = plot.figure.axes[0]
    drawn = [path.vertices[:, 1] for band in axes.collections for path in band.get_paths()]
    assert drawn
    assert max(map(np.max, drawn)) <= 100


def test_curves_of_unequal_length_meet_where_the_shorter_ends():
    x, y = on_grid([np.array([10, 20]), np.array([10, 20, 40])], [np.array([0, 1]), np.array([0, 1, 3])], points=3)
    assert x.tolist() == [10, 15, 20]
    assert y.tolist() == [[0, 0.5, 1], [0, 0.5, 1]]


def test_risk_coverage_lines_are_the_engines(root):
    data, _ = load("birds", str(root))
    with style.styled():
        plots = confidence_plots.confidence_plots(data)
    plot = next(p for p in plots if p.name.startswith("risk-coverage"))
    lines = {line.get_label().partition(":")[0]: line for line in plot.figure.axes[0].get_lines()}
    line = lines["Patch PLPD (DeYO)"]
    scores = [s for s in confidence_plots.scores(data) if s.confidence == "patch"]
    group = int(re.search(r"worst group \((\d)\)", plot.title)[1])
    expected = []
    for s in scores:
        inside = s.group == group
        expected.append(np.interp(line.get_xdata() / 100, *risk_coverage(s.score[inside], s.correct[inside])))
    assert line.get_ydata() == pytest.approx(100 * np.mean(expected, axis=0))


def test_variants_of_one_benchmark_have_curves_of_their_own(tmp_path):
    place = {"corruption": None, "severity": None, "method": "no-adapt"}
    options = [{"entropy_classes": 200}, {"entropy_classes": 1000}]
    configs = [config(benchmark="imagenet-r", benchmark_options=o, **place) for o in options]
    write_store(tmp_path, "s", configs, row, steps=STEPS, with_samples=True)
    data, _ = load("s", str(tmp_path))
    with style.styled():
        found = confidence_plots.confidence_plots(data)
    curves = [plot for plot in found if plot.name.startswith("risk-coverage")]
    assert len({plot.name for plot in curves}) == 2
    assert ["200" in plot.title for plot in curves] == [True, False]


def test_variants_of_one_benchmark_have_pictures_of_their_own():
    image = encoded(np.zeros((4, 4, 3), np.uint8))
    kept = json.dumps({"examples": [{"views": {"original": image}}]})
    place = {"benchmark": "waterbirds", "corruption": None, "model": "none", "method": "transforms"}
    variants = [{"preprocessing": p} for p in ("official", "group_dro")]
    configs = [config(**place, benchmark_options=options, severity=None) for options in variants]
    data = sweep(configs, lambda c: 0.5, extra=lambda c: {"analysis": kept})
    with style.styled():
        found = analysis_plots.analysis_plots(data)
    assert len({plot.name for plot in found}) == 2
    assert ["official" in plot.title for plot in found] == [True, False]


def test_quartiles_take_the_most_confident_first():
    score = np.array([4.0, 3.0, 2.0, 1.0])
    right = np.array([True, False, True, False])
    assert confidence_plots.quartile_accuracy(score, right).tolist() == [1, 0, 1, 0]
    assert confidence_plots.quartile_accuracy(-score, right).tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("benchmark", "options", "model", "classes"),
    [
        ("image-folder", {}, "small-resnet-bn", None),
        ("image-folder", {}, "resnet50-bn", 1000),
        ("image-folder", {"num_classes": 10}, "small-resnet-bn", 10),
        ("imagenet-r", {"entropy_classes": 200}, "resnet50-gn", 200),
        ("imagenet-r", {}, "resnet50-gn", 1000),
    ],
)
def test_areas_are_cut_at_the_classes_of_the_runs_own_options(tmp_path, benchmark, options, model, classes):
    settings = {"statistics": "running", "transform": "patch", "entropy_margin": 0.09, "plpd_threshold": 0.2}
    place = {"benchmark": benchmark, "benchmark_options": options, "model": model, "corruption": None, "severity": None}
    configs = [config(**place, method="score", settings=settings)]
    write_store(tmp_path, "s", configs, row, steps=STEPS, with_samples=True)
    data, _ = load("s", str(tmp_path))
    with style.styled():
        found = confidence_plots.confidence_plots(data)
    areas = [p for p in found if p.name.startswith("areas")]
    assert any(p.name.startswith("risk-coverage") for p in found)
    assert len(areas) == (classes is not None)
    for plot in areas:
        shares = [bar.get_height() for bar in plot.figure.axes[0].containers[1]]
        (entropy,) = [-s.score for s in confidence_plots.scores(data) if s.confidence == "entropy"]
        assert sum(shares[2:]) == pytest.approx(100 * np.mean(entropy < 0.09 * np.log(classes)))


def test_dot_plots_carry_the_means():
    data = sweep(grid(method=["tent", "deyo"], corruption=CORRUPTIONS, seed=[0, 1]), lambda c: 0.5 + 0.1 * c.seed)
    with style.styled():
        plots = result_plots.accuracy_by_corruption(data)
    xs = {
        x
        for container in plots[0].figure.axes[0].containers
        for x in np.asarray(container.lines[0].get_xdata(), float).round(6)
    }
    assert xs == {55.0}
    assert [t.get_text() for t in plots[0].figure.axes[0].get_yticklabels()] == ["Gauss.", "Defoc.", "Contr.", "Avg."]


def test_sensitivity_curves_follow_the_setting():
    configs = [
        config(method="deyo", label=f"deyo {t}", settings={"plpd_threshold": t}, seed=s)
        for t in (0.4, 0.2, 0.3)
        for s in (0, 1)
    ]
    data = sweep(configs, lambda c: c.settings["plpd_threshold"])
    with style.styled():
        (plot,) = result_plots.sensitivity_curves(data)
    line = plot.figure.axes[0].containers[0].lines[0]
    assert list(line.get_xdata()) == [0.2, 0.3, 0.4]
    assert list(line.get_ydata()) == pytest.approx([20, 30, 40])


def test_looks_differ_by_more_than_colour():
    labels = ["no-adapt", "tent", "eata", "sar", "deyo", "deyo [a]", "deyo [b]", "mine"]
    found = style.looks(labels)
    assert len({look.marker for look in found.values()}) == len(labels)
    assert len({look.colour for look in found.values()}) == len(labels)
    assert found["deyo"] == style.looks(["deyo"])["deyo"]


def test_variants_beside_all_of_the_paper_s_methods_have_colours_of_their_own() -> None:
    paper = ["no-adapt", "bn-adapt", "memo", "tent", "sentry", "eata", "sar", "deyo"]
    found = style.looks([*paper, *(f"deyo [copies={k}]" for k in range(8))])
    assert len({look.colour for look in found.values()}) == 16


def test_panels_are_titled_by_what_varies_and_is_not_implied():
    data = sweep(
        grid(model=["a", "b"], severity=[3, 5]) + grid(model=["c"], severity=[5], batch_size=[1]), lambda c: 0.5
    )
    assert [title for title, _ in panels(data)] == [
        "a, severity 3",
        "a, severity 5",
        "b, severity 3",
        "b, severity 5",
        "c, severity 5",
    ]
    assert slug("Running accuracy", "τ = 0.5 / a_b") == "running-accuracy-0.5-a-b"
    assert slug("selected-share", "Selected share") == "selected-share"
    assert slug("Running accuracy", "severity 3, Gauss.") == "running-accuracy-severity-3-gauss"


def test_hostile_names_are_text(tmp_path):
    label = "<script>alert(1)</script>&\"'"
    data = sweep([config(label=label, method="tent", seed=s) for s in (0, 1)], lambda c: 0.5, failed=[1])
    from orchestrator.report.build import write_report

    page = write_report(data, None, tmp_path, formats=()).page.read_text(encoding="utf-8")
    assert "<script" not in page
    assert Page(page).open == []
    assert label in Page(page).text


@pytest.mark.parametrize("done", [0, 1])
def test_a_sweep_that_has_hardly_begun_has_a_report(tmp_path, done):
    from orchestrator.report.build import write_report

    data = sweep(
        grid(corruption=CORRUPTIONS, seed=[0, 1]),
        lambda c: 0.5 if done and c.seed == 0 and c.corruption == "contrast" else None,
    )
    page = write_report(data, None, tmp_path, formats=()).page.read_text(encoding="utf-8")
    assert f"{done} of 6" in page
    assert "planned runs have no result yet" in page


def test_summary_counts():
    data = sweep(grid(seed=range(4)), lambda c: None if c.seed == 3 else 0.5, failed=[2])
    found = {f.name: f.value for f in facts.summary(data)}
    assert found["runs finished"] == "2 of 4"
    assert found["failed"] == "1"
    assert found["not run yet"] == "1"
    assert found["device time"] == "20.0 s"


@pytest.mark.browser
@pytest.mark.parametrize("name", ["quick", "birds"])
def test_a_browser_shows_it_on_a_phone_and_a_desktop(written, tmp_path, name):
    page = written[name] / "report.html"
    seen = run_script("report.cjs", chromium_or_skip(), str(page), str(tmp_path))
    for window, width in (("phone", 400), ("desktop", 1280)):
        found = seen[window]
        assert found["page"] == width, "the page itself scrolls sideways"
        assert found["stickingOut"] == []
        assert found["errors"] == []
        assert found["requests"] == 1
        assert found["plots"] >= 5
        assert np.asarray(Image.open(tmp_path / f"report-{width}.png").convert("L")).std() > 10
    assert seen["phone"]["scrolled"] >= 1, "wide tables scroll inside their own box"
