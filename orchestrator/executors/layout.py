"""How a cluster is cut into workers."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from orchestrator.gpu_kinds import among, same_kind

_GPU_LABEL = "ray.io/accelerator-type"


@dataclass(frozen=True, kw_only=True)
class WorkerLayout:
    """How a cluster is cut into workers.

    ``device``: "gpu", "cpu", or "auto" (GPUs where any host has one, else CPUs). ``workers``, ``gpus``: at most
    so many. ``gpu_type`` skips hosts whose label names another kind. ``fake_gpus`` lets workers that were
    assigned a GPU compute on the CPU (tests of scheduling). ``cache`` is the driver's own: other hosts keep theirs
    where DEYO_CACHE says there.
    """

    device: str = "auto"
    workers: int | None = None
    gpus: int | None = None
    gpu_fraction: float = 1.0
    gpu_type: str = ""
    cpus_per_worker: float = 1.0
    memory_gb: float | None = None
    cache: str | None = None
    fake_gpus: bool = field(default_factory=lambda: bool(os.environ.get("DEYO_FAKE_GPUS")))

    def on_node(self, resources: dict[str, float], labels: dict[str, str], any_gpu: bool) -> int:
        """How many workers a host gets."""
        gpus = resources.get("GPU", 0.0)
        if self.uses_gpus(any_gpu):
            label = labels.get(_GPU_LABEL, "")
            if self.gpu_type and label and not same_kind(self.gpu_type, label):
                return 0
            return int(gpus / self.gpu_fraction + 1e-6)
        return int(resources.get("CPU", 0.0) / self.cpus_per_worker + 1e-6)

    def uses_gpus(self, any_gpu: bool) -> bool:
        """Whether workers take GPUs, on a cluster where any host has one or none does."""
        return self.device == "gpu" or (self.device == "auto" and any_gpu)

    def size(self, any_gpu: bool) -> float:
        """GPUs, or CPU cores, that a worker takes."""
        return self.gpu_fraction if self.uses_gpus(any_gpu) else self.cpus_per_worker

    def pool(self, labels: dict[str, str], any_gpu: bool) -> str:
        """What a worker on a host takes: "cpu", or "gpu" and the kind that the host's label names."""
        return f"gpu {labels.get(_GPU_LABEL, '')}".strip() if self.uses_gpus(any_gpu) else "cpu"

    def bundle(self, known_gpus: Iterable[str] = ()) -> dict[str, float]:
        """What one worker takes, in Ray's names of resources, as an autoscaler is asked for it.

        A kind of GPU is asked for as Ray's own ``accelerator_type`` option does: by a thousandth of a resource that
        hosts of the kind have one of. ``known_gpus`` are Ray's names of kinds.
        """
        found: dict[str, float] = {}
        if self.device != "cpu":
            found["GPU"] = self.gpu_fraction
            if self.gpu_type:
                found[f"accelerator_type:{among(self.gpu_type, known_gpus)}"] = 0.001
        found["CPU"] = self.cpus_per_worker
        if self.memory_bytes:
            found["memory"] = float(self.memory_bytes)
        return found

    @property
    def memory_bytes(self) -> int:
        """Memory that a worker reserves on its host; 0 for none."""
        return int((self.memory_gb or 0) * 2**30)

    @property
    def most(self) -> int | None:
        """How many workers there may be at most; None for as many as fit."""
        by_gpus = int(self.gpus / self.gpu_fraction + 1e-6) if self.gpus is not None and self.device != "cpu" else None
        return min((limit for limit in (self.workers, by_gpus) if limit is not None), default=None)

    def cores_beside_gpu(self, resources: dict[str, float]) -> float:
        """CPU cores that a GPU worker reserves: no more than its even share, so that all workers of a host start.

        Rounded down to Ray's unit of resources, 1/10000.
        """
        share = resources.get("CPU", 0.0) * self.gpu_fraction / resources["GPU"]
        return min(self.cpus_per_worker, math.floor(share * 10_000 + 1e-6) / 10_000)
