"""A folder as text and back: how a report travels in the log of the job that wrote it."""

from __future__ import annotations

import base64
import binascii
import io
import tarfile
import zlib
from pathlib import Path

from deyo.types import DataError


def pack(folder: Path) -> str:
    """The files under ``folder`` as lines of text (base64 of a compressed tar)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.add(path, path.relative_to(folder).as_posix(), recursive=False)
    return base64.encodebytes(buffer.getvalue()).decode("ascii")


def unpack(text: str, folder: Path) -> list[Path]:
    """Write the files that ``pack`` made ``text`` of under ``folder``; returns their paths.

    Raises ``DataError`` where the text is not whole; nothing is written outside of ``folder``.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(text, validate=False)), mode="r:gz") as archive:
            names = archive.getnames()
            archive.extractall(folder, filter="data")
    except (binascii.Error, tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise DataError(f"the report did not arrive whole ({error}): ask again") from None
    return [folder / name for name in names]
