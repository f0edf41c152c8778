"""Each image once: what R runs side by side do whose predictions depend on the image alone (no adaptation).

Seeds differ in the order of the same images, so that most of the forwards of a sweep's no-adapt runs are of images
that another run of the group has predicted. Here R · B images that nobody has predicted yet go through the network at a
time, in the order in which some run needs them first, and each run takes what it visits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from deyo.feed import Stretch, distinct
from deyo.types import ImageSet, Stream


class FirstNeeds:
    """A plan of batches of R · B images: those that ``streams`` visit from batch ``start_step`` on, each image once.

    Images come in the order of the batch that needs them first; the last one is repeated to fill the last batch.
    """

    def __init__(self, streams: Sequence[Stream], start_step: int) -> None:
        self.sets: Sequence[ImageSet]
        self.sets, self.sources = distinct(streams)
        self.runs = len(streams)
        self.size = self.runs * streams[0].batch_size
        self.steps = len(streams[0])
        needs = [self._first_needs(streams, source, start_step) for source in range(len(self.sets))]
        sources = np.concatenate([np.full(len(rows), source) for source, (rows, _) in enumerate(needs)])
        rows, steps = (np.concatenate(values) for values in zip(*needs))
        in_turn = np.argsort(steps, kind="stable")
        fill = -len(in_turn) % self.size
        in_turn = np.concatenate([in_turn, np.full(fill, in_turn[-1])]).reshape(-1, self.size)
        in_turn.sort(axis=1)  # ``needs`` go set after set: so do the images of a batch
        self.rows, self._source_of = rows[in_turn].ravel(), sources[in_turn].ravel()
        self._needed_at = np.sort(steps)

    def __len__(self) -> int:
        return len(self.rows) // self.size

    def stretches(self, step: int) -> list[Stretch]:
        start, stop = step * self.size, (step + 1) * self.size
        cuts = start + 1 + np.flatnonzero(np.diff(self._source_of[start:stop]))
        edges = [start, *cuts.tolist(), stop]
        return [Stretch(int(self._source_of[a]), a, b) for a, b in pairwise(edges)]

    def done_with(self, batches: int) -> int:
        """The first step of the streams that misses an image when so many ``batches`` have been predicted."""
        images = batches * self.size
        return int(self._needed_at[images]) if images < len(self._needed_at) else self.steps

    def _first_needs(self, streams: Sequence[Stream], source: int, start_step: int) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the images of a set that are visited, and the first step that does."""
        batch, images = streams[0].batch_size, self.sets[source].pixels.shape[0]
        orders = np.stack([s.order for s, own in zip(streams, self.sources) if own == source])
        first = np.full(images, -1)
        steps = np.broadcast_to(np.arange(orders.shape[1]) // batch, orders.shape)[:, start_step * batch :]
        visited = orders[:, start_step * batch :]
        first[visited.T.ravel()[::-1]] = steps.T.ravel()[::-1]  # the last value assigned to an image stays
        rows = np.flatnonzero(first >= 0)
        return rows, first[rows]


class Predicted:
    """What is known of each image of a plan's sets: the fields of reports."""

    def __init__(self, plan: FirstNeeds, streams: Sequence[Stream]) -> None:
        self.plan, self.streams = plan, streams
        self.known: list[dict[str, np.ndarray]] = [{} for _ in plan.sets]
        self.samples_an_image: dict[str, int] = {}

    def add(self, batch: int, report: Mapping[str, np.ndarray]) -> None:
        """What the method said of batch ``batch`` of the plan: the fields of a ``StepReport``."""
        each = self.plan.size // self.plan.runs
        self.samples_an_image = {name: int(report[name][0]) // each for name in ("forwards", "backwards")}
        of_images = {name: values.reshape(-1) for name, values in report.items() if values.ndim == 2}
        first = batch * self.plan.size
        for source, start, stop in self.plan.stretches(batch):
            known = self.known[source]
            if not known:
                images = self.plan.sets[source].pixels.shape[0]
                known.update({name: np.zeros(images, values.dtype) for name, values in of_images.items()})
            for name, values in of_images.items():
                known[name][self.plan.rows[start:stop]] = values[start - first : stop - first]

    def reports(self, steps: range) -> list[tuple[int, dict[str, np.ndarray]]]:
        """The fields for all runs at each of ``steps``, as if each run had predicted its own batches."""
        batch, runs = self.streams[0].batch_size, len(self.streams)
        visited = [stream.order[steps.start * batch : steps.stop * batch] for stream in self.streams]
        of_images = {
            name: np.stack([self.known[source][name][rows] for source, rows in zip(self.plan.sources, visited)])
            for name in self.known[0]
        }
        found = []
        for first, step in zip(range(0, len(visited[0]), batch), steps):
            fields = {name: values[:, first : first + batch] for name, values in of_images.items()}
            size = min(batch, len(visited[0]) - first)
            for name, samples in self.samples_an_image.items():
                fields[name] = np.full(runs, samples * size)
            found.append((step, {**fields, "skipped": np.zeros(runs, bool), "reset": np.zeros(runs, bool)}))
        return found
