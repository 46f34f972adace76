"""Converts replies to OpenAI's text completions: parts of a stream, whole texts, usage, and problems. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from connections.openai.chat_encoder import SSE_DONE, finish_reason, problem_event, sse_chunk, usage_of
from connections.openai.problems import Problem
from connections.openai.wire import TextChoice, TextCompletion, TextLogprobs, Usage
from engine.messages import ChosenToken, ToolCall
from sessions.events import Done
from sessions.running.ephemeral import Piece, TextPiece

_encode = msgspec.json.Encoder().encode


class CompletionsEncoder(msgspec.Struct, frozen=True, kw_only=True):
    """The common values of one request's answers. Fields as in `ChatCompletionsEncoder`."""

    turn_id: str
    created: int
    usage: bool = False
    logprobs: bool = False

    def begin(self, number: int, model: str) -> bytes:  # noqa: ARG002 - as at the chat's endpoint
        """Return nothing: the text comes first."""
        return b""

    def piece(self, number: int, model: str, piece: Piece, calls: int) -> bytes:  # noqa: ARG002 - there are none
        """Return a part of a text."""
        choice = TextChoice(_text(piece), number, self._logprobs([piece]))
        return sse_chunk(self._completion(model, (choice,), self._pending_usage))

    def end(self, number: int, model: str, done: Done) -> bytes:
        """Return the last part of a text, with the reason. Raises Problem if it has no regular end."""
        choice = TextChoice("", number, finish_reason=finish_reason(done))
        return sse_chunk(self._completion(model, (choice,), self._pending_usage))

    def close(self, model: str, ends: Sequence[Done], prompts: Sequence[int]) -> bytes:
        """Return the end of the stream: the usage if requested."""
        return self._totals(model, ends, prompts) + SSE_DONE

    def fail(self, model: str, problem: Problem, ends: Sequence[Done], prompts: Sequence[int]) -> bytes:
        """Return the end of the stream if a text has no regular end: the usage, then the problem."""
        return self._totals(model, ends, prompts) + problem_event(problem)

    def whole(
        self, model: str, replies: Sequence[tuple[Sequence[Piece], Done]], prompts: Sequence[int]
    ) -> bytes:
        """Return complete texts as JSON. Raises Problem if one is incomplete."""
        choices = tuple(
            TextChoice("".join(map(_text, pieces)), number, self._logprobs(pieces), finish_reason(done))
            for number, (pieces, done) in enumerate(replies)
        )
        usage = usage_of([done for _, done in replies], prompts)
        return _encode(self._completion(model, choices, usage))

    @property
    def _pending_usage(self) -> msgspec.UnsetType | None:
        """Return the value of `usage` before the end."""
        return None if self.usage else msgspec.UNSET

    def _totals(self, model: str, ends: Sequence[Done], prompts: Sequence[int]) -> bytes:
        if not self.usage:
            return b""
        return sse_chunk(self._completion(model, (), usage_of(ends, prompts)))

    def _completion(
        self, model: str, choices: tuple[TextChoice, ...], usage: Usage | msgspec.UnsetType | None
    ) -> TextCompletion:
        name = f"cmpl-{self.turn_id.removeprefix('turn_')}"
        return TextCompletion(id=name, created=self.created, model=model, choices=choices, usage=usage)

    def _logprobs(self, pieces: Sequence[Piece]) -> TextLogprobs | None:
        if not self.logprobs:
            return None
        tokens = [one for piece in pieces if isinstance(piece, TextPiece) for one in piece.logprobs]
        return TextLogprobs(
            tokens=tuple(one.chosen.token for one in tokens),
            token_logprobs=tuple(one.chosen.logprob for one in tokens),
            top_logprobs=tuple({other.token: other.logprob for other in one.top} for one in tokens),
            text_offset=tuple(map(_offset, tokens)),
        )


def _text(piece: Piece) -> str:
    """Return all that the model wrote as text, whatever the engine parsed it to."""
    return piece.arguments if isinstance(piece, ToolCall) else piece.text


def _offset(token: ChosenToken) -> int:
    """Return where a token begins, in whole characters; by its name if its bytes are unknown."""
    raw = token.chosen.raw
    text = token.chosen.token if raw is None else raw.decode(errors="ignore")
    return max(0, token.end - len(text))
