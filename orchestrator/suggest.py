"""Words for errors: what was probably meant, and what is allowed."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable

_SHOWN = 24
_CREDENTIALS = re.compile(r"://[^/@\s]*@")


def suggest(written: object, allowed: Iterable[str]) -> str:
    """``did you mean 'tent'? allowed: ...`` for a name that is none of ``allowed``.

    Look-alike letters of other scripts are named, because the eye cannot see them.
    """
    names = list(allowed)
    text = str(written)
    parts = []
    if foreign := look_alikes(text):
        parts.append(f"it contains {foreign}")
    near = difflib.get_close_matches(_plain(text), names, n=3, cutoff=0.6)
    if near:
        parts.append("did you mean " + " or ".join(repr(n) for n in near) + "?")
    listed = ", ".join(names[:_SHOWN]) + (f", … ({len(names)} in all)" if len(names) > _SHOWN else "")
    parts.append(f"allowed: {listed or 'nothing here'}")
    return "; ".join(parts).replace("?; ", "? ")


def look_alikes(text: str) -> str:
    """The characters of ``text`` that are not printable ASCII, by code point and Unicode name ("" if none)."""
    odd = [c for c in dict.fromkeys(text) if not (" " <= c <= "~")]
    return ", ".join(f"{c!r} (U+{ord(c):04X} {unicodedata.name(c, 'control character')})" for c in odd[:3])


def shown(value: object, limit: int = 60) -> str:
    """``repr`` cut to ``limit`` characters, without passwords in URLs: fit for a terminal and a log."""
    try:
        text = _CREDENTIALS.sub("://***@", repr(value))
    except ValueError:  # Python refuses to print integers of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= limit else text[: limit - 1] + "…"


_LETTERS = str.maketrans("аеорсухіѕјԁԛһոοΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "aeopcyxisjdqhnoABEZHIKMNOPTYX")


def _plain(text: str) -> str:
    """ASCII as far as possible: full-width forms and accents folded, common look-alikes replaced."""
    folded = unicodedata.normalize("NFKD", text.translate(_LETTERS))
    return "".join(c for c in folded if not unicodedata.combining(c)).lower()
