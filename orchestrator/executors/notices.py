"""What the engine warns of and the person who watches a sweep should know, out of what a worker prints."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from deyo.cache import PreparedWarning
from orchestrator.types import Notice

_ALWAYS = ("always", None, PreparedWarning, None, 0)


@contextmanager
def heard(notices: list[Notice]) -> Iterator[None]:
    """Within the block each ``PreparedWarning`` is shown as ever, and put into ``notices``.

    Also one that this process was given before: that may have been in another sweep.
    """
    if _ALWAYS not in warnings.filters:  # put there each time, it would make Python repeat every other warning too
        warnings.simplefilter("always", PreparedWarning)
    show = warnings.showwarning

    def tell(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, PreparedWarning):
            notices.append(Notice(text=str(message), array=getattr(message, "array", "")))
        show(message, category, *where, **more)

    warnings.showwarning = tell
    try:
        yield
    finally:
        warnings.showwarning = show
