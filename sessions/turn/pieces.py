"""The pieces of a reply so far: text, reasoning and calls; and what a cut keeps of them. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import groupby
from typing import Literal, NamedTuple

import msgspec

from engine.text.characters import floor_boundary
from sessions.events import Delta, Reasoning, Text
from sessions.truncation import KeptLength

Kind = Literal["", "text", "thought", "call"]


class PieceMark(NamedTuple):
    """A reply's state after one piece: its seq and kind, and the lengths so far.

    `src_off`: how much of a source had been read for it, if it is a translation.
    """

    seq: int
    kind: Kind
    chars: int
    reasoning_off: int
    tokens: int
    src_off: int | None = None


class ReplyPieces:
    """A reply's pieces in the order of their seqs."""

    __slots__ = (
        "_conversation_id",
        "_marks",
        "_text",
        "_thought_at",
        "_thoughts",
        "_turn_id",
        "calls",
        "reasoning_s",
        "reasoning_tokens",
    )

    def __init__(self, *, conversation_id: str, turn_id: str, text: str = "", reasoning: str = "") -> None:
        """Begin a reply, or continue one that has text and reasoning already."""
        self._conversation_id = conversation_id
        self._turn_id = turn_id
        self._text = [text]
        self._thoughts = [reasoning]
        self._marks = [PieceMark(0, "", len(text), len(reasoning), 0)]
        self.calls = 0
        self.reasoning_tokens = 0
        self.reasoning_s = 0.0
        self._thought_at = 0.0

    @property
    def text(self) -> str:
        """All of the text."""
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        """All of the reasoning."""
        return "".join(self._thoughts)

    @property
    def end(self) -> PieceMark:
        """Its current state."""
        return self._marks[-1]

    def begin_piece(self, now: float) -> None:
        """Begin a piece. If the last one was reasoning, the model reasoned until now."""
        if self.end.kind == "thought":
            self.reasoning_s += now - self._thought_at
        self._thought_at = now

    @property
    def base(self) -> KeptLength:
        """The state before the first piece."""
        return KeptLength(self._marks[0].chars, self._marks[0].reasoning_off)

    def extend(self, text: str, *, tokens: int, seq: int, src_off: int | None = None) -> Delta:
        """Add text."""
        _, _, chars, reasoning_off, total, _ = self.end
        self._text.append(text)
        self._marks.append(PieceMark(seq, "text", chars + len(text), reasoning_off, total + tokens, src_off))
        return self._delta(text, tokens=tokens, seq=seq, off=chars, src_off=src_off)

    def add_reasoning(self, text: str, *, tokens: int, seq: int) -> Reasoning:
        """Add reasoning."""
        _, _, chars, reasoning_off, total, _ = self.end
        self._thoughts.append(text)
        self.reasoning_tokens += tokens
        self._marks.append(PieceMark(seq, "thought", chars, reasoning_off + len(text), total + tokens))
        return self._reasoning(text, tokens=tokens, seq=seq, off=reasoning_off)

    def call(self, *, tokens: int, seq: int) -> None:
        """Add a call."""
        _, _, chars, reasoning_off, total, _ = self.end
        self.calls += 1
        self._marks.append(PieceMark(seq, "call", chars, reasoning_off, total + tokens))

    def first_seq(self, kind: Kind) -> int | None:
        """Return the seq of the first piece of a kind; None if there is none."""
        return next((mark.seq for mark in self._marks if mark.kind == kind), None)

    def kept(self, *, seen: int, reasoning_off: int) -> KeptLength:
        """Return what a cut keeps: whole characters of the seen text, and the reasoning before it, or what was seen of that.

        It is never less than there was before.
        """
        chars = max(self.base.chars, floor_boundary(self.text, min(seen, self.end.chars)))
        before = self._thought_before(chars)
        return KeptLength(
            chars, max(before, floor_boundary(self.reasoning, min(reasoning_off, self.end.reasoning_off)))
        )

    def _thought_before(self, chars: int) -> int:
        """Return the length of the reasoning before the last text or call within `chars`."""
        text = bisect_left(self._marks, chars, key=lambda mark: mark.chars)
        last = bisect_right(self._marks, chars, key=lambda mark: mark.chars) - 1
        while self._marks[last].kind == "thought":
            last -= 1
        return max(self._marks[text].reasoning_off if chars else 0, self._marks[last].reasoning_off)

    def tokens_of(self, kept: KeptLength) -> int:
        """Return the tokens of the pieces that are kept whole."""

        def is_beyond(mark: PieceMark) -> bool:
            return mark.chars > kept.chars or mark.reasoning_off > kept.reasoning

        return self._marks[bisect_left(self._marks, True, key=is_beyond) - 1].tokens

    def tokens_until(self, seq: int) -> int:
        """Return the tokens of the pieces up to a seq."""
        return self._marks[self._after(seq) - 1].tokens

    def merged_after(self, seq: int, *, until: int) -> list[Text]:
        """Return text and reasoning with seqs after `seq`, up to `until`; neighbours of a kind are merged."""
        first, last = self._after(seq), self._after(until)
        runs = groupby(range(first, last), key=lambda place: self._marks[place].kind)
        return [merged for kind, places in runs if (merged := self._run(kind, list(places))) is not None]

    def _after(self, seq: int) -> int:
        return bisect_right(self._marks, seq, key=lambda mark: mark.seq)

    def _run(self, kind: Kind, places: list[int]) -> Text | None:
        before, end = self._marks[places[0] - 1], self._marks[places[-1]]
        tokens = end.tokens - before.tokens
        merged: Text
        if kind == "text":
            text = self.text[before.chars : end.chars]
            merged = self._delta(text, tokens=tokens, seq=end.seq, off=before.chars, src_off=end.src_off)
        elif kind == "thought":
            text = self.reasoning[before.reasoning_off : end.reasoning_off]
            merged = self._reasoning(text, tokens=tokens, seq=end.seq, off=before.reasoning_off)
        else:
            return None
        return msgspec.structs.replace(merged, first_seq=self._marks[places[0]].seq)

    def _delta(self, text: str, *, tokens: int, seq: int, off: int, src_off: int | None) -> Delta:
        return Delta(
            conversation_id=self._conversation_id,
            turn_id=self._turn_id,
            seq=seq,
            first_seq=seq,
            off=off,
            text=text,
            tokens=tokens,
            src_off=src_off,
        )

    def _reasoning(self, text: str, *, tokens: int, seq: int, off: int) -> Reasoning:
        return Reasoning(
            conversation_id=self._conversation_id,
            turn_id=self._turn_id,
            seq=seq,
            first_seq=seq,
            off=off,
            text=text,
            tokens=tokens,
        )
