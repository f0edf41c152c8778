"""Runs groups on a Ray cluster: one long-lived actor for each GPU (or share of one, or few CPU cores).

Ray's own retries are off. Hosts that join get workers, workers that die are replaced, and each replacement is a
new slot, so that nothing of the old one can be taken for the new one's.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.util import accelerators
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.attempts import POLICIES, classify, make_failure
from orchestrator.executors.actor import Bundle, Worker, WorkerConfig, WorkerFacts
from orchestrator.executors.broker import Share
from orchestrator.executors.growth import Growth
from orchestrator.executors.layout import WorkerLayout
from orchestrator.executors.log_text import with_last_words
from orchestrator.executors.oom import Inquiry, Kills
from orchestrator.executors.ray_logs import WorkerOutput
from orchestrator.types import (
    Event,
    Failure,
    FailureClass,
    GroupTask,
    ProbeTask,
    RunFailed,
    Slot,
    SlotIdle,
    SlotJoined,
    SlotLost,
    Task,
    TaskEnded,
    TaskMessage,
)

NODES_EVERY = 2.0
LAST_WORDS_SECONDS = 0.5
_MAX_BACKOFF = 30.0
_GIVE_UP_STARTS = 4
_UNFINISHED_BUNDLES = 8


@dataclass(kw_only=True)
class _Actor:
    """A worker: starting while ``slot`` is None, busy while ``task`` is not."""

    handle: Any
    node_id: str
    hello: Any
    slot: Slot | None = None
    facts: WorkerFacts | None = None
    task: Task | None = None
    stream: Any = None


@dataclass(kw_only=True)
class _Dying:
    """Events of a death that are not told yet: what the worker printed last, and why it died, arrive a little later."""

    when: float
    events: list[Event]
    actor: _Actor | None = None
    inquiry: Inquiry | None = None


class RayExecutor:
    """Implements ``Executor`` on the cluster that this process is connected to (see ``orchestrator.cluster``)."""

    def __init__(self, layout: WorkerLayout | None = None, *, share: Share | None = None) -> None:
        self.layout = layout or WorkerLayout()
        self.share = share
        self.output = WorkerOutput()
        self.trouble = ""
        self.quota: int | None = None
        self.growth: Growth | None = None
        self._wanted: int | None = None
        self._actors: dict[str, _Actor] = {}
        self._names = itertools.count()
        self._nodes: dict[str, dict[str, Any]] = {}
        self._nodes_due = 0.0
        self._failures: Counter[str] = Counter()
        self._not_before: dict[str, float] = {}
        self._kills: defaultdict[str, Kills] = defaultdict(Kills)
        self._dying: list[_Dying] = []
        self._blobs: dict[str, Any] = {}
        self._here = ray.get_runtime_context().get_node_id()

    # The protocol

    def start(self, task: Task, slot: Slot) -> None:
        actor = self._actors.get(slot.slot_id)
        if actor is None:  # died since the driver chose it; that it is lost was or will be reported
            self._later([TaskEnded(task_id=task.task_id, slot_id=slot.slot_id, failure=_gone(slot))])
            return
        self.output.forget(slot.slot_id)
        actor.task = task
        actor.stream = actor.handle.run.options(
            num_returns="streaming", _generator_backpressure_num_objects=_UNFINISHED_BUNDLES
        ).remote(task, self._references(task, actor))

    def poll(self, timeout: float) -> Sequence[Event]:
        self._look_at_nodes()
        events = self._due()
        waiting = self._waiting()
        if not waiting:
            if not events:
                time.sleep(timeout)
            return events + self._due()
        refs = list(waiting)
        ready, rest = ray.wait(refs, timeout=0 if events else timeout, fetch_local=False)
        if ready and rest:
            ready += ray.wait(rest, num_returns=len(rest), timeout=0, fetch_local=False)[0]
        for ref in ready:
            events += self._advance(waiting[ref])
        return events

    def cancel(self, task_id: str) -> None:
        """A step cannot be interrupted: the worker goes, and another takes its place."""
        for name, actor in list(self._actors.items()):
            if actor.task is not None and actor.task.task_id == task_id:
                self._lose(name, make_failure(FailureClass.CANCELLED, "cancelled"), kill=True)

    def expected(self) -> int:
        return len(self._actors)

    def want(self, tasks: int) -> None:
        self._wanted = tasks

    def excuse(self) -> str:
        starting = sum(actor.slot is None for actor in self._actors.values())
        if self.quota == 0 and any(self._places(node) for node in self._nodes.values()):
            return "other sweeps of this cluster go first"
        if any(count >= _GIVE_UP_STARTS for count in self._failures.values()):
            return ""
        if starting:
            return f"{starting} workers are starting, or wait for resources that others hold"
        if self.growth is not None:
            if self.growth.waits(self.now()):
                return self.growth.asked
            self.trouble = self.growth.trouble(self.now()) or self.trouble
        return ""

    def now(self) -> float:
        return time.monotonic()

    def announce(self) -> None:
        """Tell of the workers that are there already: for the next driver that uses this executor."""
        self._later([SlotJoined(slot=actor.slot) for actor in self._actors.values() if actor.slot is not None])

    def close(self) -> None:
        for actor in self._actors.values():
            ray.kill(actor.handle)
        self._actors.clear()
        self.output.close()
        if self.share is not None:
            self.share.leave()

    def ask_autoscaler(self, *, grows: bool, tasks: int) -> None:
        """Let a cluster that ``grows`` on demand have hosts for as many workers as the layout names, if it names any.

        For ``tasks`` to do no more workers are asked for than that. The broker does the asking, for all sweeps of
        the cluster together.
        """
        if self.share is None or not self.layout.most:
            return
        workers, bundle = min(self.layout.most, max(1, tasks)), self.layout.bundle(ray_names())
        self.growth = Growth(workers=workers, bundle=bundle, since=self.now(), able=grows)
        self.share.asks = (workers, bundle)

    # Workers come and go

    def _look_at_nodes(self) -> None:
        if time.monotonic() < self._nodes_due:
            return
        self._nodes_due = time.monotonic() + NODES_EVERY
        alive = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        for node_id in self._nodes.keys() - alive.keys():
            failure = make_failure(
                FailureClass.NODE_LOST, f"host {self._nodes[node_id]['NodeManagerHostname']} is gone"
            )
            for name in [n for n, a in self._actors.items() if a.node_id == node_id]:
                self._lose(name, failure)
            self._failures.pop(node_id, None)
            self._not_before.pop(node_id, None)
            self._kills.pop(node_id, None)
        self._nodes = alive
        if self.share is not None:
            self.quota = self.share.update(self.layout, alive.values(), self._wanted)
            if self.quota is None:
                return  # the first answer comes within one look
        self._dismiss()
        self._hire()
        if self.growth is not None:
            self.growth.see(len(self._actors), self.now())

    def _places(self, node: dict[str, Any]) -> int:
        any_gpu = any(n["Resources"].get("GPU") for n in self._nodes.values())
        return self.layout.on_node(node["Resources"], node.get("Labels") or {}, any_gpu)

    def _dismiss(self) -> None:
        """Let idle workers go that are over this sweep's share; busy ones go when their group is done."""
        for name, actor in list(self._actors.items()):
            if not self._over():
                return
            if actor.task is None:
                self._retire(name)

    def _over(self) -> bool:
        return self.quota is not None and len(self._actors) > self.quota

    def _retire(self, name: str) -> None:
        actor = self._actors.pop(name)
        ray.kill(actor.handle)
        if actor.slot is not None:
            failure = make_failure(FailureClass.WORKER_LOST, "the worker was let go for another sweep")
            self._later([SlotLost(slot_id=name, failure=failure)])

    def _hire(self) -> None:
        """Start workers where the layout wants more than there are."""
        here = Counter(actor.node_id for actor in self._actors.values())
        most = min((n for n in (self.layout.most, self.quota) if n is not None), default=None)
        for node_id, node in self._nodes.items():
            for _ in range(self._places(node) - here[node_id]):
                if most is not None and len(self._actors) >= most:
                    return
                if time.monotonic() >= self._not_before.get(node_id, 0.0):
                    self._start_worker(node_id, node["Resources"])

    def _start_worker(self, node_id: str, resources: dict[str, float]) -> None:
        layout = self.layout
        on_gpu = bool(resources.get("GPU")) and layout.device != "cpu"
        environment = {} if on_gpu else {"CUDA_VISIBLE_DEVICES": ""}
        options: dict[str, Any] = {
            "num_cpus": layout.cpus_per_worker,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False),
            "runtime_env": {"env_vars": environment},
        }
        threads = max(1, int(layout.cpus_per_worker))
        if on_gpu:
            options |= {"num_gpus": layout.gpu_fraction}
            threads = max(threads, int(resources.get("CPU", 1) * layout.gpu_fraction / resources["GPU"]))
            options["num_cpus"] = layout.cores_beside_gpu(resources)
        if layout.memory_bytes:
            options["memory"] = layout.memory_bytes
        config = WorkerConfig(
            threads=threads,
            folder=os.getcwd() if node_id == self._here else "",
            gpu=layout.gpu_fraction if on_gpu else 0.0,
            cache=layout.cache if node_id == self._here else None,
            fake_gpu=layout.fake_gpus and on_gpu,
        )
        handle = ray.remote(Worker).options(**options).remote(config)
        name = f"worker-{next(self._names)}"
        self._actors[name] = _Actor(handle=handle, node_id=node_id, hello=handle.hello.remote())

    def _lose(self, name: str, failure: Failure, *, kill: bool = False) -> None:
        """The worker is gone or not to be used again; the driver hears of it a moment later, with its last words."""
        actor = self._actors.pop(name)
        if kill or failure.kind in (FailureClass.NODE_LOST, FailureClass.INFRASTRUCTURE):
            ray.kill(actor.handle)
        if actor.slot is None:  # it could not even start: the next one waits longer
            self._failures[actor.node_id] += 1
            pause = min(_MAX_BACKOFF, 0.25 * 2 ** self._failures[actor.node_id])
            self._not_before[actor.node_id] = time.monotonic() + pause
        self._nodes_due = min(self._nodes_due, time.monotonic() + 0.25)
        if actor.slot is None:
            self.trouble = failure.message
            return
        self._later([SlotLost(slot_id=name, failure=failure)], words_of=actor)

    # Messages

    def _waiting(self) -> dict[Any, str]:
        found = {}
        for name, actor in self._actors.items():
            if actor.slot is None:
                found[actor.hello] = name
            elif actor.stream is not None:
                found[actor.stream] = name
        return found

    def _advance(self, name: str) -> list[Event]:
        actor = self._actors.get(name)
        if actor is None:
            return []
        try:
            if actor.slot is None:
                return [self._welcome(name, actor, ray.get(actor.hello))]
            return self._bundle(name, actor, ray.get(next(actor.stream)))
        except StopIteration:
            task, actor.task, actor.stream = actor.task, None, None
            failure = make_failure(FailureClass.ERROR, "the worker ended its messages without an end")
            return [TaskEnded(task_id=task.task_id, slot_id=name, failure=failure)] if task else []
        except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as error:
            self._lose(name, self._death(actor, error), kill=True)
        except ray.exceptions.RayError as error:
            self._lose(name, classify(getattr(error, "cause", None) or error), kill=True)
        return []

    def _welcome(self, name: str, actor: _Actor, facts: WorkerFacts) -> SlotJoined:
        self._failures[actor.node_id] = 0
        actor.facts = facts
        self._kills[actor.node_id].hear(facts.oom_kills, self.now())
        self.output.know(name, facts.address, facts.pid)
        actor.slot = Slot(
            slot_id=name,
            node=actor.node_id,
            device=facts.device,
            gpu_name=facts.device_name if facts.device_name != "cpu" else "",
            memory_bytes=facts.memory_bytes,
        )
        return SlotJoined(slot=actor.slot)

    def _bundle(self, name: str, actor: _Actor, bundle: Bundle) -> list[Event]:
        assert actor.task is not None
        task_id = actor.task.task_id
        self._kills[actor.node_id].hear(bundle.oom_kills, self.now())
        events: list[Event] = [TaskMessage(task_id=task_id, message=m) for m in bundle.messages]
        if not bundle.ended:
            return events
        failed = bundle.failure is not None or any(isinstance(m, RunFailed) for m in bundle.messages)
        if isinstance(actor.task, GroupTask) and not failed and not self._over():
            events.insert(0, SlotIdle(task_id=task_id, slot_id=name))  # a GPU need not wait for what is written now
        actor.task = actor.stream = None
        events.append(TaskEnded(task_id=task_id, slot_id=name, failure=bundle.failure))
        if bundle.failure is not None and (bundle.broken or POLICIES[bundle.failure.kind].new_process):
            self._lose(name, bundle.failure, kill=True)
        elif self._over():
            self._retire(name)
        return events + self._due()  # that the worker goes must be known before it is given more to do

    def _death(self, actor: _Actor, error: Exception) -> Failure:
        """Why an actor died: its host, its memory, or something in the process."""
        text = str(error)
        detail = re.search(r"exit detail: (.*?)(?: Some common causes|$)", text, re.MULTILINE)
        message = detail[1] if detail else text
        nodes = {node["NodeID"]: node["Alive"] for node in ray.nodes()}
        if not nodes.get(actor.node_id, False) or isinstance(error, ray.exceptions.ActorUnavailableError):
            return make_failure(FailureClass.NODE_LOST, "the worker's host does not answer")
        if isinstance(error, ray.exceptions.OutOfMemoryError) or "running low on memory" in text:
            return make_failure(FailureClass.HOST_OOM, "the host ran low on memory and ended the worker")
        return make_failure(FailureClass.WORKER_LOST, f"the worker's process died. {message[:500]}")

    def _later(self, events: list[Event], *, words_of: _Actor | None = None) -> None:
        """Tell of ``events``; those of a worker's death a little later, when what it printed last has arrived."""
        dying = _Dying(when=time.monotonic(), events=events)
        if words_of is not None and words_of.task is not None and words_of.slot is not None:
            dying.actor, dying.when = words_of, dying.when + LAST_WORDS_SECONDS
            if any(isinstance(e, SlotLost) and e.failure.kind is FailureClass.WORKER_LOST for e in events):
                dying.inquiry = Inquiry.at(words_of.node_id, here=words_of.node_id == self._here)
        self._dying.append(dying)

    def _due(self) -> list[Event]:
        now = time.monotonic()
        due = [d for d in self._dying if d.when <= now and (d.inquiry is None or d.inquiry.over())]
        self._dying = [d for d in self._dying if not any(d is told for told in due)]
        return [event for dying in due for event in self._told(dying)]

    def _told(self, dying: _Dying) -> list[Event]:
        actor, events = dying.actor, dying.events
        if dying.inquiry is not None and self._was_killed(dying.inquiry, actor):
            failure = make_failure(FailureClass.HOST_OOM, "the host's kernel ended the worker for lack of memory")
            events = [replace(e, failure=failure) if isinstance(e, SlotLost) else e for e in events]
        if actor is None or actor.task is None or actor.slot is None:
            return events
        return with_last_words(actor.task, self.output.take(actor.slot.slot_id), events)

    def _was_killed(self, inquiry: Inquiry, actor: _Actor | None) -> bool:
        """Whether the kernel ended something on the host that no other death there is explained by."""
        if actor is None or inquiry.after is None:
            return False
        kills = self._kills[actor.node_id]
        kills.hear(inquiry.after, self.now())
        return kills.explain(inquiry.noticed)

    # Checkpoints travel

    def _references(self, task: Task, actor: _Actor) -> dict[str, Any]:
        """Bytes of artifacts for a worker on another host, put into the object store once."""
        if not isinstance(task, GroupTask | ProbeTask) or actor.node_id == self._here:
            return {}
        for artifact in task.artifacts.values():
            if artifact.sha256 not in self._blobs:
                self._blobs[artifact.sha256] = ray.put(artifact.blob or Path(artifact.path).read_bytes())
        return {a.sha256: self._blobs[a.sha256] for a in task.artifacts.values()}


def _gone(slot: Slot) -> Failure:
    return make_failure(FailureClass.WORKER_LOST, f"{slot.slot_id} was gone before the task began")


def ray_names() -> list[str]:
    """The kinds of GPUs that Ray has names for."""
    return [name for key, name in vars(accelerators).items() if key.isupper() and isinstance(name, str)]
