"""What workers print, as Ray forwards it to the driver: the only trace of a process that crashed."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from typing import Any

KEPT_LINES = 200
_NAME = "deyo-sweep"


class WorkerOutput:
    """The last lines of each worker since its task began.

    Ray sends a worker's output to the driver in order to print it there; this takes the place of the printing, also
    of Ray's own paragraph for each process that died (the failure says so already). The hooks are not public: where
    they are missing, crashed workers leave no last words, and nothing else changes.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], deque[str]] = defaultdict(lambda: deque(maxlen=KEPT_LINES))
        self._where: dict[str, tuple[str, str]] = {}
        self._lock = threading.Lock()
        try:
            from ray._private.ray_logging import global_worker_stdstream_dispatcher
        except ImportError:
            self._dispatcher = None
            return
        _keep_quiet()
        self._dispatcher = global_worker_stdstream_dispatcher
        self._dispatcher.remove_handler("ray_print_logs")
        self._dispatcher.add_handler(_NAME, self._receive)

    def know(self, slot_id: str, address: str, pid: int) -> None:
        """Which process a slot is."""
        self._where[slot_id] = (address, str(pid))

    def forget(self, slot_id: str) -> None:
        """A task begins: what was printed before is not its."""
        self.take(slot_id)

    def take(self, slot_id: str) -> str:
        """The lines kept for the slot, which are then forgotten."""
        with self._lock:
            lines = self._lines.pop(self._where.get(slot_id, ("", "")), ())
        return "".join(f"{line}\n" for line in lines)

    def close(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.remove_handler(_NAME)

    def _receive(self, data: dict[str, Any]) -> None:
        with self._lock:
            self._lines[str(data.get("ip", "")), str(data.get("pid", ""))].extend(data.get("lines", ()))


def _keep_quiet() -> None:
    """Ray prints nothing of workers from now on, also not what is still on its way when the sweep is over."""
    from ray._private import worker

    if hasattr(worker, "_worker_logs_enabled"):
        worker._worker_logs_enabled = False
