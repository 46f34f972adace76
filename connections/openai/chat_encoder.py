"""Converts replies to OpenAI's chat completions: a stream's chunks, whole replies, usage and problems. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from connections.openai import wire
from connections.openai.problems import Problem, problem_from_failure
from connections.openai.wire import (
    CallDelta,
    CalledFunction,
    Choice,
    Chunk,
    ChunkChoice,
    Completion,
    Delta,
    FinishReason,
    LikelyToken,
    Logprobs,
    Reply,
    ReplyToken,
    ToolCall,
)
from engine import messages
from engine.messages import ChosenToken, TokenLogprob
from sessions.errors import Draining, Forbidden
from sessions.events import Cause, Done, Failure, Reason
from sessions.running.ephemeral import Piece, ReasoningPiece, TextPiece

SSE_DONE = b"data: [DONE]\n\n"

_FINISH_REASONS: dict[Reason, FinishReason] = {
    Reason.STOP: "stop",
    Reason.TOOLS: "tool_calls",
    Reason.LENGTH: "length",
    Reason.TIMEOUT: "length",
    Reason.FILTERED: "content_filter",
}
SERVER_STOPPING = Failure(
    code=Draining.code, message="The server is about to stop: the reply was interrupted."
)
_OPERATOR_ENDED = Failure(code=Forbidden.code, message="The operator ended this reply.")

_encode = msgspec.json.Encoder().encode


class ChatCompletionsEncoder(msgspec.Struct, frozen=True, kw_only=True):
    """The common values of one request's answers. `created`: Unix seconds; `usage`: a stream ends with its usage.

    `logprobs`: text comes with its tokens' log-probabilities; they may be empty, as some come with later text.
    `reasoning`: reasoning is sent.
    """

    turn_id: str
    created: int
    usage: bool = False
    logprobs: bool = False
    reasoning: bool = True

    def begin(self, number: int, model: str) -> bytes:
        """Return the first chunk of a reply."""
        return self._event(model, ChunkChoice(Delta(role="assistant", content=""), index=number))

    def piece(self, number: int, model: str, piece: Piece, calls: int) -> bytes:
        """Return a chunk with a piece of a reply, or nothing. `calls`: the reply's calls before it."""
        match piece:
            case TextPiece(text, logprobs):
                token_logprobs = self._logprobs(logprobs)
                return self._event(
                    model, ChunkChoice(Delta(content=text), index=number, logprobs=token_logprobs)
                )
            case ReasoningPiece(text):
                thought = Delta(reasoning_content=text, reasoning=text)
                return self._event(model, ChunkChoice(thought, index=number)) if self.reasoning else b""
            case messages.ToolCall():
                delta = CallDelta(index=calls, id=piece.call_id, function=_function(piece))
                return self._event(model, ChunkChoice(Delta(tool_calls=(delta,)), index=number))

    def end(self, number: int, model: str, done: Done) -> bytes:
        """Return the last chunk of a reply, with its reason. Raises Problem if it has no regular end."""
        return self._event(model, ChunkChoice(Delta(), finish_reason=finish_reason(done), index=number))

    def close(self, model: str, ends: Sequence[Done], prompts: Sequence[int]) -> bytes:
        """Return the end of the stream: the usage if requested. `prompts`: as in `usage_of`."""
        return self._totals(model, ends, prompts) + SSE_DONE

    def fail(self, model: str, problem: Problem, ends: Sequence[Done], prompts: Sequence[int]) -> bytes:
        """Return the end of the stream if a reply has no regular end: the usage, then the problem."""
        return self._totals(model, ends, prompts) + problem_event(problem)

    def whole(
        self, model: str, replies: Sequence[tuple[Sequence[Piece], Done]], prompts: Sequence[int]
    ) -> bytes:
        """Return complete replies as JSON. Raises Problem if one is incomplete."""
        return _encode(
            Completion(
                id=self._id,
                created=self.created,
                model=model,
                choices=tuple(
                    self._choice(number, pieces, done) for number, (pieces, done) in enumerate(replies)
                ),
                usage=usage_of([done for _, done in replies], prompts),
            )
        )

    def _choice(self, number: int, pieces: Sequence[Piece], done: Done) -> Choice:
        tokens = [one for piece in pieces if isinstance(piece, TextPiece) for one in piece.logprobs]
        reason = finish_reason(done)
        return Choice(
            assistant_message(pieces, thinks=self.reasoning), reason, number, self._logprobs(tokens)
        )

    @property
    def _id(self) -> str:
        return f"chatcmpl-{self.turn_id.removeprefix('turn_')}"

    def _logprobs(self, tokens: Sequence[ChosenToken]) -> Logprobs | None:
        return Logprobs(tuple(map(reply_token, tokens))) if self.logprobs else None

    def _event(self, model: str, *choices: ChunkChoice, totals: wire.Usage | None = None) -> bytes:
        usage = totals if self.usage else msgspec.UNSET
        chunk = Chunk(id=self._id, created=self.created, model=model, choices=choices, usage=usage)
        return sse_chunk(chunk)

    def _totals(self, model: str, ends: Sequence[Done], prompts: Sequence[int]) -> bytes:
        return self._event(model, totals=usage_of(ends, prompts)) if self.usage else b""


def sse_chunk(chunk: Chunk | wire.TextCompletion) -> bytes:
    """Return a chunk as a server-sent event."""
    return b"data: " + _encode(chunk) + b"\n\n"


def problem_event(problem: Problem) -> bytes:
    """Return the event that ends a stream without a regular end."""
    return b"event: error\ndata: " + problem.body + b"\n\n"


def assistant_message(pieces: Sequence[Piece], *, thinks: bool = True) -> Reply:
    """Return the message of a complete reply; without text if it only calls."""
    text = "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))
    thought = "".join(piece.text for piece in pieces if isinstance(piece, ReasoningPiece)) if thinks else ""
    calls = tuple(
        ToolCall(id=piece.call_id, function=_function(piece))
        for piece in pieces
        if isinstance(piece, messages.ToolCall)
    )
    return Reply(
        content=None if calls and not text else text,
        reasoning_content=thought or msgspec.UNSET,
        reasoning=thought or msgspec.UNSET,
        tool_calls=calls or msgspec.UNSET,
    )


def _function(call: messages.ToolCall) -> CalledFunction:
    return CalledFunction(call.name, call.arguments)


def reply_token(token: ChosenToken) -> ReplyToken:
    """Return a token with its log-probability."""
    chosen = _likely(token.chosen)
    return ReplyToken(chosen.token, chosen.logprob, chosen.bytes, tuple(map(_likely, token.top)))


def _likely(token: TokenLogprob) -> LikelyToken:
    return LikelyToken(token.token, token.logprob, None if token.raw is None else tuple(token.raw))


def finish_reason(done: Done) -> FinishReason:
    """Return why a reply ended. Raises Problem if it has no regular end."""
    if (problem := problem_at_end(done)) is not None:
        raise problem
    return _FINISH_REASONS[done.reason]


def usage_of(ends: Sequence[Done], prompts: Sequence[int]) -> wire.Usage:
    """Return the usage of ended turns. `prompts`: the number of each one's prompt; a shared one counts once."""
    usages = [done.usage for done in ends]
    by_prompt = dict(reversed(list(zip(prompts, usages, strict=True))))
    prompt = sum(usage.prompt_tokens for usage in by_prompt.values())
    cached = sum(usage.cached_tokens for usage in by_prompt.values())
    generated = sum(usage.generated_tokens for usage in usages)
    thought = sum(usage.reasoning_tokens for usage in usages)
    return wire.Usage(
        prompt, generated, prompt + generated, wire.PromptTokens(cached), wire.ReplyTokens(thought)
    )


def problem_at_end(done: Done) -> Problem | None:
    """Return why a reply has no regular end; None if it has one."""
    if done.reason in _FINISH_REASONS:
        return None
    by_operator = done.cancel is not None and done.cancel.cause is Cause.OPERATOR
    return problem_from_failure(done.error or (_OPERATOR_ENDED if by_operator else SERVER_STOPPING))
