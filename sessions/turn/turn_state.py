"""The state machine of a turn: pure, without a clock, with exactly one end.

    CLAIMED ──accept──► ACCEPTED ──extend──► STREAMING ──end──► ENDED
       │                   │                     │                ▲
       └──────cancel───────┴───────cancel────────┴──► ENDING ──end┘

A claimed turn that is cancelled is still accepted before it ends, since its message is in the history.
"""

from __future__ import annotations

import hashlib
import secrets
from bisect import bisect_left, bisect_right
from enum import StrEnum
from itertools import groupby
from typing import Literal, NamedTuple, Self

import msgspec

from engine.text.detokenizer import floor_boundary
from sessions.events import (
    CancelFacts,
    Cause,
    Delta,
    Done,
    Failure,
    KeptLength,
    Reason,
    Reasoning,
    Text,
    Timing,
    Usage,
)


class TurnPhase(StrEnum):
    """The state of a turn."""

    CLAIMED = "claimed"
    ACCEPTED = "accepted"
    STREAMING = "streaming"
    ENDING = "ending"
    ENDED = "ended"


# Used for every delta: looking up an enum's members is slow.
_STREAMING = TurnPhase.STREAMING
_SPEAKS = (TurnPhase.STREAMING, TurnPhase.ACCEPTED)


class IllegalTransition(Exception):
    """The turn's state does not allow this transition: a defect of the caller."""


class TurnIds(msgspec.Struct, frozen=True, kw_only=True):
    """The ids of a turn and of its reply."""

    conversation_id: str
    turn_id: str
    reply_id: str


class TurnMessageIds(msgspec.Struct, frozen=True):
    """The ids of a new turn and its two messages."""

    turn_id: str
    message_id: str
    reply_id: str

    @classmethod
    def new(cls) -> Self:
        """Return random ids."""
        return cls(*(f"{kind}_{secrets.token_urlsafe(12)}" for kind in ("turn", "msg", "msg")))


class Cut(msgspec.Struct, frozen=True):
    """The decision of a cancel: its cause and time, how much of the reply is kept, and how much had been sent."""

    cause: Cause
    at: float
    kept: KeptLength
    sent_off: KeptLength

    @property
    def chars(self) -> int:
        """How much of its text is kept."""
        return self.kept.chars

    @property
    def is_rollback(self) -> bool:
        """Whether the exchange is removed from the history."""
        return self.cause is Cause.ROLLBACK


class EngineCount(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's counts of a turn; None if it died or did not confirm the stop.

    `dropped_tokens`: generated tokens of hypotheses that were not published.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int | None = None
    steps_after: int | None = None
    dropped_tokens: int = 0


class TurnState:
    """One user message and its reply. Times are seconds of any monotonic clock."""

    def __init__(self, ids: TurnIds) -> None:
        self.ids = ids
        self.state = TurnPhase.CLAIMED
        self.is_over = False
        """Whether its end is decided."""
        self.pieces = ReplyPieces(conversation_id=ids.conversation_id, turn_id=ids.turn_id)
        self.cut: Cut | None = None
        self.count = EngineCount()
        self._acked_tokens: int | None = None
        self.accepted_at: float | None = None
        self._started_at: float | None = None
        self._first_at: float | None = None

    @property
    def text(self) -> str:
        """The reply so far; once cancelled, the part that is kept."""
        return self.pieces.text if self.cut is None else self.pieces.text[: self.cut.kept.chars]

    @property
    def reasoning(self) -> str:
        """The reasoning so far; once cancelled, the part that is kept."""
        return self.pieces.reasoning if self.cut is None else self.pieces.reasoning[: self.cut.kept.reasoning]

    @property
    def off(self) -> int:
        """Length of its text."""
        return self.pieces.end.chars

    @property
    def calls(self) -> int:
        """The number of its calls."""
        return self.pieces.calls

    @property
    def text_seq(self) -> int | None:
        """The seq of its first delta."""
        return self.pieces.first_seq("text")

    @property
    def reasoning_seq(self) -> int | None:
        """The seq of its first reasoning."""
        return self.pieces.first_seq("thought")

    @property
    def has_begun(self) -> bool:
        """Whether the reply has begun: with text, reasoning or a call."""
        return self._first_at is not None

    def continue_from(self, reply_id: str, *, text: str, reasoning: str) -> None:
        """Continue a reply that has `text` and `reasoning`, which no cancel shortens. Call it before the first piece."""
        if self.has_begun:
            raise IllegalTransition(f"another beginning in {self.state}")
        ids = self.ids = msgspec.structs.replace(self.ids, reply_id=reply_id)
        self.pieces = ReplyPieces(
            conversation_id=ids.conversation_id, turn_id=ids.turn_id, text=text, reasoning=reasoning
        )
        if self.cut is not None:
            self.cut = msgspec.structs.replace(self.cut, kept=self.pieces.base, sent_off=self.pieces.base)

    def accept(self, *, now: float) -> None:
        """Accept: the user's message is in the history."""
        if self.accepted_at is not None:
            raise IllegalTransition(f"accept in {self.state}")
        self.accepted_at = now
        if self.state is TurnPhase.CLAIMED:
            self.state = TurnPhase.ACCEPTED

    def start(self, *, prompt_tokens: int, cached_tokens: int, now: float) -> None:
        """Start: the engine took the request out of its queue. After a retry or a preemption a turn starts again."""
        if (
            self._first_at is not None
        ):  # preempted after its first text: its waiting and prefill times were counted
            return
        self._started_at = now
        self.count = EngineCount(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)

    def extend(self, text: str, *, tokens: int, seq: int, now: float, read_off: int | None = None) -> Delta:
        """Add text; `read_off`: how much of a growing source was read. Raises IllegalTransition once the end is decided."""
        self._speak(now)
        return self.pieces.extend(text, tokens=tokens, seq=seq, read_off=read_off)

    def add_reasoning(self, text: str = "", *, tokens: int, seq: int, now: float) -> Reasoning:
        """Add reasoning. Raises IllegalTransition once the end is decided."""
        self._speak(now)
        return self.pieces.add_reasoning(text, tokens=tokens, seq=seq)

    def called(self, *, tokens: int, seq: int, now: float) -> None:
        """Add a call. Raises IllegalTransition once the end is decided."""
        self._speak(now)
        self.pieces.call(tokens=tokens, seq=seq)

    def _speak(self, now: float) -> None:
        """Begin a piece of the reply."""
        if self.state not in _SPEAKS:
            raise IllegalTransition(f"a piece in {self.state}")
        self.state = _STREAMING
        self.pieces.begin_piece(now)
        if self._first_at is None:
            self._first_at = now

    def ack(self, seq: int) -> None:
        """Note that a reader has all text up to a seq; the furthest reader counts."""
        self._acked_tokens = max(self._acked_tokens or 0, self.pieces.tokens_until(seq))

    def cancel(
        self, cause: Cause, *, sent_off: int, seen_off: int | None, now: float, reasoning_off: int = 0
    ) -> Cut | None:
        """Decide the cut, once: at what was handed to a transport, or seen if that is less. Return None if it is too late.

        `reasoning_off`: how much of the reasoning was handed to a transport.
        """
        if self.is_over:
            return None
        base = self.pieces.base
        seen = sent_off if seen_off is None else min(sent_off, seen_off)
        kept = base if cause is Cause.ROLLBACK else self.pieces.kept(seen=seen, reasoning_off=reasoning_off)
        left = KeptLength(max(base.chars, min(sent_off, self.off)), max(reasoning_off, kept.reasoning))
        self.cut = Cut(cause, now, kept, left)
        self.state, self.is_over = TurnPhase.ENDING, True
        return self.cut

    def shorten(self, seen: int) -> None:
        """Shorten a decided cut that is not yet published: less text was seen than it says."""
        if self.cut is not None and not self.cut.is_rollback and seen < self.cut.kept.chars:
            kept = self.pieces.kept(seen=seen, reasoning_off=self.cut.kept.reasoning)
            self.cut = msgspec.structs.replace(self.cut, kept=kept)

    def end(self, reason: Reason, *, seq: int, now: float, error: Failure | None = None) -> Done:
        """End the turn. A decided cut outranks the engine's reason. Raises IllegalTransition at a second end."""
        if self.state is TurnPhase.ENDED or self.accepted_at is None:
            raise IllegalTransition(f"end in {self.state}")
        self.state, self.is_over = TurnPhase.ENDED, True
        cut, text = self.cut, self.text
        if cut is not None:
            reason = Reason.INTERRUPTED if cut.cause is Cause.DRAIN else Reason.CANCELLED
            error = None
        elif reason is Reason.STOP and self.calls:
            reason = Reason.TOOLS
        return Done(
            conversation_id=self.ids.conversation_id,
            turn_id=self.ids.turn_id,
            message_id=self.ids.reply_id,
            seq=seq,
            reason=reason,
            chars=len(text),
            usage=self._usage(reason),
            timing=self._timing(self.accepted_at, now),
            text_sha256=hashlib.sha256(text.encode()).hexdigest(),
            saved=True,
            removed=cut is not None and cut.is_rollback and self.pieces.base == KeptLength(0),
            cancel=None if cut is None else self._cancel_facts(cut, now),
            error=error,
            reasoning_chars=len(self.reasoning),
        )

    def _usage(self, reason: Reason) -> Usage:
        made = self.pieces.end.tokens
        generated = made if self.count.generated_tokens is None else self.count.generated_tokens
        whole = reason in (Reason.STOP, Reason.TOOLS, Reason.LENGTH, Reason.TIMEOUT)
        kept = (
            generated - self.count.dropped_tokens
            if whole
            else made
            if self.cut is None
            else self.pieces.tokens_of(self.cut.kept)
        )
        sent = made if self.cut is None else self.pieces.tokens_of(self.cut.sent_off)
        return Usage(
            prompt_tokens=self.count.prompt_tokens,
            cached_tokens=self.count.cached_tokens,
            generated_tokens=generated,
            sent_tokens=sent,
            acked_tokens=None if self._acked_tokens is None else min(self._acked_tokens, sent),
            wasted_tokens=max(0, generated - kept),
            reasoning_tokens=self.pieces.reasoning_tokens,
            reasoning_ms=round(self.pieces.reasoning_s * 1000, 3) if self.pieces.reasoning_tokens else None,
        )

    def _timing(self, accepted_at: float, now: float) -> Timing:
        def since(at: float | None) -> float | None:
            return None if at is None else round((at - accepted_at) * 1000, 3)

        return Timing(
            queued_ms=since(self._started_at),
            first_token_ms=since(self._first_at),
            total_ms=round((now - accepted_at) * 1000, 3),
        )

    def _cancel_facts(self, cut: Cut, now: float) -> CancelFacts:
        latency_ms = round((now - cut.at) * 1000, 3)
        return CancelFacts(cause=cut.cause, latency_ms=latency_ms, steps_after=self.count.steps_after)


Kind = Literal["", "text", "thought", "call"]


class PieceMark(NamedTuple):
    """A reply's state after one piece: its seq and kind, and the lengths so far.

    `read_off`: how much of a growing source had been read for the piece.
    """

    seq: int
    kind: Kind
    chars: int
    reasoning_off: int
    tokens: int
    read_off: int | None = None


class ReplyPieces:
    """A reply's pieces in the order of their seqs."""

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
        """The current state of the reply."""
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

    def extend(self, text: str, *, tokens: int, seq: int, read_off: int | None = None) -> Delta:
        """Add text."""
        _, _, chars, reasoning_off, total, _ = self.end
        self._text.append(text)
        self._marks.append(PieceMark(seq, "text", chars + len(text), reasoning_off, total + tokens, read_off))
        return self._delta(text, tokens=tokens, seq=seq, off=chars, read_off=read_off)

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
        """Return what a cut keeps: whole characters of the seen text, and the reasoning before it, or more if more was seen.

        Never less than `base`.
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
            merged = self._delta(text, tokens=tokens, seq=end.seq, off=before.chars, read_off=end.read_off)
        elif kind == "thought":
            text = self.reasoning[before.reasoning_off : end.reasoning_off]
            merged = self._reasoning(text, tokens=tokens, seq=end.seq, off=before.reasoning_off)
        else:
            return None
        return msgspec.structs.replace(merged, first_seq=self._marks[places[0]].seq)

    def _delta(self, text: str, *, tokens: int, seq: int, off: int, read_off: int | None) -> Delta:
        return Delta(
            conversation_id=self._conversation_id,
            turn_id=self._turn_id,
            seq=seq,
            first_seq=seq,
            off=off,
            text=text,
            tokens=tokens,
            src_off=read_off,
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
