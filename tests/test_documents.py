"""The documents of the repository: every link leads somewhere, and so does every file that a document names."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
NAMED = re.compile(r"\b((?:deyo|orchestrator|experiments|tests)/[\w./-]*\.(?:py|yaml|sh|md|csv|png))\b")


def documents() -> list[Path]:
    """Markdown files of the tree; git's ignored folders (an environment, results) are left out."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    except (OSError, subprocess.CalledProcessError):  # not a git checkout
        return sorted(p for p in ROOT.rglob("*.md") if not any(part.startswith(".") for part in p.parts))
    return sorted(ROOT / name for name in listed if name and (ROOT / name).exists())


def anchors(text: str) -> set[str]:
    """The fragments that a document's headings have."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_documents_are_found() -> None:
    names = {str(path.relative_to(ROOT)) for path in documents()}
    assert {"README.md", "deyo/README.md", "experiments/README.md", "orchestrator/deploy/README.md"} <= names


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(document: Path) -> None:
    links = LINK.findall(document.read_text(encoding="utf-8"))
    assert not [link for link in links if not link.startswith(("http://", "https://")) and not resolves(document, link)]


def resolves(document: Path, link: str) -> bool:
    path, _, fragment = link.partition("#")
    target = (document.parent / path).resolve() if path else document
    there = target.exists() and target.is_relative_to(ROOT)
    return there and (not fragment or fragment in anchors(target.read_text(encoding="utf-8")))


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_are_named_exist(document: Path) -> None:
    """Paths from the root, as they stand in commands and sentences."""
    named = set(NAMED.findall(document.read_text(encoding="utf-8")))
    assert not {name for name in named if not (ROOT / name).exists()}


EXPERIMENTS = ROOT / "experiments"


@pytest.mark.parametrize(
    "document",
    [path for suffix in ("yaml", "md") for path in sorted(EXPERIMENTS.rglob(f"*.{suffix}"))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_pages_of_results_that_are_named_exist(document: Path) -> None:
    """``results/NAME.md``, as specs and the index of experiments write it."""
    named = set(re.findall(r"\bresults/([\w.-]+\.md)\b", document.read_text(encoding="utf-8")))
    assert not {name for name in named if not (EXPERIMENTS / "results" / name).exists()}


@pytest.mark.parametrize("script", sorted((ROOT / "orchestrator" / "deploy").glob("*")), ids=lambda path: path.name)
def test_files_that_recipes_name_exist(script: Path) -> None:
    named = set(NAMED.findall(script.read_text(encoding="utf-8")))
    assert not {name for name in named if not (ROOT / name).exists()}
