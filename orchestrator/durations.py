"""How long a run will take, for the order of runs: always a number, unlike an estimate that is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.cost import CostModel
from orchestrator.types import RunConfig

# Work on one image relative to a forward alone: reference speeds of the published step functions on an H100;
# MEMO and SENTRY by their number of augmented views. Used only where no speed was recorded.
_METHODS = {"no-adapt": 1.0, "bn-adapt": 1.0, "tent": 2.7, "eta": 2.7, "eata": 2.7, "sar": 5.8, "deyo": 4.1}
_METHODS |= {"sar-official": 5.8, "memo": 70.0, "sentry": 12.0}
_GFLOPS = {"small-resnet": 0.1, "resnet18": 1.8, "resnet50": 4.1, "vit-base": 17.5, "efficientnet": 0.4}
_GFLOPS_PER_SECOND = 20_000.0
_SECONDS_OF_ANY_RUN = 0.1
_IMAGES = 1_000


@dataclass
class Durations:
    """Seconds of a run: from this sweep's finished runs, else from recorded speeds, else from the work to do."""

    model: CostModel = field(default_factory=CostModel)
    _measured: dict[tuple[str, str, int, str], float] = field(default_factory=dict)

    def seconds(self, config: RunConfig) -> float:
        images = self.model.images(config) or config.max_images or _IMAGES
        if (per_image := self._measured.get(_kind(config))) is not None:
            return _SECONDS_OF_ANY_RUN + images * per_image
        known = self.model.seconds(config)
        if known is not None:
            return _SECONDS_OF_ANY_RUN + known
        gflops = next((value for part, value in _GFLOPS.items() if part in config.model), 4.1)
        work = images * gflops * _METHODS.get(config.method, 4.0)
        return _SECONDS_OF_ANY_RUN + work / _GFLOPS_PER_SECOND

    def measured(self, config: RunConfig, row: Mapping[str, Any]) -> None:
        """Learn from a finished run's row."""
        if row.get("images") and row.get("seconds"):
            self._measured[_kind(config)] = row["seconds"] / row["images"]


def _kind(config: RunConfig) -> tuple[str, str, int, str]:
    return (config.method, config.model, config.batch_size, config.precision)
