"""What somebody may have meant. Knows: a word and those that would have been right. The library for it is loaded at the
first mistake; most processes see none."""

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """The known word most like ``word``, if one is."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(known), 1, likeness)), None)
