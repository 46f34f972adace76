"""OpenAI's objects as far as they are served (API reference: Chat, Models, Errors). Only types; fields are named as they are there."""

from __future__ import annotations

from typing import Literal

import msgspec


def null() -> msgspec.Raw:
    """What stands for a field that is not there. A function, since msgspec describes no default of this kind in a schema."""
    return msgspec.Raw(b"null")


class Part(msgspec.Struct, frozen=True):
    """A part of a message's content."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """A message of a request. What tools said and asked for is here to be refused by name."""

    role: str
    content: str | list[Part] | None = None
    tool_calls: msgspec.Raw = msgspec.field(default_factory=null)
    function_call: msgspec.Raw = msgspec.field(default_factory=null)
    audio: msgspec.Raw = msgspec.field(default_factory=null)


class StreamOptions(msgspec.Struct, frozen=True):
    """How a stream is told."""

    include_usage: bool | None = None


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that are served; what else would change the text is in `unserved`. `top_k` and `repetition_penalty` are ours."""

    model: str
    messages: list[ChatMessage]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    prompt_cache_key: str | None = None

    @property
    def includes_usage(self) -> bool:
        """Whether a stream is to tell its totals."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


FinishReason = Literal["stop", "length", "content_filter"]


class PromptTokens(msgspec.Struct, frozen=True):
    """Of the prompt's tokens."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a reply."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokens


class LikelyToken(msgspec.Struct, frozen=True):
    """A token and the natural logarithm of its probability. Its bytes may be a part of a character; null: it stands for no text."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None


class ReplyToken(LikelyToken, frozen=True):
    """A token of a reply, and the likeliest ones in its place."""

    top_logprobs: tuple[LikelyToken, ...]


class Logprobs(msgspec.Struct, frozen=True):
    """How likely the tokens of a text were."""

    content: tuple[ReplyToken, ...]
    refusal: None = None


class Reply(msgspec.Struct, frozen=True):
    """The message of a reply that came whole."""

    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class Choice(msgspec.Struct, frozen=True):
    """The one reply."""

    message: Reply
    finish_reason: FinishReason
    index: int = 0
    logprobs: Logprobs | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A reply that came whole. `created`: Unix seconds."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: Usage


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chunk adds to the message."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(msgspec.Struct, frozen=True):
    """A chunk's part of the one reply."""

    delta: Delta
    finish_reason: FinishReason | None = None
    index: int = 0
    logprobs: Logprobs | None = None


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a stream. `usage` is left out where nobody asked for it, null on all chunks but the last where one did."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is served, or an alias of one, whose name is its `root` then. `created`: since when, in Unix seconds.

    Its window in tokens has the name that vLLM gives it and the one that OpenRouter does: clients read the one or the
    other. Neither is there before the model is loaded.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["midstream"] = "midstream"
    max_model_len: int | msgspec.UnsetType = msgspec.UNSET
    context_length: int | msgspec.UnsetType = msgspec.UNSET
    root: str | msgspec.UnsetType = msgspec.UNSET


class Models(msgspec.Struct, frozen=True, kw_only=True):
    """All of them."""

    object: Literal["list"] = "list"
    data: tuple[Model, ...]


class Error(msgspec.Struct, frozen=True):
    """What went wrong, with the field's name where it is a field's fault."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of a refusal, and of a stream's `error` event."""

    error: Error
