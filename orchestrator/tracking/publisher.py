"""The publisher: keeps one sweep's MLflow experiment a projection of its store.

``ledger`` takes what the sweep says of its runs; ``step`` does one piece of MLflow work and may raise
``OutageError``, after which calling it again later goes on where it stopped. What memory does not hold (rows
that were let go, runs of earlier sessions) is read again from the store.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import islice

from orchestrator.tracking import naming, reconcile
from orchestrator.tracking.ledger import Ledger
from orchestrator.tracking.parent import Parent
from orchestrator.tracking.remote import GoneError, OutageError, RefusedError, Remote, RemoteRun
from orchestrator.tracking.source import Source
from orchestrator.tracking.state import KILLED, RUNNING, Status, SweepInfo, Unit
from orchestrator.tracking.units import Units
from orchestrator.tracking.unitwriter import NotYetError, UnitWriter

MAX_TROUBLES = 3
LOOK_SECONDS = 5.0
BACKLOG_RUNS = 200
ROUND_SECONDS = 2.0  # between two visits to one unit while the sweep goes on


class Publisher:
    """Publishes one sweep through ``remote``, reading ``source`` where memory does not suffice."""

    def __init__(
        self, remote: Remote, source: Source, info: SweepInfo, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.info, self.source, self.remote, self._clock = info, source, remote, clock
        self.units = Units(source, info)
        self.ledger = Ledger(self.units, clock)
        self.parent = Parent(remote, source, info, clock)
        self.deleted: list[RemoteRun] = []
        self.refused = 0
        self.first_refusal = ""
        self.published = 0
        self._writer = UnitWriter(remote, source, info.sweep)
        self._round: deque[str] = deque()
        self._next_round = self._next_look = 0.0
        self._stranded: list[tuple[RemoteRun, str]] = []
        self._stale: list[tuple[RemoteRun, str]] = []
        self._checked = False
        self._troubles = 0

    def sweep_finished(self, status: str) -> None:
        """The sweep has ended with an MLflow status."""
        self.ledger.sweep_finished()
        self.parent.end(status)

    def step(self) -> bool:
        """One piece of work; whether there was any. Raises ``OutageError``."""
        if not self.parent.opened:
            self._start()
            return True
        if self._stranded:
            self._end_stranded()
            return True
        if self._stale:
            self._tag_stale()
            return True
        unit = self._next_unit()
        if unit is not None:
            return self._publish(unit)
        if self.ledger.backlog and not self.ledger.dirty:
            return self._take_backlog()
        if not self.ledger.open and self.ledger.waiting():
            return False
        if not self.ledger.open and not self._checked:
            self._compare()
            self._checked = True
            return True
        return self._parent_step()

    def idle(self) -> bool:
        """Whether all that is known is published."""
        ledger = self.ledger
        pending = ledger.dirty or ledger.backlog or self._round or self._stranded or self._stale
        return self.parent.opened and not pending and self.parent.settled

    def status(self) -> Status:
        return Status(
            waiting=self.ledger.waiting(),
            published=self.published,
            refused=self.refused,
            first_refusal=self.first_refusal,
            deleted=len(self.deleted) + self.parent.gone,
            experiment_id=self.parent.experiment_id,
            idle=self.idle(),
        )

    def abandon(self) -> None:
        """No more comes and no time is left: end what shows as RUNNING, if no other publisher has taken over."""
        if not self.parent.opened or not self.parent.still_ours():
            return
        runs = [u.remote for u in self.units.live.values() if u.remote is not None and not u.deleted]
        self._stranded += [(run, KILLED) for run in runs if run.status == RUNNING]
        while self._stranded:
            self._end_stranded()
        self.parent.set_status(self.parent.final_status or KILLED)

    def _start(self) -> None:
        """Open the experiment and compare what it shows with the store."""
        tags = {naming.KIND: "sweep", naming.SWEEP: self.info.sweep, "mlflow.experimentKind": naming.UI_KIND}
        name = self.info.experiment or self.info.sweep
        try:
            experiment = self.remote.experiment(name, tags=tags, artifacts=self.info.artifacts)
        except GoneError:
            raise OutageError(
                f"the experiment {name!r} was deleted in MLflow; `deyo-sweep sync-mlflow {self.info.sweep} "
                "--restore` brings it back"
            ) from None
        runs = self.remote.runs(experiment)
        self.parent.open(experiment, runs)
        self.units.meet(reconcile.by_key(runs, self.info.granularity))
        self._compare()
        self._writer.experiment_id, self._writer.parent_id = experiment, self.parent.mlflow_id
        for unit in self.units.live.values():
            self.ledger.mark(unit)

    def _compare(self) -> None:
        """Queue what MLflow lacks of the committed runs, at the beginning and once more at the end."""
        known, live = self.units.known, self.units.live
        found = reconcile.compare(self.source, known, self.info.granularity)
        self.ledger.backlog.update(found.publish)
        self._stranded += [(run, status) for run, status in found.stranded if run.key not in live]
        self._stale = [(run, value) for run, value in found.stale if run.key not in live]
        self.deleted = found.deleted

    def _next_unit(self) -> Unit | None:
        """The next one of this round. A round visits every unit that had news when it began."""
        ledger, now = self.ledger, self._clock()
        if not self._round and ledger.dirty and (not ledger.open or now >= self._next_round):
            self._round.extend(ledger.dirty)
            ledger.dirty.clear()
            self._next_round = now + ROUND_SECONDS
            ledger.recount()
            self.source.prefetch(ledger.to_be_read(self._round))
        while self._round:
            unit = self.units.live.get(self._round.popleft())
            if unit is not None:
                return unit
        return None

    def _publish(self, unit: Unit) -> bool:
        was_deleted = unit.deleted
        try:
            self.published += self._writer.publish(unit, sweep_open=self.ledger.open)
        except NotYetError:
            self.ledger.mark(unit)
            self._look_again()
            return False
        except OutageError as error:
            self.ledger.mark(unit)
            self._blame(unit, error)
            raise
        except OSError as error:
            self.ledger.mark(unit)
            raise OutageError(f"reading the results: {error}") from error
        except RefusedError as error:
            self._refuse(unit, str(error))
        unit.troubles = 0
        if unit.deleted and not was_deleted and unit.remote is not None:
            self.deleted.append(unit.remote)
        self.ledger.visited(unit)
        return True

    def _blame(self, unit: Unit, error: OutageError) -> None:
        """A unit that fails again and again while others go through is given up, not the rest with it."""
        if self.published > unit.published_then:
            unit.troubles += 1
        unit.published_then = self.published
        if unit.troubles >= MAX_TROUBLES:
            self.ledger.dirty.pop(unit.key, None)
            self._refuse(unit, str(error))

    def _refuse(self, unit: Unit, why: str) -> None:
        self._note_refusal(f"{naming.display_name(unit.axes, with_seed=not unit.grouped)}: {why}")
        self.ledger.let_go(unit)
        if unit.remote is not None and not unit.deleted:
            self._stranded.append((unit.remote, KILLED))

    def _note_refusal(self, what: str) -> None:
        self.refused += 1
        self.first_refusal = self.first_refusal or what

    def _take_backlog(self) -> bool:
        """The next runs to publish from the store."""
        taken = False
        for run_id in list(islice(self.ledger.backlog, BACKLOG_RUNS)):
            row = self.source.row(run_id)
            if row is None or row["attempt"] < self.ledger.backlog[run_id]:
                self.ledger.backlog.move_to_end(run_id)
            else:
                self.ledger.from_store(row)
                taken = True
        if not taken:
            self._look_again()
        return taken

    def _look_again(self) -> None:
        """Read the store's index anew, but not for each run that it does not show yet."""
        if self._clock() >= self._next_look:
            self.source.refresh()
            self._next_look = self._clock() + LOOK_SECONDS

    def _end_stranded(self) -> None:
        run, status = self._stranded[-1]
        try:
            if run.status == RUNNING:
                self.remote.set_status(run.mlflow_id, status)
                run.status = status
        except (GoneError, RefusedError) as error:
            self._note_refusal(f"the end of run {run.mlflow_id}: {error}")
        self._stranded.pop()

    def _tag_stale(self) -> None:
        """Tell apart what is no longer a result of the sweep (filter: tags.`deyo.stale` != 'true')."""
        run, value = self._stale[-1]
        try:
            self.remote.log(run.mlflow_id, tags={naming.STALE: value})
        except (GoneError, RefusedError) as error:
            self._note_refusal(f"run {run.mlflow_id}: {error}")
        run.tags = {**run.tags, naming.STALE: value}
        self._stale.pop()

    def _parent_step(self) -> bool:
        try:
            worked = self.parent.step()
        except GoneError:
            self.parent.lose()
            return True
        except RefusedError as error:
            self._note_refusal(f"the sweep's own run: {error}")
            self.parent.give_up()
            return True
        except OutageError as error:
            self._troubles += 1
            if self._troubles >= MAX_TROUBLES and self._answers():
                self._troubles = 0
                self._note_refusal(f"the sweep's own run: {error}")
                self.parent.give_up()
            raise
        self._troubles = 0
        return worked

    def _answers(self) -> bool:
        try:
            self.remote.probe()
        except OutageError:
            return False
        return True
