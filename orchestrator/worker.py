"""What a worker does with a task, without Ray: opens data and networks, runs the group, hands out messages.

A worker lives long and keeps what the next task may need again: benchmarks, networks, decoded images (on the
GPU, where they fit). It knows neither the result store nor MLflow.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from deyo.benchmarks import default_cache
from deyo.benchmarks.base import BaseBenchmark
from deyo.kept import MethodPool
from deyo.types import Benchmark, ImageSet, Method, Network
from orchestrator import engine, provenance
from orchestrator.ahead import Ahead
from orchestrator.analyses import is_analysis
from orchestrator.artifacts import read_artifact
from orchestrator.gpu_images import GpuImages
from orchestrator.grouping import images_key, network_key
from orchestrator.rows import canonical
from orchestrator.types import Artifact, GroupTask, Message, PretrainTask, ProbeTask, RunConfig, Task

T = TypeVar("T")


class WrongDeviceError(RuntimeError):
    """The process does not see the GPU that was assigned to it."""


class Resident(Generic[T]):
    """Least recently used values up to a total size (bytes, or a count where every size is 1)."""

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self._held: OrderedDict[Hashable, tuple[T, float]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T], size: Callable[[T], float] = lambda _: 1) -> T:
        """The value of ``key``, made if it is not held; older ones are let go beyond the budget."""
        if key in self._held:
            self._held.move_to_end(key)
            return self._held[key][0]
        value = make()
        self._held[key] = (value, size(value))
        while self.used > self.budget and len(self._held) > 1:
            self._held.popitem(last=False)
        return value

    @property
    def used(self) -> float:
        return sum(size for _, size in self._held.values())

    def clear(self) -> None:
        self._held.clear()


@dataclass
class WorkerState:
    """A worker's device and what it keeps between tasks.

    ``gpu_share`` is the part of the GPU that is the worker's own, and ``image_share`` the part of that for resident
    images; on a CPU they stay where the benchmark keeps them (memory-mapped). ``decoders`` are the processes that may
    decode images for it (None: one a core). ``group_memory`` holds for each captured method the most bytes that one of
    its groups took: only the first one, which captures, shows them. ``broken`` says that the process cannot be used
    again.
    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    cache: Path | None = None
    gpu_share: float = 1.0
    image_share: float = 0.35
    decoders: int | None = None
    device_uuid: str = ""
    visible_devices: str | None = None
    benchmarks: Resident[Benchmark] = field(default_factory=lambda: Resident(4))
    networks: Resident[Network] = field(default_factory=lambda: Resident(3))
    images: Resident[ImageSet] | GpuImages = field(default_factory=lambda: Resident(64))
    methods: MethodPool = field(default_factory=MethodPool)
    fisher_kept: dict[Hashable, torch.Tensor] = field(default_factory=dict)
    group_memory: weakref.WeakKeyDictionary[Any, int] = field(default_factory=weakref.WeakKeyDictionary)
    broken: bool = False
    ahead: Ahead = field(default_factory=Ahead)

    def __post_init__(self) -> None:
        self.visible_devices = os.environ.get("CUDA_VISIBLE_DEVICES")
        self.device_name = "cpu"
        if self.device.type == "cuda":
            properties = torch.cuda.get_device_properties(self.device)
            self.device_name = properties.name
            self.device_uuid = str(properties.uuid)
            self.images = GpuImages(self.device, self.image_share * self.gpu_share * properties.total_memory)
            keep_compiled_code(self.cache or default_cache())
            import_networks()
            start_libraries(self.device)
        self.stamps: Mapping[str, Any] = provenance.stamps(str(self.device), self.device_name)

    def check_device(self) -> None:
        """Raises ``WrongDeviceError`` if the device is no longer the one that this worker started on."""
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        if seen != self.visible_devices:
            raise WrongDeviceError(f"CUDA_VISIBLE_DEVICES changed from {self.visible_devices} to {seen}")
        if self.device.type == "cuda":
            uuid = str(torch.cuda.get_device_properties(self.device).uuid)
            if uuid != self.device_uuid:
                raise WrongDeviceError(f"this worker started on GPU {self.device_uuid} and now sees {uuid}")

    def benchmark(self, task: Task, name: str, options: Mapping[str, Any]) -> Benchmark:
        skip_bad = isinstance(task, GroupTask | ProbeTask) and task.skip_bad
        roots = dict(task.locations)

        def make() -> Benchmark:
            kwargs: dict[str, Any] = dict(options) | ({"skip_bad": True} if skip_bad else {})
            opened = engine.open_benchmark(name, roots=roots, cache=self.cache, **kwargs)
            if isinstance(opened, BaseBenchmark):
                opened.workers = self.decoders
            return opened

        return self.benchmarks.get((name, canonical(options), canonical(roots), skip_bad), make)

    def network(self, task: GroupTask | ProbeTask, config: RunConfig, benchmark: Benchmark) -> Network:
        """The network of ``config``; from the sweep's own checkpoint where it was pretrained for it."""
        key = network_key(config)
        artifact = task.artifacts.get(key)
        given = task.locations.get(config.model)

        def make() -> Network:
            weights = Path(artifact.path) if artifact else Path(given) if given else None
            return engine.load_network(
                config.model,
                weights=weights,
                cache=self.cache,
                pretrain_seed=config.pretrain_seed,
                benchmark=benchmark,
            )

        kept = (key, config.benchmark, canonical(config.benchmark_options), artifact and artifact.sha256, given)
        return self.networks.get(kept, make)

    def image_set(self, benchmark: Benchmark, config: RunConfig) -> ImageSet:
        """The images of ``config``'s stream, on the GPU if they fit into its share."""

        def make() -> ImageSet:
            return engine.images_for(benchmark, config.scenario, config.corruption, config.severity, config.corruptions)

        return self.images.get((images_key(config), config.scenario), make)

    def memory_peak(self) -> tuple[int, int]:
        """Peak bytes since ``reset_peak`` and how much of that is resident images."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device), int(self.images.used)
        scale = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale, 0

    def memory_of(self, method: Method, before: int) -> tuple[int, int]:
        """Peak bytes of ``method``'s group: in all, and without resident images and what was there ``before``."""
        peak, resident = self.memory_peak()
        own = max(0, peak - resident - before)
        if self.device.type == "cuda" and isinstance(method, Hashable):
            own = self.group_memory[method] = max(own, self.group_memory.get(method, 0))
        return max(peak, own + resident), own

    def memory_taken(self) -> int:
        """Bytes on the GPU now, without resident images: networks, and methods that are kept (0 on a CPU)."""
        if self.device.type != "cuda":
            return 0
        taken = torch.cuda.memory_allocated(self.device) - int(self.images.used)
        return max(0, taken)  # images may still be on their way

    def reset_peak(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def recover(self) -> None:
        """After a failed task, when its exception is gone: let go of what may hold memory.

        Raises what CUDA raises where the device is of no use any more.
        """
        self.images.clear()
        self.fisher_kept.clear()
        self.networks.clear()
        self.methods.clear()
        if self.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()


def keep_compiled_code(cache: Path) -> None:
    """Let the compiler keep its results in ``cache``, unless the user has said where: by default they go with /tmp."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache / "compiled"))


def import_networks() -> None:
    """Import what most networks are made of: seconds for which the first run would wait with an idle GPU."""
    import timm  # noqa: F401
    import torchvision  # noqa: F401


def start_libraries(device: torch.device) -> None:
    """Let ``device`` load what the first run would wait for: cuDNN and cuBLAS, and gradients of inputs through them."""
    x = torch.ones(1, 8, 8, 8, device=device, requires_grad=True)
    convolved = torch.nn.functional.conv2d(x, torch.ones(8, 8, 1, 1, device=device))
    (convolved.flatten(0, 2) @ torch.ones(8, 8, device=device)).sum().backward()
    torch.cuda.synchronize(device)


def execute(task: Task, state: WorkerState) -> Iterator[Message]:
    """Run ``task`` and hand out its messages as they come. Raises what made the whole task fail."""
    from orchestrator.analyses.run import run_analyses
    from orchestrator.group_run import probe, run_group

    state.check_device()
    state.ahead.begin(task)
    if isinstance(task, PretrainTask):
        yield _pretrain(task, state)
    elif isinstance(task, ProbeTask):
        yield from probe(task, state)
    elif is_analysis(task.runs[0].config.method):
        yield from run_analyses(task, state)
    else:
        yield from run_group(task, state)


def _pretrain(task: PretrainTask, state: WorkerState) -> Artifact:
    benchmark = state.benchmark(task, task.benchmark, task.benchmark_options)
    recipe = engine.recipe_for(task.model, task.benchmark)
    path = engine.pretrain(recipe, benchmark, task.seed, device=state.device, cache=state.cache)
    return read_artifact(task.key, path)
