"""How far a live translation lags behind its source, and how much of it was revised. Pure.

LAAL: Papi et al., "Over-Generation Cannot Be Rewarded" (AutoSimTrans 2022). Flicker: normalized erasure, Arivazhagan et al.,
"Re-translation versus Streaming for Simultaneous Translation" (IWSLT 2020). LongYAAL is `omnisteval`'s (arXiv 2509.17349).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec


class Work(msgspec.Struct, frozen=True):
    """What translations took: passes of the decoder, each of which made a token, and tokens that were read before."""

    passes: int = 0
    read: int = 0

    @classmethod
    def of(cls, usage: Mapping[str, int]) -> Work:
        """As a turn's usage has it."""
        return cls(usage["generated_tokens"], usage["prompt_tokens"])

    def __add__(self, other: Work) -> Work:
        return Work(self.passes + other.passes, self.read + other.read)


class EmissionTimes(msgspec.Struct, frozen=True, kw_only=True):
    """A reader's view of one document. For each character of `text`, in milliseconds since the source began to come:

    `elapsed`: when it stood there for good; `delays`: when the source that it was made from had come. `erased`: characters
    that were shown and taken back.
    """

    text: str
    delays: tuple[float, ...]
    elapsed: tuple[float, ...]
    source_ms: float
    work: Work
    erased: int = 0


def laal(delays: Sequence[float], *, source_ms: float, reference: int) -> float:
    """Return the length-adaptive average lagging, in milliseconds. `reference`: characters of the reference. Raises ValueError."""
    if not delays:
        raise ValueError("Nothing was told.")
    pace = source_ms / max(len(delays), reference)
    lags = []
    for place, delay in enumerate(delays):
        lags.append(delay - place * pace)
        if delay >= source_ms:
            break
    return sum(lags) / len(lags)


def flicker(emissions: Sequence[EmissionTimes]) -> float:
    """Return how many characters were taken back for each one that stayed."""
    return sum(one.erased for one in emissions) / max(1, sum(len(one.text) for one in emissions))


class Screen:
    """The view of a reader who is shown whole texts, each in place of the last."""

    def __init__(self) -> None:
        self.text = ""
        self.erased = 0
        self._delays: list[float] = []
        self._elapsed: list[float] = []

    def show(self, text: str, *, delay: float, elapsed: float) -> None:
        """Show a text: the part that differs from the last one is taken back."""
        pairs = zip(self.text, text, strict=False)
        same = next(
            (place for place, (one, other) in enumerate(pairs) if one != other),
            min(len(self.text), len(text)),
        )
        self.erased += len(self.text) - same
        new = len(text) - same
        self._delays[same:] = [delay] * new
        self._elapsed[same:] = [elapsed] * new
        self.text = text

    def emission_times(self, *, source_ms: float, work: Work) -> EmissionTimes:
        """What was seen in the end."""
        return EmissionTimes(
            text=self.text,
            delays=tuple(self._delays),
            elapsed=tuple(self._elapsed),
            source_ms=source_ms,
            work=work,
            erased=self.erased,
        )
