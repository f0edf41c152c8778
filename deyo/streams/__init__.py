"""Streams: the explicit order in which a run sees its images (methods.md §3.2, §3.3).

| scenario | order |
|---|---|
| ``mild`` | every image once, shuffled |
| ``biased`` | the same, on a benchmark with groups |
| ``batch-size-1`` | the same, one image a batch |
| ``mixed`` | all corruptions together, every image once, shuffled as one set |
| ``continual`` | one corruption after the other, shuffled within each; ``reset_each`` goes back to the source at each |
| ``label-shift`` | class after class; see ``deyo.streams.label_shift`` |

A stream depends on the scenario, the images' name and number, the seed and the options alone: not on the
method, the batch size (but for ``continual`` with ``max_images``), the device or the workers. Generators are
its own: Python's and NumPy's legacy Mersenne twisters, whose numbers are frozen for good.
"""

from __future__ import annotations

from deyo.streams.images import concatenate, images_for
from deyo.streams.making import make_stream, scenario_names, scenario_options

__all__ = ["concatenate", "images_for", "make_stream", "scenario_names", "scenario_options"]
