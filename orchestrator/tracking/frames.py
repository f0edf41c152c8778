"""Messages between the tracker and its publisher's process: pickles, length first, over a pipe of their own."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

URI_VARIABLE = "DEYO_PUBLISHER_URI"
_HEADER = struct.Struct("<I")


def write_frame(stream: BinaryIO, message: tuple[Any, ...]) -> None:
    """Write one message; blocks while the pipe is full."""
    data = pickle.dumps(message, protocol=5)
    stream.write(_HEADER.pack(len(data)) + data)


def read_frames(stream: BinaryIO) -> Iterator[tuple[Any, ...]]:
    """Messages until the stream ends; one that was cut off is dropped."""
    while True:
        head = stream.read(_HEADER.size)
        if len(head) < _HEADER.size:
            return
        size = _HEADER.unpack(head)[0]
        data = stream.read(size)
        if len(data) < size:
            return
        yield pickle.loads(data)
