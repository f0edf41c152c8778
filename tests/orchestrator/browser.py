"""Headless Chromium for the tests marked ``browser``, driven by playwright-core from Node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "browser"
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium_or_skip() -> str:
    """Chromium's path; skips the test, saying why, where it, Node or playwright-core is missing."""
    chromium = os.environ.get("DEYO_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if not chromium:
        pytest.skip("Chromium is not on the PATH (Debian: apt-get install chromium), nor named by DEYO_CHROMIUM")
    node = shutil.which("node")
    if not node:
        pytest.skip("Node is not on the PATH (Debian: apt-get install nodejs)")
    found = subprocess.run([node, "-e", "require('playwright-core')"], cwd=SCRIPTS, capture_output=True)
    if found.returncode:
        pytest.skip("playwright-core is not found by Node: npm install it and set NODE_PATH to its node_modules")
    return chromium


def run_script(name: str, *arguments: str, timeout: float = 300) -> Any:
    """Run a script of ``tests/browser`` and return the JSON that it prints."""
    command = ["node", str(SCRIPTS / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
