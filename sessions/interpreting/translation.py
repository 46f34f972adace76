"""Decides what is told of a translation, and what is decoded next, while its source grows. Pure.

The target of each segment is decoded from what was told of it, so a word that was told is never revised.
"""

from __future__ import annotations

from itertools import takewhile

import msgspec

from sessions.interpreting.agreement import AGREEING, agreed_end, waited_end
from sessions.interpreting.scripts import ends_a_sentence, joint, units, whole_units, whole_words
from sessions.interpreting.segments import next_segment
from sessions.interpreting.source import Source
from sessions.records import Told


class Ask(msgspec.Struct, frozen=True):
    """A segment to decode. `prefix`: the part of its target that was told; `src_end`: how much of the source it covers.

    `is_closed`: the segment grows no more, so whatever is decoded is told. `draft`: how the hypothesis before goes on
    behind the prefix, as far as is known. `ahead`: how many tokens are made behind what is right of that, at most.
    """

    text: str
    prefix: str
    src_end: int
    is_closed: bool
    draft: str = ""
    ahead: int | None = None


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Matching positions: the target before `off` translates the source before `src`."""

    src: int = 0
    off: int = 0


_START = Place()
AHEAD = 4
"""Words of a hypothesis, or characters, behind those that were told: more would be made again before they are agreed on."""
AHEAD_TOKENS = 1
"""So many tokens more than words of the source came, behind what was right of the draft."""


class Translation:
    """The target so far. `src_off`: how much of the source had been read for the words told last."""

    __slots__ = (
        "_ask",
        "_before",
        "_guess",
        "_heard",
        "_k",
        "_policy",
        "_read",
        "_segment",
        "_text",
        "places",
        "src_off",
    )

    def __init__(self, told: Told, *, wait: int, text: str = "", place: Place = _START) -> None:
        """Begin, or continue after `text`; the current segment's part of it begins at `place`."""
        self._policy = told
        self._k = wait
        self._text = text
        self._segment = text[place.off :].lstrip()  # of the target, what belongs to the segment at hand
        self._before: list[str] = []
        self._read = self._heard = self._guess = ""
        self._ask: Ask | None = None
        self.places = [place]
        self.src_off = place.src

    @property
    def text(self) -> str:
        """All text that was told."""
        return self._text

    @property
    def heard(self) -> int:
        """The length of the current hypothesis, with the told part of its segment."""
        return len(self._heard)

    @property
    def told_of_segment(self) -> int:
        """The length of that told part."""
        return len(self._segment)

    def place_within(self, chars: int) -> Place:
        """Return the last place at or before so many characters of the target."""
        return [place for place in self.places if place.off <= chars][-1]

    def next(self, source: Source, *, paused: bool = False) -> Ask | None:
        """Return what to decode now; None until the source grows. `paused`: the source has not grown for a while."""
        closes = source.is_final or (paused and self._stands_at_an_end(source))
        segment = next_segment(source.text, self.places[-1].src, final=closes)
        if segment is None:
            return None
        text = source.text[segment.start : segment.end]
        if not segment.is_closed:
            text = text if source.text[segment.end :] else text[: whole_words(text)].rstrip()
            if not text or text == self._read or not self._may_tell(text):
                return None
        ahead = None if segment.is_closed or self._policy != "agreement" else self._ahead(text)
        return Ask(text, self._segment, segment.start + len(text), segment.is_closed, self._draft, ahead)

    @property
    def _draft(self) -> str:
        """How the last hypothesis goes on behind what was told."""
        return self._guess[len(self._segment) :] if self._guess.startswith(self._segment) else ""

    def _ahead(self, text: str) -> int:
        """How many tokens of a hypothesis are worth their making: the next one is held against them."""
        return len(units(text)) - len(units(self._read)) + AHEAD_TOKENS

    def _may_tell(self, text: str) -> bool:
        """Return whether any more words may be told for a sentence that is incomplete."""
        if self._policy == "wait":
            return len(units(text)) - self._k > len(units(self._segment))
        return self._policy == "agreement"

    def _stands_at_an_end(self, source: Source) -> bool:
        segment = next_segment(source.text, self.places[-1].src, final=True)
        return (
            segment is not None and segment.end == len(source.text.rstrip()) and ends_a_sentence(source.text)
        )

    def is_outdated(self, source: Source) -> bool:
        """Return whether to replace the current decode by one of more text. A closed segment is decoded to its end."""
        if self._ask is None or self._ask.is_closed:
            return False
        newer = self.next(source)
        return newer is not None and newer.text != self._ask.text

    @property
    def is_enough(self) -> bool:
        """Return whether the current hypothesis is long enough until the source grows."""
        ask = self._asked()
        if ask.is_closed:
            return False
        if self._policy == "wait":
            return not self._may_tell(ask.text)
        return len(units(self._heard[len(self._segment) :])) > AHEAD

    def begin(self, ask: Ask) -> None:
        """Note the current decode."""
        self._ask, self._heard = ask, ask.prefix

    def hear(self, text: str, source: Source) -> str:
        """Take more of a hypothesis; return what is told of it."""
        ask = self._asked()
        self._heard = self._heard + text if self._heard else text.lstrip()
        end = len(self._heard.rstrip()) if ask.is_closed else self._open_end(ask, finished=False)
        return self._tell(ask, end, source)

    def end(self, source: Source, *, finished: bool, enough: bool = False) -> str:
        """The hypothesis has its end, its own where it is `finished`; gives what is told behind it.

        `enough`: it was cut off where as much was made as is worth its making.
        """
        ask = self._asked()
        end = len(self._heard.rstrip()) if ask.is_closed else self._open_end(ask, finished=finished)
        told = self._tell(ask, end, source)
        if not ask.is_closed:
            is_whole = finished or enough or self.is_enough
            self._read = ask.text if is_whole else self._read
            said = "".join(whole_units(self._heard, finished=finished))
            if is_whole or not _says_nothing_new(said, self._before):
                self._before = [*self._before, said][1 - AGREEING :]
            self._guess = _longer(self._guess, self._heard, finished=finished)
        self._ask = None
        return told

    def settle(self, ask: Ask) -> None:
        """Note that a closed segment is completely translated."""
        self.places.append(Place(ask.src_end, len(self._text)))
        self._segment = self._read = self._guess = ""
        self._before = []
        self.src_off = max(self.src_off, ask.src_end)

    def _open_end(self, ask: Ask, *, finished: bool) -> int:
        told = len(self._segment)
        if self._policy == "agreement":
            return agreed_end(self._before, self._heard, told, finished=finished)
        read = len(units(ask.text))
        return waited_end(self._heard, told, read=read, wait=self._k, finished=finished)

    def _tell(self, ask: Ask, end: int, source: Source) -> str:
        new = self._heard[len(self._segment) : end]
        if not new:
            return ""
        if not self._segment:
            new = joint(self._text, _blank_at(source.text, self.places[-1].src)) + new
        self._segment = self._heard[:end]
        self._text += new
        self.src_off = max(self.src_off, ask.src_end)
        return new

    def _asked(self) -> Ask:
        if self._ask is None:
            raise RuntimeError("Nothing is being decoded.")
        return self._ask


def _blank_at(source: str, start: int) -> str:
    return "".join(takewhile(str.isspace, source[start:]))


def _longer(before: str, now: str, *, finished: bool) -> str:
    """How a sentence may go on: a hypothesis that was cut off says nothing against words that it did not come to."""
    return before if not finished and before.startswith(now) else now


def _says_nothing_new(said: str, before: list[str]) -> bool:
    """Whether a hypothesis that was cut off has no word that is not in the one before."""
    return (before[-1] if before else "").startswith(said)
