"""Turns the tokens of one reply into pieces: text, reasoning and calls. Knows no request and no batch.

Stop strings end a reply only by its text. They are not looked for in reasoning or calls, nor across them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from engine.messages import Request
from engine.parsing.formats import ReplyFormat
from engine.parsing.parser import Openings, Parser, Segment
from engine.text.detokenizer import Detokenizer, Vocabulary, detokenizer_of
from engine.text.reply_memory import ReplyRecorder
from engine.text.reply_text import NOTHING, Piece, ReplyLogprobs, ReplyStep, ReplyText, ShownText, Thought


class _RawReply:
    """A reply as the model wrote it, as far as it was told. `differs`: it is more than the reply's text."""

    def __init__(self) -> None:
        self.differs = False
        self._parts: list[str] = []
        self._emitted = 0

    def add(self, raw: str) -> None:
        self._parts.append(raw)

    def mark_emitted(self, chars: int) -> None:
        self._emitted += chars

    def __str__(self) -> str:
        return "".join(self._parts)[: self._emitted] if self.differs else ""


class ParsedReply:
    """Passes tokens through detokenizer and parser, and text through stop strings, in whole characters."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        parser: Parser,
        stops: Sequence[str] = (),
        notes: ReplyRecorder | None = None,
        logprobs: ReplyLogprobs | None = None,
        *,
        one_call: bool = False,
    ) -> None:
        """Take a fresh detokenizer and parser; the rest as in `ReplyText`. `one_call`: the first call ends the reply."""
        self._detokenizer = detokenizer
        self._parser = parser
        self._text = ShownText(stops)
        self._thoughts = ShownText()
        self._notes = notes
        self._logprobs = logprobs
        self._one_call = one_call
        self._written = _RawReply()
        self._text_chars = 0
        self._stopped = False

    @property
    def written(self) -> str:
        """The reply as the model wrote it, as far as it was told; empty if that is just its text."""
        return str(self._written)

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the reply; None if none did."""
        return self._text.stop

    def push(self, token_id: int) -> ReplyStep:
        """Take the next token. After a stop, push no more."""
        text = self._detokenizer.push(token_id)
        if self._notes is not None:
            self._notes.add(token_id, text)
        if self._logprobs is not None:
            self._logprobs.made(text, holds=self._detokenizer.holds)
        if not text:
            return NOTHING
        pieces = self._pieces(self._parser.feed(text))
        if self._stopped:
            self._close_notes()
        return ReplyStep(pieces, self._stopped) if pieces or self._stopped else NOTHING

    def resume(self, token_ids: Sequence[int]) -> None:
        """Take the tokens that a continued reply begins with. They are noted, but not told again."""
        made = []
        for token_id in token_ids:
            made.append(self._detokenizer.push(token_id))
            if self._notes is not None:
                self._notes.add(token_id, made[-1])
        for segment in self._parser.begin("".join(made)):
            self._written.add(segment.raw)
            self._written.mark_emitted(len(segment.raw))
            self._written.differs |= not _is_text(segment)

    def flush(self) -> tuple[Piece, ...]:
        """Return what was held back, at the reply's end: an unfinished call becomes text. After a stop nothing is left."""
        if self._stopped:
            return ()
        text = self._detokenizer.flush()
        self._close_notes(text)
        if self._logprobs is not None:
            self._logprobs.finish(text)
        pieces = self._pieces([*self._parser.feed(text), *self._parser.finish()])
        return pieces if self._stopped else (*pieces, *self._rest())

    def _close_notes(self, rest: str = "") -> None:
        if self._notes is not None:
            self._notes.close(rest)

    def _pieces(self, segments: Sequence[Segment]) -> tuple[Piece, ...]:
        pieces: list[Piece] = []
        for segment in segments:
            self._written.add(segment.raw)
            pieces += self._emit_text(segment.raw) if _is_text(segment) else self._emit_segment(segment)
            if self._stopped:
                break
        return tuple(pieces)

    def _emit_text(self, text: str) -> list[Piece]:
        shown = self._text.push(text)
        self._stopped = self._text.stopped
        self._text_chars += len(text)
        self._written.mark_emitted(len(shown))
        return [shown] if shown else []

    def _emit_segment(self, segment: Segment) -> list[Piece]:
        """Tell a segment that is not text. Text and reasoning that waited before it come first."""
        thinks = bool(segment.pieces) and isinstance(segment.pieces[0], Thought)
        pieces_before = self._rest(thinks=thinks)
        self._written.differs = True
        if self._logprobs is not None:
            self._logprobs.skip(self._text_chars, len(segment.raw))
        if thinks:
            shown = self._thoughts.push(segment.raw)
            self._written.mark_emitted(len(shown))
            return [*pieces_before, Thought(shown)] if shown else pieces_before
        self._written.mark_emitted(len(segment.raw))
        return [*pieces_before, *self._calls(segment.pieces)]

    def _calls(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        if not (self._one_call and pieces):
            return pieces
        self._stopped = True
        # Of several calls in one list the others are dropped, so what was written is not what was told.
        self._written.differs = len(pieces) == 1
        return pieces[:1]

    def _rest(self, *, thinks: bool = False) -> list[Piece]:
        """Return the text that waits, and the reasoning unless it goes on."""
        text = self._text.flush()
        thought = "" if thinks else self._thoughts.flush()
        self._written.mark_emitted(len(text) + len(thought))
        return [*([text] if text else []), *([Thought(thought)] if thought else [])]


def _is_text(segment: Segment) -> bool:
    return len(segment.pieces) == 1 and isinstance(segment.pieces[0], str)


class ReplyPrefix(NamedTuple):
    """The part of a reply that is in its prompt. `opened`: the template's words. `token_ids`: of a continued reply."""

    opened: str = ""
    token_ids: Sequence[int] = ()


class StartedReply(NamedTuple):
    """A reply that begins, and the log-probabilities of its tokens, if they were asked for."""

    reply: ReplyText | ParsedReply
    logprobs: ReplyLogprobs | None


class ReplyFactory:
    """Makes the replies of one model. `format_`: how the model writes them; None if there is nothing to parse."""

    def __init__(self, tokenizer: Any, format_: ReplyFormat | None) -> None:
        """Take a transformers tokenizer, and the result of `detect_format` for it."""
        vocabulary = Vocabulary(tokenizer)
        self._showing = cache(vocabulary.showing)
        self._format = format_
        markers = () if format_ is None else format_.markers
        self._hidden = tuple(mark for mark in markers if mark in vocabulary.special_names)

    def begin(self, request: Request, beginning: ReplyPrefix, notes: ReplyRecorder) -> StartedReply:
        """Return the reply to a request, with log-probabilities if the request asks for them.

        A reply to a raw prompt is only text.
        """
        format_ = None if request.spec.raw else self._format
        regions = () if format_ is None else format_.regions_for(request.spec.shown_tools)
        shows_all = bool(request.params.special_tokens)
        hidden = self._hidden if regions and not shows_all else ()
        detokenizer = detokenizer_of(self._showing(None if shows_all else hidden))
        logprobs = None if request.params.top_logprobs is None else ReplyLogprobs(detokenizer.spell)
        stops = request.params.stop
        reply: ReplyText | ParsedReply
        if format_ is None or not regions:
            reply = ReplyText(detokenizer, stops, notes, logprobs)
        else:
            parser = Parser(
                Openings(regions, hidden),
                outside=format_.outside,
                tools=request.spec.shown_tools,
            )
            parser.begin(beginning.opened)
            one_call = not request.spec.parallel_calls
            reply = ParsedReply(detokenizer, parser, stops, notes, logprobs, one_call=one_call)
        reply.resume(beginning.token_ids)
        return StartedReply(reply, logprobs)
