"""What one run's stream of steps amounts to: accuracies, averages over groups, selection counts, collapse.

``RunMetrics`` takes the loop's ``StepRecord``s and gives the columns of the result store that the stream
alone decides. Three averages over groups are kept apart (methods.md §2.3 D11 and §3.7): the mean over samples
(``accuracy``), the unweighted mean over groups (``average_accuracy``, the paper's) and the mean weighted by
the training groups' sizes (``adjusted_accuracy``, WILDS').
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deyo.confidence import aurc
from deyo.types import StepRecord

# Below this many images in the second half of the stream, predictions on few classes say nothing.
COLLAPSE_MIN_IMAGES = 32

_COLUMNS = {
    "label": np.int32,
    "group": np.int32,
    "domain": np.int32,
    "prediction": np.int32,
    "entropy": np.float32,
    "plpd": np.float32,
}
_COUNTS = ("selected_entropy", "selected", "forwards", "backwards", "skipped_steps", "resets", "nan_steps")


@dataclass(frozen=True, kw_only=True)
class Collapse:
    """How concentrated the predictions of the second half of a stream are (methods.md §5, K9).

    ``top_share`` is the share of the class predicted most often. ``entropy`` and ``label_entropy`` are the
    entropies (nats) of the histograms of predicted classes and of labels.
    """

    top_share: float
    entropy: float
    label_entropy: float

    @property
    def collapsed(self) -> bool:
        """The predictions use fewer classes than the square root of those present.

        Classes are counted as exp(entropy of the histogram), so the bar follows C and the stream: below 31.6
        of 1000 balanced classes, 3.2 of 10, one class above 89 % where there are two. Labels enter because a
        short or label-shifted stream legitimately holds few classes.
        """
        return bool(self.label_entropy > 0 and self.entropy < self.label_entropy / 2)


class RunMetrics:
    """Metrics of one run, filled step by step.

    ``group_names`` and ``domain_names`` name the groups and domains that records number (-1: none);
    ``train_group_sizes`` weights the adjusted accuracy. ``stale_interval`` = k reproduces the authors' group
    accuracies, which are refreshed only at every k-th batch and so miss the tail of the stream (D12: 90 of 91
    batches on Waterbirds, 300 of 313 on ColoredMNIST); None, the default, covers every image.
    """

    def __init__(
        self,
        num_classes: int,
        group_names: Sequence[str] = (),
        domain_names: Sequence[str] = (),
        train_group_sizes: Sequence[float] | None = None,
        *,
        stale_interval: int | None = None,
    ) -> None:
        if train_group_sizes is not None and len(train_group_sizes) != len(group_names):
            raise ValueError(f"{len(train_group_sizes)} training group sizes for {len(group_names)} groups")
        self.num_classes = num_classes
        self.group_names = tuple(group_names)
        self.domain_names = tuple(domain_names)
        self.train_group_sizes = train_group_sizes
        self.stale_interval = stale_interval
        self._parts: dict[str, list[np.ndarray]] = {name: [] for name in _COLUMNS}
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._steps = 0
        self._images = 0
        self._fresh_images = 0

    def update(self, record: StepRecord, run: int = 0) -> None:
        """Add the step of run ``run`` (its row in the record's arrays)."""
        for name, dtype in _COLUMNS.items():
            # A copy: a slice would keep the loop's whole block of all runs alive until the end of the stream.
            self._parts[name].append(np.array(getattr(record, name)[run], dtype=dtype))
        counts = self._counts
        counts["selected_entropy"] += int(np.count_nonzero(record.passed_entropy[run]))
        counts["selected"] += int(np.count_nonzero(record.passed_both[run]))
        counts["forwards"] += int(record.forwards[run])
        counts["backwards"] += int(record.backwards[run])
        counts["skipped_steps"] += int(record.skipped[run])
        counts["resets"] += int(record.reset[run])
        counts["nan_steps"] += int(not np.isfinite(self._parts["entropy"][-1]).all())
        self._steps += 1
        self._images += len(self._parts["label"][-1])
        if self.stale_interval is None or self._steps % self.stale_interval == 0:
            self._fresh_images = self._images

    def collapse(self) -> Collapse | None:
        """Concentration of the predictions in the second half; None for too few images to tell."""
        prediction, label = self._column("prediction"), self._column("label")
        half = len(label) // 2
        if len(label) - half < COLLAPSE_MIN_IMAGES:
            return None
        predicted = _histogram(prediction[half:], self.num_classes)
        return Collapse(
            top_share=float(predicted.max()),
            entropy=_entropy(predicted),
            label_entropy=_entropy(_histogram(label[half:], self.num_classes)),
        )

    def summary(self) -> dict[str, Any]:
        """The columns of ``orchestrator.schema.RUNS`` that the stream decides; None for a mean of nothing."""
        correct = self._column("prediction") == self._column("label")
        entropy = self._column("entropy")
        groups = self._tally("group", self.group_names, correct, self._fresh_images)
        collapse = self.collapse()
        return {
            "images": self._images,
            "accuracy": _mean(correct),
            "group_accuracies": groups,
            **_group_averages(groups, self.train_group_sizes),
            "domain_accuracies": self._tally("domain", self.domain_names, correct, self._images),
            "aurc": aurc(-entropy, correct) if len(correct) else None,
            "mean_entropy": _mean(entropy[np.isfinite(entropy)]),
            "mean_plpd": _mean(self._column("plpd")[np.isfinite(self._column("plpd"))]),
            "collapsed": collapse is not None and collapse.collapsed,
            **self._counts,
        }

    def state_dict(self) -> dict[str, np.ndarray]:
        """Everything needed to go on after a checkpoint in the middle of the stream; arrays only."""
        tally = [self._steps, self._images, self._fresh_images, *self._counts.values()]
        return {name: self._column(name) for name in _COLUMNS} | {"tally": np.array(tally, dtype=np.int64)}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from ``state_dict``'s arrays."""
        self._parts = {name: [np.asarray(state[name], dtype=dtype)] for name, dtype in _COLUMNS.items()}
        self._steps, self._images, self._fresh_images, *counts = (int(v) for v in state["tally"])
        self._counts = dict(zip(_COUNTS, counts))

    def _column(self, name: str) -> np.ndarray:
        parts = self._parts[name]
        if len(parts) != 1:
            parts[:] = [np.concatenate(parts) if parts else np.empty(0, dtype=_COLUMNS[name])]
        return parts[0]

    def _tally(self, column: str, names: Sequence[str], correct: np.ndarray, images: int) -> list[dict[str, Any]]:
        """Images and correct ones by group or domain, over the first ``images`` of the stream."""
        index, correct = self._column(column)[:images], correct[:images]
        if names and len(index) and index.max() >= len(names):
            raise ValueError(f"a record holds {column} {index.max()}, but only {len(names)} are named: {names}")
        counted = index >= 0 if names else np.zeros(len(index), dtype=bool)
        total = np.bincount(index[counted], minlength=len(names))
        right = np.bincount(index[counted], weights=correct[counted], minlength=len(names))
        return [{"name": name, "images": int(total[k]), "correct": int(right[k])} for k, name in enumerate(names)]


def _group_averages(
    groups: Sequence[Mapping[str, Any]], train_sizes: Sequence[float] | None
) -> dict[str, float | None]:
    """Averages over the groups that have images (a group without any has no accuracy)."""
    present = [k for k, g in enumerate(groups) if g["images"]]
    if not present:
        return {"average_accuracy": None, "adjusted_accuracy": None, "worst_group_accuracy": None}
    accuracy = np.array([groups[k]["correct"] / groups[k]["images"] for k in present])
    weights = np.array([train_sizes[k] for k in present], dtype=np.float64) if train_sizes is not None else None
    weighted = weights is not None and weights.sum() > 0
    return {
        "average_accuracy": float(accuracy.mean()),
        "adjusted_accuracy": float(np.average(accuracy, weights=weights)) if weighted else None,
        "worst_group_accuracy": float(accuracy.min()),
    }


def _histogram(classes: np.ndarray, num_classes: int) -> np.ndarray:
    return np.bincount(classes[classes >= 0], minlength=num_classes) / max(len(classes), 1)


def _entropy(shares: np.ndarray) -> float:
    shares = shares[shares > 0]
    return float(-(shares * np.log(shares)).sum())


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean(dtype=np.float64)) if len(values) else None
