"""``deyo-sweep ui`` and what a person sees in MLflow's UI: runs, charts, the parent's table."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import chromium_or_skip, run_script
from tracking_drive import Drive, by_key, spec

from orchestrator.tracking.options import sqlite_uri
from orchestrator.tracking.server import free_port

METHODS = (("tent", "Tent"), ("deyo", "DeYO"))
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results root with a sweep of two methods, two corruptions and three seeds, and its MLflow database."""
    root = tmp_path_factory.mktemp("results")
    cells = [(m, label, c, s) for m, label in METHODS for c in ("gaussian_noise", "contrast") for s in range(3)]
    runs = [
        spec(n, method=method, label=label, corruption=corruption, seed=seed)
        for n, (method, label, corruption, seed) in enumerate(cells)
    ]
    drive = Drive(root, sqlite_uri(root / "mlflow.db"), runs)
    drive.begin()
    for run in runs:
        attempt = drive.start(run)
        drive.stream(run, attempt, range(40))
        drive.finish(run, attempt, 40)
    drive.end()
    assert drive.tracker.degraded() is None
    return root


@pytest.fixture
def page(sweep: Path) -> Iterator[str]:
    """The URL that ``deyo-sweep ui demo`` prints, while it runs."""
    code = "import sys; from orchestrator.cli.main import main; main(sys.argv[1:])"
    environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    port = str(free_port(0))
    verb = subprocess.Popen(
        [sys.executable, "-c", code, "ui", "demo", "--results", str(sweep), "--port", port, "--no-open"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment | {"PYTHONPATH": str(REPOSITORY)},
    )
    assert verb.stdout is not None
    try:
        line = verb.stdout.readline()
        assert line.startswith(f"MLflow UI: http://127.0.0.1:{port}/#/experiments/"), line
        yield line.removeprefix("MLflow UI: ").strip()
    finally:
        verb.send_signal(signal.SIGINT)
        verb.wait(30)
        verb.stdout.close()
    assert verb.returncode == 0
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)


@pytest.mark.slow
def test_ui_serves_the_store_in_use(page: str) -> None:
    with urllib.request.urlopen(page.partition("#")[0], timeout=30) as answer:
        assert b"<title>MLflow</title>" in answer.read()


@pytest.mark.browser
def test_a_person_finds_runs_charts_and_table(sweep: Path, page: str, tmp_path: Path) -> None:
    """Screenshots go to DEYO_SCREENSHOTS, if it is set (the README's are of the quickstart instead)."""
    chromium = chromium_or_skip()
    folder = Path(os.environ.get("DEYO_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    found = by_key(sqlite_uri(sweep / "mlflow.db"))
    run = next(r for r in found.values() if r.data.tags.get("deyo.label") == "DeYO")
    parent = found["demo"]
    shown = (parent.info.run_id, run.info.run_id, run.info.run_name)
    seen = run_script("mlflow_ui.cjs", chromium, page, "demo", *shown, str(folder))
    assert run.info.run_name in seen["runs"]
    assert len(set(seen["runs"])) == 12
    assert seen["charts"] >= 5
    assert seen["lines"] >= 5
    assert "DeYO" in seen["description"]
    assert "±" in seen["description"]
    assert "Tent" in seen["table"]
    assert "±" in seen["table"]
    for name in ("mlflow-runs", "mlflow-run-charts", "mlflow-parent", "mlflow-parent-table"):
        assert (folder / f"{name}.png").stat().st_size > 10_000
