"""The findings of the checks: whether a part works, and how to fix it."""

from __future__ import annotations

from enum import Enum

import msgspec

GIGA, MEGA = 10**9, 10**6


class Verdict(Enum):
    """With `POOR` the service works, with a warning. With `BAD` it does not start, or can't answer."""

    GOOD = "ok"
    POOR = "warning"
    BAD = "error"


class Finding(msgspec.Struct, frozen=True):
    """`subject`: a word or two; `words`: a sentence; `mend`: what to do, if anything."""

    subject: str
    verdict: Verdict
    words: str
    mend: str = ""


def good(subject: str, words: str) -> Finding:
    """Return that a thing will do."""
    return Finding(subject, Verdict.GOOD, words)


def poor(subject: str, words: str, mend: str = "") -> Finding:
    """Return that a thing works, with a warning."""
    return Finding(subject, Verdict.POOR, words, mend)


def bad(subject: str, words: str, mend: str = "") -> Finding:
    """Return that a thing stops the service."""
    return Finding(subject, Verdict.BAD, words, mend)


def size(count: int) -> str:
    """Write a number of bytes for people. Pure."""
    return f"{count / GIGA:.1f} GB" if count >= GIGA else f"{count / MEGA:.0f} MB"
