"""Converts the output of speech synthesis models to sound and times of words."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from speech.interfaces import Mark

LONGEST_S = 60.0
"""Seconds of one clause, which has 240 characters at most. A model may predict hours for a letter."""
SEED = 0
"""The seed before each clause: the same text sounds the same each time."""
_WORD = re.compile(r"\S+")


def pcm_of(wave: torch.Tensor) -> bytes:
    """Return samples from -1 to 1 as 16-bit PCM. Raises FloatingPointError."""
    if not torch.isfinite(wave).all():
        raise FloatingPointError
    whole = (wave.float().clamp(-1, 1) * 32767).round().to(torch.int16).cpu()
    return bytes(whole.numpy().astype("<i2").tobytes())


def words_of(clause: str) -> list[tuple[int, str]]:
    """Return the words of a clause with their offsets."""
    return [(found.start(), found[0]) for found in _WORD.finditer(clause)]


def marks_of(
    words: Sequence[tuple[int, str]], places: Sequence[tuple[int, int]], ends_ms: Sequence[float]
) -> tuple[Mark, ...]:
    """Return the times of the words. `places`: the first token of each word and the end; without tokens it has no mark.

    `ends_ms`: the end of each token.
    """
    starts_ms = [0.0, *ends_ms]
    return tuple(
        Mark(off=off, len=len(word), start_ms=round(starts_ms[first]), end_ms=round(ends_ms[behind - 1]))
        for (off, word), (first, behind) in zip(words, places, strict=True)
        if behind > first
    )
