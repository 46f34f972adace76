"""Prompts with an exact number of tokens, all different: no server may have cached the beginning of one. Pure."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

LETTERS = "xyz"
"""Letters that the tokenizers of the random weights never join: one letter more is one token more."""
FRAME = "user:{};assistant:"
"""One message in the models' chat template."""


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
