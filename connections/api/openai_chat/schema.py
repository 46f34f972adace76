"""OpenAI's answers, as far as sent (API reference: Chat, Completions, Models, Errors). Only types, with its names."""

from __future__ import annotations

from typing import Literal

import msgspec

from connections.api.replies import FinishReason, ReplyToken
from engine.messages import Languages


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
