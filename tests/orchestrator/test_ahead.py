"""Reading ahead: what is prepared while a group runs, what its failures do, and that nothing is left behind."""

from __future__ import annotations

import fcntl
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from exec_fakes import make_driver, planned
from PIL import Image

from deyo import cache as cache_module
from deyo import cache_build, decode_children
from deyo.benchmarks import registry, transforms
from deyo.benchmarks.base import BaseBenchmark
from deyo.benchmarks.info import ALL_SEVERITIES, IMAGE_SCENARIOS, BenchmarkInfo
from deyo.benchmarks.sources import FileSource
from deyo.cache_build import locked
from deyo.decode_children import Children
from deyo.types import Network, NetworkInfo
from orchestrator import ahead as ahead_module
from orchestrator import group_run
from orchestrator.executors.inline import InlineExecutor
from orchestrator.types import FailureClass, GroupTask, PlannedRun, ProbeTask
from orchestrator.worker import WorkerState, execute

PICTURES = 12
PATIENCE = 60.0  # seconds until a thing that does not happen counts as failed


class Pictures(BaseBenchmark):
    """Image files in one folder for each corruption."""

    DECODES = True

    @staticmethod
    def describe() -> BenchmarkInfo:
        return BenchmarkInfo(
            name="pictures",
            num_classes=10,
            image_size=32,
            corruptions=tuple("abcdefgh"),
            severities=ALL_SEVERITIES,
            scenarios=IMAGE_SCENARIOS,
        )

    def recipe(self, corruption, severity):
        return self._recipe(f"{corruption}/{severity}", lambda: self._source(corruption))

    def _source(self, corruption):
        files = sorted((self.root / corruption).glob("*.png"))
        labels = np.arange(len(files)) % 10
        return FileSource(files, labels, 32, transforms.center_crop(32), root=self.root)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pictures' folder, under the name that the benchmark ``pictures`` is told of."""
    monkeypatch.setattr(registry, "benchmark_class", lambda name: Pictures)
    monkeypatch.setattr(cache_build, "_FLUSH_SECONDS", 0.05)
    monkeypatch.setattr(WorkerState, "network", lambda *_: network())
    draw = np.random.default_rng(0)
    for corruption, k in itertools.product("abcdefgh", range(PICTURES)):
        file = tmp_path / "data" / corruption / f"{k}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(file)
    return tmp_path / "data"


def network() -> Network:
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 4, 8, 8), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(64, 10)]
    info = NetworkInfo(name="tiny", family="resnet", norm="bn", num_classes=10, image_size=32)
    module = torch.nn.Sequential(*layers).eval()
    return Network(info=info, module=module, mean=(0.5,) * 3, std=(0.2,) * 3, num_classes=10, sha256="0")


def runs(corruptions: str) -> list[PlannedRun]:
    fields = {"benchmark": "pictures", "model": "tiny", "method": "no-adapt", "settings": {}, "batch_size": 4}
    return [planned(n, corruption=c, **fields) for n, c in enumerate(corruptions)]


class Events:
    """What happened, in order; ``wait`` until something has."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._changed = threading.Condition()

    def add(self, event: str) -> None:
        with self._changed:
            self.seen.append(event)
            self._changed.notify_all()

    def wait(self, event: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: event in self.seen, PATIENCE), (event, self.seen)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    """``begin a`` and ``end a`` of runs, ``ask a`` of arrays that a run makes, ``ahead a`` of those made ahead."""
    found = Events()
    build, advance = cache_module._build, group_run._advance

    def building(recipe, *given, **how):
        found.add(f"{'ahead' if how['ahead'] else 'ask'} {recipe.name.split('/')[1]}")
        build(recipe, *given, **how)

    def advancing(members, *given):
        corruption = members[0].run.config.corruption
        found.add(f"begin {corruption}")
        yield from advance(members, *given)
        found.add(f"end {corruption}")

    monkeypatch.setattr(cache_module, "_build", building)
    monkeypatch.setattr(group_run, "_advance", advancing)
    return found


@pytest.fixture
def decoding(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], None]], None]:
    """Lets a function of the corruption be called before children read a part."""

    def before(action: Callable[[str], None]) -> None:
        read = Children.read

        def slow(children, part, start):
            action(part.files[0].parent.name)
            return read(children, part, start)

        monkeypatch.setattr(Children, "read", slow)

    return before


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[InlineExecutor]:
    made = InlineExecutor(WorkerState(cache=tmp_path / "cache"))
    yield made
    made.close()


def sweep(executor: InlineExecutor, data: Path, corruptions: str, **options: object):
    driver = make_driver(runs(corruptions), executor, locations={"pictures": str(data)}, **options)
    return driver, driver.run()


def test_the_next_groups_images_are_prepared_while_one_runs(data, executor, events, decoding, monkeypatch) -> None:
    """Run ``a`` does not go on before the images of ``b`` are being decoded, and these wait for the end of ``a``."""

    def before_decoding(corruption: str) -> None:
        events.add(f"decode {corruption}")
        if corruption == "b":
            events.wait("end a")

    adapt = group_run.engine.adapt

    def adapting(*given, **how):
        if "begin b" not in events.seen:
            events.wait("decode b")
        return adapt(*given, **how)

    decoding(before_decoding)
    monkeypatch.setattr(group_run.engine, "adapt", adapting)
    driver, outcome = sweep(executor, data, "abc")
    assert outcome.committed == 3
    assert events.seen.index("begin a") < events.seen.index("ahead b") < events.seen.index("end a")
    assert [event for event in events.seen if event.startswith(("ask", "ahead"))] == ["ask a", "ahead b", "ahead c"]
    alone = InlineExecutor(WorkerState(cache=data.parent / "other"))
    monkeypatch.setattr(ahead_module, "_wish", lambda *_: None)
    other, _ = sweep(alone, data, "abc")
    assert events.seen[-9:] == [f"{what} {c}" for c in "abc" for what in ("ask", "begin", "end")]
    for one, two in zip(driver.store.commits.values(), other.store.commits.values()):
        for name in ("accuracy", "mean_entropy", "data_fingerprint", "stream_digest"):
            assert one[1][name] == two[1][name]


def test_an_unreadable_file_read_ahead_fails_the_run_that_needs_it_alone(data, executor, events) -> None:
    (data / "b" / "3.png").write_bytes(b"no picture")
    _, outcome = sweep(executor, data, "abc")
    assert outcome.committed == 2
    (failure,) = outcome.failures.values()
    assert failure.kind is FailureClass.DATA
    assert "b/3.png" in failure.message
    assert "ahead b" in events.seen
    assert {e for e in events.seen if e.startswith("end")} == {"end a", "end c"}


def task(own: str, later: str, data: Path, **fields: object) -> GroupTask:
    ahead = tuple(run.config for run in runs(later))
    (run,) = runs(own)
    locations = {"pictures": str(data)}
    return GroupTask(task_id="t", runs=(run,), attempts={run.run_id: 1}, locations=locations, ahead=ahead, **fields)


def start_reading(executor: InlineExecutor, given: GroupTask) -> None:
    """Run ``given`` up to its first message."""
    executor.start(given, executor.slot)
    next(executor._messages)


def test_cancelling_leaves_nothing_behind(data, executor, events, decoding, monkeypatch) -> None:
    children = []
    start = decode_children.Child.__init__

    def starting(child, *given):
        children.append(child)
        start(child, *given)

    def before_decoding(corruption: str) -> None:
        if corruption == "b":
            events.add("decode b")
            events.wait("cancelled")

    monkeypatch.setattr(decode_children.Child, "__init__", starting)
    decoding(before_decoding)
    start_reading(executor, task("a", "bc", data))
    events.wait("decode b")
    thread = executor.state.ahead._thread
    assert thread.is_alive()
    threading.Timer(0.2, events.add, ["cancelled"]).start()
    executor.cancel("t")
    assert not thread.is_alive()
    assert executor.state.ahead._thread is None
    assert all(child.process.poll() is not None for child in children)
    assert "ahead c" not in events.seen
    with locked(next((data.parent / "cache" / "prepared" / "pictures" / "b").rglob("*.lock")), pytest.fail):
        pass


def test_a_task_that_was_not_foreseen_ends_what_is_under_way(data, executor, events, decoding) -> None:
    """Of the images of ``b`` nothing is decoded any more once ``c`` is needed; ``c`` is not kept waiting."""
    wishes = []

    def before_decoding(corruption: str) -> None:
        if corruption == "b":
            wishes.append(executor.state.ahead._now)
            events.add("decode b")
            assert wishes[-1].over.wait(PATIENCE)

    decoding(before_decoding)
    state = executor.state
    list(execute(task("a", "b", data), state))
    events.wait("decode b")
    assert not wishes[0].over.is_set()
    list(execute(task("c", "", data), state))
    assert "end c" in events.seen
    assert wishes[0].over.is_set()
    state.ahead.stop()
    assert {file.parts[-4] for file in (data.parent / "cache").rglob("meta.json")} == {"a", "c"}


def test_what_was_given_up_is_taken_up_again_when_it_is_wanted_again(data, executor, events, decoding) -> None:
    ahead, seen = executor.state.ahead, []

    def before_decoding(corruption: str) -> None:
        if corruption == "b" and not seen:
            seen.append(ahead._now)
            events.add("decode b")
            assert seen[0].over.wait(PATIENCE)
            events.wait("end c")

    decoding(before_decoding)
    list(execute(task("a", "b", data), executor.state))
    events.wait("decode b")
    list(execute(task("c", "b", data), executor.state))
    if ahead._thread is not None:
        ahead._thread.join(PATIENCE)
    assert events.seen.count("ahead b") == 2


def test_a_task_that_was_foreseen_waits_for_what_is_under_way(data, executor, events, decoding) -> None:
    def before_decoding(corruption: str) -> None:
        if corruption == "b":
            events.add("decode b")
            time.sleep(0.2)
            assert not executor.state.ahead._now.over.is_set()

    decoding(before_decoding)
    list(execute(task("a", "b", data), executor.state))
    events.wait("decode b")
    list(execute(task("b", "", data), executor.state))
    assert "ask b" not in events.seen
    assert events.seen[-2:] == ["begin b", "end b"]


def test_a_probe_reads_ahead_too(data, executor, events) -> None:
    given = task("a", "b", data)
    probe = ProbeTask(task_id="p", run=given.runs[0], locations=given.locations, ahead=given.ahead)
    list(execute(probe, executor.state))
    events.wait("ahead b")


def test_nothing_is_read_ahead_that_does_not_fit_three_times(data, executor, events, monkeypatch) -> None:
    each = PICTURES * 32 * 32 * 3
    monkeypatch.setattr(cache_module, "free_bytes", lambda path: (1 << 30) + 3 * each - 1)
    _, outcome = sweep(executor, data, "ab")
    assert outcome.committed == 2
    assert [event for event in events.seen if event.startswith(("ask", "ahead"))] == ["ask a", "ask b"]
    monkeypatch.setattr(cache_module, "free_bytes", lambda path: (1 << 30) + 3 * each)
    list(execute(task("a", "c", data), executor.state))
    events.wait("ahead c")


def test_one_worker_of_a_host_reads_ahead_at_a_time(data, executor, events, monkeypatch) -> None:
    lock = data.parent / "cache" / "prepared" / "ahead.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        taken = ahead_module._taken
        monkeypatch.setattr(ahead_module, "_taken", lambda: (events.add("waits"), taken()))
        list(execute(task("a", "b", data), executor.state))
        events.wait("waits")
        assert "ahead b" not in events.seen
    events.wait("ahead b")


def test_no_thread_starts_where_nothing_is_decoded(data, executor, monkeypatch) -> None:
    monkeypatch.setattr(Pictures, "DECODES", False)
    monkeypatch.setattr(ahead_module, "Wish", None)
    _, outcome = sweep(executor, data, "ab")
    assert outcome.committed == 2
    assert executor.state.ahead._thread is None


def test_what_a_benchmark_cannot_be_opened_for_is_left_to_the_run(data, executor) -> None:
    given = task("a", "b", data)
    broken = replace(given.ahead[0], benchmark_options={"no": "such"})
    list(execute(replace(given, ahead=(broken,)), executor.state))
    assert executor.state.ahead._thread is None


def names(tasks: list) -> list[str]:
    return ["".join(config.corruption or "" for config in given.ahead) for given, _ in tasks]


def test_a_driver_names_the_next_image_sets_that_its_host_has_not_met() -> None:
    from exec_fakes import ScriptedExecutor

    scripted = ScriptedExecutor()
    make_driver(runs("aabbcdefg"), scripted, lockstep=True, group_size=3).run()
    assert ["".join(r.config.corruption for r in given.runs) for given, _ in scripted.tasks] == ["aab", "bcd", "efg"]
    assert names(scripted.tasks) == ["cde", "efg", ""]
