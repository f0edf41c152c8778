"""A process that decodes images into an array: ``python -m deyo.decode_child``, started by ``deyo.decode_children``.

Pickles come on standard input, answers go to standard output; the end of the input is the end of the process, so that
it goes with whoever started it. Ctrl-C is for the other side to decide about.

First ``{"pixels": path of an .npy file, "nice": int}``, answered by ``READY``. Then pairs (part, first row): the part
is read into the file's rows from there, and the answer is the positions in it that could not be read, or None if
reading raised something that unreadable images do not.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from typing import Any

READY = "ready"


def main() -> None:
    import numpy as np

    import deyo.benchmarks.decoding  # noqa: F401  (what parts are made of: better not to start than to fail at the first)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a decoder prints is no answer

    def answer(value: Any) -> None:
        pickle.dump(value, answers)
        answers.flush()

    told = pickle.load(requests)
    os.nice(told["nice"])
    pixels = np.load(told["pixels"], mmap_mode="r+")
    answer(READY)
    while True:
        part, start = pickle.load(requests)
        answer(_read(part, pixels, start))


def _read(part: Any, pixels: Any, start: int) -> list[int] | None:
    try:
        images, bad = part.read()
    except Exception:
        return None
    pixels[start : start + len(images)] = images
    return sorted(bad)


if __name__ == "__main__":
    try:
        main()
    except (EOFError, BrokenPipeError, pickle.UnpicklingError):
        os._exit(0)  # the other side is gone, or done
