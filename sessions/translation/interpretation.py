"""A live translation: its growing source, and what is decoded and published next of its target. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import msgspec

from sessions.errors import Conflict, ContentTooLong
from sessions.records import PublishPolicy
from sessions.translation.sentences import (
    ends_a_sentence,
    joint,
    next_segment,
    units,
    whole_units,
    whole_words,
)
from sessions.turn.interfaces import Growth

MAX_SOURCE_CHARS = 32_000
"""Characters of one interpretation. Each growth writes the whole source."""


class GrowingText:
    """The source so far. Offsets and lengths count code points. `is_final`: it does not grow any more."""

    __slots__ = ("is_final", "text")

    def __init__(self, text: str = "", *, is_final: bool = False) -> None:
        self.text = text
        self.is_final = is_final

    def news(self, growth: Growth) -> str | None:
        """Return what a growth adds; None if all of it was known before. Changes nothing.

        Raises Conflict if it leaves a gap, contradicts the source, or ends it too early, and ContentTooLong.
        """
        off, text, final = growth.off, growth.text, growth.final
        here, end = len(self.text), off + len(text)
        if off > here:
            raise Conflict(
                f"The source has {here} characters so far; `off` is {off}, so text is missing in between."
            )
        if self.text[off:end] != text[: here - off]:
            raise Conflict("This part of the source was different before; the source is not revised.")
        if final and end < here:
            raise Conflict(
                f"The source has {here} characters by now, and can't end at {end}: it does not shrink."
            )
        if end > MAX_SOURCE_CHARS:
            raise ContentTooLong(
                f"The source would have {end} characters; {MAX_SOURCE_CHARS} are allowed. Begin another interpretation."
            )
        if self.is_final and end > here:
            raise Conflict("The source is final; nothing can follow.")
        new = text[here - off :]
        return new if new or (final and not self.is_final) else None

    def grow(self, new: str, *, final: bool) -> None:
        """Add what `news` returned."""
        self.text += new
        self.is_final = self.is_final or final


AGREEING = 3
"""Hypotheses in a row that must agree: a model trained on whole sentences invents the same end to two beginnings of one."""


def agreed_end(before: Sequence[str], now: str, committed: int, *, finished: bool) -> int:
    """Return up to where the last hypotheses agree, word by word. All begin with the `committed` published characters.

    `before`: the hypotheses before `now`; if they are too few, nothing is agreed. `finished`: `now` has all of its words. A last
    word that ends the sentence is never agreed: more text comes.

    LocalAgreement-n (Liu et al., Interspeech 2020; Polák et al., IWSLT 2022).
    """
    if len(before) < AGREEING - 1:
        return committed
    hypotheses = [_without_end(whole_units(one[committed:], finished=True)) for one in before[1 - AGREEING :]]
    hypotheses.append(_without_end(whole_units(now[committed:], finished=finished)))
    end = committed
    for words in zip(*hypotheses, strict=False):
        if len(set(words)) > 1:
            break
        end += len(words[0])
    return end


def _without_end(found: list[str]) -> list[str]:
    return found[:-1] if found and ends_a_sentence(found[-1]) else found


class SegmentDecode(msgspec.Struct, frozen=True):
    """A segment to decode. `prefix`: the published part of its target; `src_end`: where the segment ends in the source.

    `is_closed`: the segment no longer grows, so all that is decoded is published.
    """

    text: str
    prefix: str
    src_end: int
    is_closed: bool


class Alignment(msgspec.Struct, frozen=True, array_like=True):
    """Matching positions: the target before `off` translates the source before `src`."""

    src: int = 0
    off: int = 0


_START = Alignment()
AHEAD = 4
"""Words (or characters) of a hypothesis after the published ones: more would be decoded again before they are agreed on."""


class Target:
    """The target so far. `src_off`: how much of the source had been read for the last published words."""

    __slots__ = (
        "_before",
        "_current",
        "_hypothesis",
        "_policy",
        "_read",
        "_segment",
        "_text",
        "alignments",
        "src_off",
    )

    def __init__(self, committed: PublishPolicy, *, text: str = "", alignment: Alignment = _START) -> None:
        """Begin, or continue after `text`, of which the current segment's part begins at `alignment`."""
        self._policy = committed
        self._text = text
        self._segment = text[alignment.off :].lstrip()  # the current segment's published target
        self._before: list[str] = []
        self._read = self._hypothesis = ""
        self._current: SegmentDecode | None = None
        self.alignments = [alignment]
        self.src_off = alignment.src

    @property
    def text(self) -> str:
        """All published text."""
        return self._text

    @property
    def hypothesis_chars(self) -> int:
        """The length of the current hypothesis, with the published part of its segment."""
        return len(self._hypothesis)

    @property
    def committed_in_segment(self) -> int:
        """The length of the published part of the current segment's target."""
        return len(self._segment)

    def alignment_at(self, chars: int) -> Alignment:
        """Return the last alignment at or before an offset in the target."""
        return [alignment for alignment in self.alignments if alignment.off <= chars][-1]

    def next(self, source: GrowingText, *, paused: bool = False) -> SegmentDecode | None:
        """Return what to decode now; None until the source grows. `paused`: the source has not grown for a while."""
        closes = source.is_final or (paused and self._stands_at_an_end(source))
        segment = next_segment(source.text, self.alignments[-1].src, final=closes)
        if segment is None:
            return None
        text = source.text[segment.start : segment.end]
        if not segment.is_closed:
            text = text if source.text[segment.end :] else text[: whole_words(text)].rstrip()
            if not text or text == self._read or self._policy == "segment":
                return None
        return SegmentDecode(text, self._segment, segment.start + len(text), segment.is_closed)

    def _stands_at_an_end(self, source: GrowingText) -> bool:
        segment = next_segment(source.text, self.alignments[-1].src, final=True)
        return (
            segment is not None and segment.end == len(source.text.rstrip()) and ends_a_sentence(source.text)
        )

    def is_outdated(self, source: GrowingText) -> bool:
        """Return whether to replace the current decode by one of a longer segment. A closed segment is decoded to its end."""
        if self._current is None or self._current.is_closed:
            return False
        newer = self.next(source)
        return newer is not None and newer.text != self._current.text

    @property
    def is_enough(self) -> bool:
        """Return whether the current hypothesis is long enough until the source grows."""
        segment_decode = self._current_decode()
        if segment_decode.is_closed:
            return False
        return len(units(self._hypothesis[len(self._segment) :])) > AHEAD

    def begin(self, segment_decode: SegmentDecode) -> None:
        """Note the current decode."""
        self._current, self._hypothesis = segment_decode, segment_decode.prefix

    def extend(self, text: str, source: GrowingText) -> str:
        """Take more of a hypothesis; return what is published of it."""
        segment_decode = self._current_decode()
        self._hypothesis = self._hypothesis + text if self._hypothesis else text.lstrip()
        return self._commit(segment_decode, self._stable_end(segment_decode, finished=False), source)

    def end(self, source: GrowingText, *, finished: bool, enough: bool = False) -> str:
        """End the hypothesis; return what is published at its end.

        `finished`: it has all of its words; `enough`: it ended by itself, or at its maximum of tokens.
        """
        segment_decode = self._current_decode()
        end = self._stable_end(segment_decode, finished=finished)
        committed = self._commit(segment_decode, end, source)
        if not segment_decode.is_closed:
            is_whole = finished or enough or self.is_enough
            self._read = segment_decode.text if is_whole else self._read
            stable = "".join(whole_units(self._hypothesis, finished=finished))
            if is_whole or not _has_no_new_word(stable, self._before):
                self._before = [*self._before, stable][1 - AGREEING :]
        self._current = None
        return committed

    def settle(self, segment_decode: SegmentDecode) -> None:
        """Note that a closed segment is completely translated."""
        self.alignments.append(Alignment(segment_decode.src_end, len(self._text)))
        self._segment = self._read = self._hypothesis = ""
        self._before = []
        self.src_off = max(self.src_off, segment_decode.src_end)

    def _stable_end(self, segment_decode: SegmentDecode, *, finished: bool) -> int:
        if segment_decode.is_closed:
            return len(self._hypothesis.rstrip())
        committed = len(self._segment)
        return agreed_end(self._before, self._hypothesis, committed, finished=finished)

    def _commit(self, segment_decode: SegmentDecode, end: int, source: GrowingText) -> str:
        new = self._hypothesis[len(self._segment) : end]
        if not new:
            return ""
        if not self._segment:
            new = joint(self._text, _blank_at(source.text, self.alignments[-1].src)) + new
        self._segment = self._hypothesis[:end]
        self._text += new
        self.src_off = max(self.src_off, segment_decode.src_end)
        return new

    def _current_decode(self) -> SegmentDecode:
        if self._current is None:
            raise RuntimeError("Nothing is being decoded.")
        return self._current


def _blank_at(source: str, start: int) -> str:
    return "".join(takewhile(str.isspace, source[start:]))


def _has_no_new_word(stable: str, before: list[str]) -> bool:
    """Whether a hypothesis that was cut off only repeats the beginning of the one before."""
    return (before[-1] if before else "").startswith(stable)
