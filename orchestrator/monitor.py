"""How a sweep stands, read from its store alone: by any process, while the driver runs or after it died."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.outcome import FailureBoard
from orchestrator.results import Results, open_results
from orchestrator.session import DRIVER_FILE, process_birth
from orchestrator.store import running
from orchestrator.store.tree import Tree
from orchestrator.types import FailureClass


@dataclass(frozen=True, kw_only=True)
class DriverFacts:
    """Who runs, or last ran, a sweep. ``alive`` is None where that cannot be seen from here."""

    pid: int = 0
    host: str = ""
    started_at: str = ""
    ended_at: str = ""
    address: str = ""
    submission_id: str = ""
    alive: bool | None = False


@dataclass(frozen=True, kw_only=True)
class SweepStanding:
    """Counts of a sweep's runs, what runs now, and failures grouped by signature."""

    sweep: str
    total: int
    done: int
    failed: int
    running: int
    left: int
    images: int
    driver: DriverFacts
    failures: tuple[str, ...] = ()
    in_flight: tuple[Mapping[str, Any], ...] = field(default_factory=tuple)

    @property
    def over(self) -> bool:
        """Nothing is left to do, or nobody does it."""
        return not self.left or self.driver.alive is False

    def lines(self) -> list[str]:
        """For the terminal."""
        head = f"{self.sweep}: {self.done}/{self.total} done, {self.failed} failed, {self.left} left"
        if self.running and self.driver.alive is not False:
            head += f", {self.running} running"
        found = [head, f"driver: {self._driver()}"]
        if self.failures:
            found.append("failures by signature:")
            found += [f"  {line}" for line in self.failures]
        return found

    def _driver(self) -> str:
        d = self.driver
        if not d.started_at:
            return "none has run yet"
        who = f"job {d.submission_id}" if d.submission_id else f"process {d.pid} on {d.host}"
        if d.ended_at:
            return f"{who} ended at {d.ended_at}"
        state = {True: "running", False: "gone (killed, or a stopped job)", None: "running, if it is alive"}[d.alive]
        return f"{who}, started {d.started_at}: {state}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def standing(results: str, sweep: str) -> SweepStanding:
    """How ``sweep`` under ``results`` stands. Raises ``ConfigError`` if there is none."""
    opened = open_results(results, sweep)
    ((_, tree),) = opened.trees()
    plan = opened.plan()
    planned = {run.run_id for run in plan.runs} if plan else set()
    committed = set(opened.runs(columns=["run_id"])["run_id"].to_pylist())
    done = committed & planned if planned else committed
    failures = {
        run_id: failure
        for run_id, failure in opened.failures().items()
        if failure.kind is not FailureClass.CANCELLED and (not planned or run_id in planned)
    }
    board = FailureBoard()
    for run_id, failure in failures.items():
        board.count(run_id, failure)
    flying = [entry for entry in running.read(tree) if entry.run_id not in committed | set(failures)]
    driver = driver_facts(tree)
    total = len(planned) or len(committed) + len(failures)
    return SweepStanding(
        sweep=sweep,
        total=total,
        done=len(done),
        failed=len(failures),
        running=len(flying) if driver.alive is not False else 0,
        left=total - len(done) - len(failures),
        images=_images(opened),
        driver=driver,
        failures=tuple(board.lines()),
        in_flight=tuple({"run_id": e.run_id, "attempt": e.attempt, "label": e.row.get("label")} for e in flying),
    )


def driver_facts(tree: Tree) -> DriverFacts:
    """What the last driver wrote of itself, and whether it is alive."""
    try:
        facts = json.loads(tree.read(DRIVER_FILE))
    except (OSError, ValueError):
        return DriverFacts()
    names = DriverFacts.__dataclass_fields__
    known = {k: v for k, v in facts.items() if k in names}
    return DriverFacts(**{**known, "alive": _alive(facts)})


def _alive(facts: Mapping[str, Any]) -> bool | None:
    if facts.get("ended_at"):
        return False
    if facts.get("host") != socket.gethostname():
        return None
    return process_birth(int(facts.get("pid", 0))) == facts.get("birth")


def _images(opened: Results) -> int:
    import pyarrow.compute as pc

    return pc.sum(opened.runs(columns=["images"])["images"]).as_py() or 0
