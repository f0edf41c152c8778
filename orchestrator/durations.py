"""How long a run will take, for the order of runs: always a number, unlike an estimate that is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.cost import CostModel, guess
from orchestrator.types import RunConfig

_SECONDS_OF_ANY_RUN = 0.1
_IMAGES = 1_000


@dataclass
class Durations:
    """Seconds of a run: from what was measured since the start, else from recorded speeds, else from the work to do."""

    model: CostModel = field(default_factory=CostModel)
    _measured: dict[tuple[str, str, int, str], float] = field(default_factory=dict)

    def seconds(self, config: RunConfig) -> float:
        images = self.model.images(config) or config.max_images or _IMAGES
        if (per_image := self._measured.get(_kind(config))) is not None:
            return _SECONDS_OF_ANY_RUN + images * per_image
        known = self.model.loop_seconds(config)
        if known is not None:
            return _SECONDS_OF_ANY_RUN + known
        return _SECONDS_OF_ANY_RUN + guess(config, images, self.model.device)

    def measured(self, config: RunConfig, row: Mapping[str, Any]) -> None:
        """Learn from a finished run's row."""
        if row.get("images") and row.get("seconds"):
            self._measured[_kind(config)] = row["seconds"] / row["images"]


def _kind(config: RunConfig) -> tuple[str, str, int, str]:
    return (config.method, config.model, config.batch_size, config.precision)
