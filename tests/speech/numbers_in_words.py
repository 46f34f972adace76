"""Numbers as people say them in English."""

from __future__ import annotations

from speech.pocketsphinx_decoder import _VALUES

_WORDS = {value: word for word, value in _VALUES.items()} | {0: "zero"}


def in_words(number: int) -> str:
    """Return a whole number below a million in words: 412 is "four hundred and twelve"."""
    for size, name in ((1000, " thousand"), (100, " hundred"), (10, "")):
        if number < size or number in _WORDS:
            continue
        several, rest = divmod(number, size)
        head = f"{in_words(several)}{name}" if name else _WORDS[several * 10]
        joint = " and " if name and rest < 100 else " "
        return f"{head}{joint}{in_words(rest)}" if rest else head
    return _WORDS[number]
