"""What goes wrong in the result store, said so that the next step is clear."""

from __future__ import annotations

import errno


class StoreError(Exception):
    """The store cannot do what was asked; the message names the file, what is wrong and what to do."""


class StoreFullError(StoreError):
    """The disk (or quota) under the results root is full. Nothing is torn: what was committed stays readable."""


class DamagedError(StoreError):
    """A file that committed results rest on is missing or not what was written."""


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def store_error(error: OSError, path: str, root: str) -> StoreError:
    """``error``, met while writing ``path``, as a ``StoreError``."""
    if error.errno in _FULL or "No space left" in str(error):
        return StoreFullError(
            f"no space left while writing {path} under {root}. Committed runs are safe and readable. "
            "Free space there, then run the same command again: only what is missing will run."
        )
    return StoreError(f"cannot write {path} under {root}: {error}")
