"""The long-lived Ray actor that owns one device: a thin frame around ``orchestrator.worker``."""

from __future__ import annotations

import faulthandler
import os
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.executors.oom import oom_kills
from orchestrator.types import Artifact, Failure, GroupTask, Message, ProbeTask, Task

BUNDLE_SECONDS = 2.0
"""Messages are sent together, at the latest after this time."""

LEAST_DECODERS = 16
"""Processes that a worker may start to decode images if the host has as many cores, whatever its share of them."""


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """What a worker is told at its start.

    ``gpu`` is the share of a GPU that is its own (0: CPU only). ``folder`` is where the driver was started, for
    workers of the same host: relative paths in a spec mean the same there.
    """

    threads: int
    folder: str = ""
    gpu: float = 0.0
    cache: str | None = None
    fake_gpu: bool = False


@dataclass(frozen=True, kw_only=True)
class WorkerFacts:
    """What a worker says of itself once it is ready."""

    host: str
    address: str
    pid: int
    device: str
    device_name: str
    device_uuid: str
    memory_bytes: int
    oom_kills: int = 0


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """Some messages of a task in order; ``ended`` with its last ones, ``failure`` if it failed as a whole.

    ``broken``: the worker's process must not be used again. ``oom_kills``: the host's count when this was sent.
    """

    messages: tuple[Message, ...]
    ended: bool = False
    failure: Failure | None = None
    broken: bool = False
    oom_kills: int = 0


class Worker:
    """Made into an actor by ``RayExecutor``. One task at a time."""

    def __init__(self, config: WorkerConfig) -> None:
        faulthandler.enable()
        self.config = config
        if config.folder and os.path.isdir(config.folder):
            os.chdir(config.folder)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        import torch

        torch.set_num_threads(config.threads)
        from deyo.decode_children import cores
        from orchestrator.worker import WorkerState

        device = torch.device("cpu")
        if config.gpu and not config.fake_gpu:
            device = _assigned_gpu(config.gpu)
        cache, share = Path(config.cache) if config.cache else None, min(config.gpu or 1.0, 1.0)
        decoders = max(config.threads, min(cores(), LEAST_DECODERS))
        self.state = WorkerState(device=device, cache=cache, gpu_share=share, decoders=decoders)

    def hello(self) -> WorkerFacts:
        """Facts about this worker; answering says that it is ready."""
        import ray
        import torch

        memory = 0
        if self.state.device.type == "cuda":
            memory = torch.cuda.get_device_properties(self.state.device).total_memory
        return WorkerFacts(
            host=socket.gethostname(),
            address=ray.util.get_node_ip_address(),
            pid=os.getpid(),
            device=str(self.state.device),
            device_name="fake" if self.config.fake_gpu else self.state.device_name,
            device_uuid=self.state.device_uuid,
            memory_bytes=int(memory * self.config.gpu),
            oom_kills=oom_kills(),
        )

    def run(self, task: Task, blobs: Mapping[str, Any]) -> Iterator[Bundle]:
        """The task's messages as they come. ``blobs``: object references of artifacts' bytes, by hash."""
        from orchestrator.executors.guard import captured

        if isinstance(task, GroupTask | ProbeTask):
            task = replace(task, artifacts={k: self._local(a, blobs) for k, a in task.artifacts.items()})
        messages: list[Message] = []
        failure: Failure | None = None
        due = time.monotonic() + BUNDLE_SECONDS
        for message in captured(task, self.state, echo=True):
            if isinstance(message, Failure):
                failure = message
                break
            messages.append(message)
            if time.monotonic() >= due:
                yield Bundle(messages=tuple(messages), oom_kills=oom_kills())
                messages, due = [], time.monotonic() + BUNDLE_SECONDS
        end: dict[str, Any] = {"ended": True, "failure": failure, "broken": self.state.broken}
        yield Bundle(messages=tuple(messages), oom_kills=oom_kills(), **end)

    def _local(self, artifact: Artifact, blobs: Mapping[str, Any]) -> Artifact:
        """The artifact as a file on this host; its bytes are fetched only if they are not here yet."""
        from orchestrator.artifacts import file_sha256, shipped_path, write_atomically

        given = Path(artifact.path)
        if given.is_file() and file_sha256(given) == artifact.sha256:
            return artifact
        path = shipped_path(artifact, self.state.cache)
        if not path.exists():
            import ray

            write_atomically(path, ray.get(blobs[artifact.sha256]))
        return replace(artifact, path=str(path))


def _assigned_gpu(share: float) -> Any:
    """The one GPU that Ray gave this process; raises if the process sees another, or none."""
    import ray
    import torch

    from orchestrator.worker import WrongDeviceError

    assigned = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not torch.cuda.is_available():
        raise WrongDeviceError(f"Ray assigned GPU {assigned}, but torch {torch.__version__} finds no CUDA device")
    if seen.split(",") != [str(a) for a in assigned] or torch.cuda.device_count() != 1:
        raise WrongDeviceError(f"Ray assigned GPU {assigned}, but this process sees CUDA_VISIBLE_DEVICES={seen!r}")
    device = torch.device("cuda", 0)
    _wait_for_memory(device, share)
    if share < 1:
        torch.cuda.set_per_process_memory_fraction(share, device)
    return device


def _wait_for_memory(device: Any, share: float, patience: float = 30.0) -> None:
    """The process that had this GPU before may need a moment to let go of its memory (ray#44821)."""
    import torch

    until = time.monotonic() + patience
    while time.monotonic() < until:
        free, total = torch.cuda.mem_get_info(device)
        if free >= 0.8 * share * total:
            return
        time.sleep(0.5)
