"""Names of GPUs: "H100" in a spec or in a host's label, "NVIDIA H100 80GB HBM3" as the driver calls the card."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache


def same_kind(one: str, other: str) -> bool:
    """Whether two names can mean one kind of GPU: the words of one are all among the words of the other.

    Case does not matter. Whole words are compared, so that "L4" is no "L40S" and "A10" no "A100". An empty name means
    no GPU, and is of no kind.
    """
    words, others = _words(one), _words(other)
    return bool(words and others) and (words <= others or others <= words)


def among(name: str, known: Iterable[str]) -> str:
    """The one of ``known`` names that says most of what ``name`` says and nothing else; ``name`` itself if none does.

    Ray knows "NVIDIA H100 80GB HBM3" as "H100", and "NVIDIA GeForce RTX 5090" as "GeForce-RTX-5090".
    """
    words = _words(name)
    fitting = [other for other in known if _words(other) and _words(other) <= words]
    plain = re.sub(r"^NVIDIA\s+", "", name.strip(), flags=re.IGNORECASE)
    return max(fitting, key=lambda other: len(_words(other)), default="-".join(plain.split()))


@cache
def _words(name: str) -> frozenset[str]:
    return frozenset(word for word in re.split(r"[^a-z0-9]+", name.lower()) if word)
