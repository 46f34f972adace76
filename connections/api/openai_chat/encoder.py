"""Converts replies to chat completions and text completions: a stream's chunks, whole replies, usage and problems. Pure.

The types are OpenAI's, as far as sent, with its names (API reference: Chat, Completions, Models).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from connections.api.errors import Problem
from connections.api.replies import FinishReason, ReplyToken, finish_reason, reply_token
from engine import messages
from engine.messages import ChosenToken, Languages
from sessions.events import Done
from sessions.running.ephemeral import Piece, ReasoningPiece, TextPiece

SSE_DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


class PromptTokens(msgspec.Struct, frozen=True):
    """Details of the prompt's tokens."""

    cached_tokens: int


class ReplyTokens(msgspec.Struct, frozen=True):
    """Details of the reply's tokens."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a request: of its prompts, each counted once, and of all replies."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokens
    completion_tokens_details: ReplyTokens


class Logprobs(msgspec.Struct, frozen=True):
    """The log-probabilities of a text's tokens."""

    content: tuple[ReplyToken, ...]
    refusal: None = None


class CalledFunction(msgspec.Struct, frozen=True):
    """A function to be called. `arguments`: the text of a JSON object."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call in a complete reply."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Reply(msgspec.Struct, frozen=True):
    """The message of a complete reply. Its reasoning has DeepSeek's name, and vLLM's newer one."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: tuple[ToolCall, ...] | msgspec.UnsetType = msgspec.UNSET


class Choice(msgspec.Struct, frozen=True):
    """One reply."""

    message: Reply
    finish_reason: FinishReason
    index: int = 0
    logprobs: Logprobs | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """Complete replies. `created`: Unix seconds."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: Usage


class CallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A call, which comes in one piece. `index`: its place among the reply's calls."""

    index: int
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chunk adds to the message. Reasoning has two names, as in a complete reply."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[CallDelta, ...] = ()


class ChunkChoice(msgspec.Struct, frozen=True):
    """A chunk's part of one reply."""

    delta: Delta
    finish_reason: FinishReason | None = None
    index: int = 0
    logprobs: Logprobs | None = None


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a stream. `usage` is left out unless requested; then it is null in all chunks but the last."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class TextLogprobs(msgspec.Struct, frozen=True):
    """The log-probabilities of a text's tokens, by position. `text_offset`: code points before each."""

    tokens: tuple[str, ...]
    token_logprobs: tuple[float, ...]
    top_logprobs: tuple[dict[str, float], ...]
    text_offset: tuple[int, ...]


class TextChoice(msgspec.Struct, frozen=True):
    """One text, or a chunk's part of it."""

    text: str
    index: int = 0
    logprobs: TextLogprobs | None = None
    finish_reason: FinishReason | None = None


class TextCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """Complete texts, or a part of a stream. `usage` is left out of chunks unless requested, as in `Chunk`."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: tuple[TextChoice, ...]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """What a model reads and writes, in OpenRouter's terms."""

    input_modalities: tuple[Literal["text", "image"], ...] = ("text",)
    output_modalities: tuple[Literal["text"], ...] = ("text",)


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A served model, or an alias whose `root` is its model. `created`: Unix seconds of the start.

    Its window in tokens has vLLM's name and OpenRouter's: clients read one or the other. Both, and its
    `architecture`, are missing before the model is loaded. `languages`: of a model that only translates.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["midstream"] = "midstream"
    max_model_len: int | msgspec.UnsetType = msgspec.UNSET
    context_length: int | msgspec.UnsetType = msgspec.UNSET
    root: str | msgspec.UnsetType = msgspec.UNSET
    languages: Languages | msgspec.UnsetType = msgspec.UNSET
    architecture: Architecture | msgspec.UnsetType = msgspec.UNSET


class Models(msgspec.Struct, frozen=True, kw_only=True):
    """All models."""

    object: Literal["list"] = "list"
    data: tuple[Model, ...]


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

    def _event(self, model: str, *choices: ChunkChoice, totals: Usage | None = None) -> bytes:
        usage = totals if self.usage else msgspec.UNSET
        chunk = Chunk(id=self._id, created=self.created, model=model, choices=choices, usage=usage)
        return sse_chunk(chunk)

    def _totals(self, model: str, ends: Sequence[Done], prompts: Sequence[int]) -> bytes:
        return self._event(model, totals=usage_of(ends, prompts)) if self.usage else b""


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


def sse_chunk(chunk: Chunk | TextCompletion) -> bytes:
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


def usage_of(ends: Sequence[Done], prompts: Sequence[int]) -> Usage:
    """Return the usage of ended turns. `prompts`: the number of each one's prompt; a shared one counts once."""
    usages = [done.usage for done in ends]
    by_prompt = dict(reversed(list(zip(prompts, usages, strict=True))))
    prompt = sum(usage.prompt_tokens for usage in by_prompt.values())
    cached = sum(usage.cached_tokens for usage in by_prompt.values())
    generated = sum(usage.generated_tokens for usage in usages)
    thought = sum(usage.reasoning_tokens for usage in usages)
    return Usage(prompt, generated, prompt + generated, PromptTokens(cached), ReplyTokens(thought))


def _text(piece: Piece) -> str:
    """Return all that the model wrote as text, whatever the engine parsed it to."""
    return piece.arguments if isinstance(piece, messages.ToolCall) else piece.text


def _offset(token: ChosenToken) -> int:
    """Return where a token begins, in whole characters; by its name if its bytes are unknown."""
    raw = token.chosen.raw
    text = token.chosen.token if raw is None else raw.decode(errors="ignore")
    return max(0, token.end - len(text))
