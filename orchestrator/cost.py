"""What a sweep will cost: seconds of a device for each run, from recorded speeds.

Speeds come from ``runs`` rows of the results root (medians by method, network, batch size, precision and device), and
where there are none from ``speeds.csv``: published measurements, slower than this engine. Where neither knows, the
estimate is a guess from the network's size, shown apart and called so.
"""

from __future__ import annotations

import contextlib
import csv
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from orchestrator.between import Between
from orchestrator.types import PlannedRun, RunConfig

Kind = tuple[str, str, int, str]
"""method, network, batch size, precision."""

IMAGES = {
    "imagenet-c": 50_000,
    "imagenet-r": 30_000,
    "visda-2021": 17_304,
    "waterbirds": 5_794,
    "colored-mnist": 20_000,
    "cifar10-c": 10_000,
    "digits-c": 1_000,
    "colored-digits": 599,
}
"""Test images of one condition: as published (methods.md §3), and of the bundled digits."""
COLUMNS = [
    "benchmark",
    "scenario",
    "corruption",
    "severity",
    "corruptions",
    "max_images",
    "method",
    "model",
    "batch_size",
    "precision",
    "device_name",
    "images",
    "seconds",
    "decode_seconds",
    "group_size",
    "host",
    "device",
    "started_at",
    "finished_at",
]
"""Columns of ``runs`` that the model learns from."""
# Work on one image relative to a forward alone: reference speeds of the published step functions on an H100;
# MEMO and SENTRY by their number of augmented views. Used only where no speed was recorded.
_METHODS = {"no-adapt": 1.0, "bn-adapt": 1.0, "tent": 2.7, "eta": 2.7, "eata": 2.7, "sar": 5.8, "deyo": 4.1}
_METHODS |= {"sar-official": 5.8, "memo": 70.0, "sentry": 12.0}
_GMACS = {"small-resnet": 0.003, "resnet18": 1.8, "resnet50": 4.1, "vit-base": 17.5, "efficientnet": 0.4}
_GMACS_PER_SECOND = {"gpu": 20_000.0, "cpu": 10.0}
LABEL_SHIFT_DRAWS = 100
"""Steps for each class in label-shift streams (methods.md §3.2)."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Device hours of a set of runs. ``unknown`` counts the runs, by method and network, of unknown speed.

    Their hours are not in ``hours`` but, as far as they can be guessed from the networks' size, in ``guessed``.
    """

    hours: float
    runs: int
    device: str
    recorded: int
    unknown: Mapping[tuple[str, str], int] = field(default_factory=dict)
    guessed: float = 0.0

    def text(self) -> str:
        """One line for the terminal."""
        known = self.runs - sum(self.unknown.values())
        if not self.runs:
            return "nothing to run"
        if not known:
            guess = f"a rough guess of {self._amount(self.guessed)} from the networks' size: " if self.guessed else ""
            return f"{guess or 'cost unknown: '}no speeds recorded yet for {_listed(self.unknown)}"
        source = "recorded speeds" if self.recorded == known else "published speeds (this engine is faster)"
        if 0 < self.recorded < known:
            source = f"speeds recorded for {self.recorded} of {known} runs, published ones for the rest"
        line = f"about {self._amount(self.hours)}, from {source}"
        if self.unknown:
            line += f"; not counting {_listed(self.unknown)} (no speeds recorded yet"
            line += f"; a rough guess: {self._amount(self.guessed)} more)" if self.guessed else ")"
        return line

    def _amount(self, hours: float) -> str:
        amount, unit = (hours, "hours") if hours >= 0.1 else (hours * 60, "minutes")
        return f"{_rounded(amount)} {'CPU' if self.device == 'cpu' else 'GPU'}-{unit} on {self.device or 'one device'}"


class CostModel:
    """Seconds a run takes on ``device``: one group's share of it, other runs beside it included, and what passes
    between two groups.

    Reading an image set is paid by the first run that needs it, whichever that is, so it is counted by itself.
    What ``others`` (rows of other sweeps) say holds where the sweep's own ``rows`` say nothing.
    """

    def __init__(
        self,
        rows: Iterable[Mapping[str, Any]] = (),
        *,
        others: Iterable[Mapping[str, Any]] = (),
        device: str | None = None,
    ) -> None:
        self._images: dict[tuple[Any, ...], int] = {}
        self._decoded: dict[str, dict[tuple[Any, ...], float]] = {}
        self._recorded: dict[tuple[str, Kind], float] = {}
        self._between: dict[str, float] = {}
        elsewhere, own = self._learn(others), self._learn(rows)
        devices = (own or elsewhere).most_common(1)
        self.learnt_here = bool(own)
        self.device = device or (devices[0][0] if devices else _published_device())

    @classmethod
    def of(cls, results: str, sweep: str) -> CostModel:
        """From the finished runs of ``sweep`` and of the other sweeps under the root ``results``."""
        from orchestrator.results import sweeps

        there = sweeps(results)
        own, others = [n for n in there if n == sweep], [n for n in there if n != sweep]
        return cls(_rows(results, own), others=_rows(results, others))

    def _learn(self, rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
        """Take in what ``rows`` say, over what was known; how many there are of each device."""
        per_image: dict[tuple[str, Kind], list[float]] = defaultdict(list)
        between: dict[str, Between] = defaultdict(Between)
        devices: Counter[str] = Counter()
        for row in rows:
            if not row["images"] or not row["seconds"]:
                continue
            name = row["device_name"] or "cpu"
            devices[name] += 1
            between[name].add(row)
            kind = (row["method"], row["model"], row["batch_size"], row["precision"])
            per_image[name, kind].append(row["seconds"] / row["images"])
            self._images[_stream_of(row)] = row["images"]
            known = self._decoded.setdefault(row["benchmark"], {})
            known[_set_of(row)] = max(known.get(_set_of(row), 0.0), row["decode_seconds"] or 0.0)
        self._recorded |= {key: statistics.median(values) for key, values in per_image.items()}
        found = {name: of_device.seconds() for name, of_device in between.items()}
        self._between |= {name: seconds for name, seconds in found.items() if seconds is not None}
        return devices

    def seconds(self, config: RunConfig) -> float | None:
        """Device seconds of one run, or None if its speed or length is not known."""
        found = self.lookup(config)
        return found[0] if found else None

    def lookup(self, config: RunConfig) -> tuple[float, bool] | None:
        """Seconds, and whether they come from recorded rows (else from the published table)."""
        loop = self._loop(config)
        return None if loop is None else (loop[0] + self._between.get(self.device, 0.0), loop[1])

    def loop_seconds(self, config: RunConfig) -> float | None:
        """What of ``seconds`` is the adaptation alone."""
        loop = self._loop(config)
        return loop[0] if loop else None

    def _loop(self, config: RunConfig) -> tuple[float, bool] | None:
        images = self.images(config)
        if images is None:
            return None
        kind = (config.method, config.model, config.batch_size, config.precision)
        if (per_image := self._recorded.get((self.device, kind))) is not None:
            return images * per_image, True
        speed = _published().get((self.device, kind))
        return None if speed is None else (images / speed, False)

    def images(self, config: RunConfig) -> int | None:
        """Length of the run's stream: as recorded, else as published; None if neither is known."""
        recorded = self._images.get(_stream_of(vars(config)))
        if recorded is not None:
            return recorded
        whole = IMAGES.get(config.benchmark)
        if whole is not None and config.scenario == "label-shift" and config.benchmark == "imagenet-c":
            whole = LABEL_SHIFT_DRAWS * 1000
        if whole is not None:
            whole *= len(config.corruptions) or 1
        if config.max_images is not None:
            return config.max_images if whole is None else min(whole, config.max_images)
        return whole

    def reading(self, configs: Iterable[RunConfig]) -> float:
        """Seconds of reading the image sets of ``configs`` that no recorded run has read."""
        sets = {(config.benchmark, _set_of(vars(config))) for config in configs}
        known = {name: statistics.median(read.values()) for name, read in self._decoded.items()}
        return sum(known.get(name, 0.0) for name, key in sets if key not in self._decoded.get(name, {}))

    def estimate(self, runs: Iterable[PlannedRun]) -> Estimate:
        """The cost of ``runs`` together."""
        runs = tuple(runs)
        total, guessed, count, recorded = self.reading(run.config for run in runs), 0.0, 0, 0
        unknown: Counter[tuple[str, str]] = Counter()
        for run in runs:
            count += 1
            found = self.lookup(run.config)
            if found is None:
                unknown[run.config.method, run.config.model] += 1
                guessed += guess(run.config, self.images(run.config) or 0, self.device)
            else:
                total += found[0]
                recorded += found[1]
        return Estimate(
            hours=total / 3600,
            runs=count,
            device=self.device,
            recorded=recorded,
            unknown=dict(unknown),
            guessed=guessed / 3600,
        )


def guess(config: RunConfig, images: int, device: str) -> float:
    """Seconds of ``images`` by the network's size and the method's passes alone: good for an order, and little more."""
    gmacs = next((value for part, value in _GMACS.items() if part in config.model), 4.1)
    rate = _GMACS_PER_SECOND["cpu" if device == "cpu" else "gpu"]
    return images * gmacs * _METHODS.get(config.method, 4.0) / rate


def _rows(results: str, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Finished runs of the sweeps ``names``. One that cannot be read says nothing: an estimate needs no ``fsck``."""
    from orchestrator.results import open_results
    from orchestrator.store.errors import StoreError

    for name in names:
        with contextlib.suppress(StoreError):
            for batch in open_results(results, name).scan("runs", columns=COLUMNS):
                columns = [column.to_pylist() for column in batch.columns]
                yield from (dict(zip(COLUMNS, values, strict=True)) for values in zip(*columns, strict=True))


def _set_of(values: Mapping[str, Any]) -> tuple[Any, ...]:
    """Which images of its benchmark a run reads."""
    return values["corruption"], values["severity"], tuple(values["corruptions"] or ())


def _stream_of(values: Mapping[str, Any]) -> tuple[Any, ...]:
    """What decides a stream's length."""
    spanned = len(values["corruptions"] or ())
    return values["benchmark"], values["scenario"], spanned, values["max_images"]


@cache
def _published() -> dict[tuple[str, Kind], float]:
    with files("orchestrator").joinpath("speeds.csv").open(encoding="utf-8", newline="") as file:
        return {
            (row["device"], (row["method"], row["model"], int(row["batch_size"]), row["precision"])): float(
                row["images_per_second"]
            )
            for row in csv.DictReader(file)
        }


def _published_device() -> str:
    return next(iter(_published()))[0]


def _listed(unknown: Mapping[tuple[str, str], int]) -> str:
    names = [f"{method} on {model}" for method, model in unknown]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _rounded(amount: float) -> str:
    return f"{amount:,.1f}" if amount >= 1 else f"{amount:.2g}"
