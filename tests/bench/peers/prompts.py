"""Prompts of exactly so many tokens, each another one: no server may know the beginning of one from another. Pure."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

LETTERS = "xyz"
"""The tokenizers of the random weights never join them: a letter more is a token more."""
FRAME = "user:{};assistant:"
"""What the models' template makes of one message."""


def content(tokens: int, seed: object, count: Callable[[str], int]) -> str:
    """Return the content of a message whose whole prompt has so many tokens, by `count`. Raises ValueError."""
    draw = Random(repr(seed))
    letters = tokens - count(FRAME.format(LETTERS[0])) + 1
    made = "".join(draw.choice(LETTERS) for _ in range(letters))
    if letters <= 0 or (found := count(FRAME.format(made))) != tokens:
        raise ValueError(
            f"no prompt of {tokens} tokens can be made of {LETTERS!r}: {found if letters > 0 else letters}"
        )
    return made
