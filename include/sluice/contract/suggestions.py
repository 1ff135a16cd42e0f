"""Suggestions for misspelt words in contracts and commands."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most like `word`, whatever its case; None if none is like it."""
    lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(word.lower(), lower, n=1)
    return lower[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the known word that is most like `word`, or an empty text."""
    found = closest(word, known)
    return f" (did you mean {found!r}?)" if found else ""
