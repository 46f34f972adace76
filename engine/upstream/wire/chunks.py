"""The parts of an upstream's answer that are used: chunks of chat completions and of completions. Only types."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from engine.upstream.wire.logprobs import NO_LOGPROBS

MOST_TOKENS = 100_000_000
"""More than any window has."""
Tokens = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]


class CachedDetails(msgspec.Struct, frozen=True):
    """How many tokens of the prompt were in a cache."""

    cached_tokens: Tokens | None = None


class Usage(msgspec.Struct, frozen=True):
    """Totals, so far or at the end."""

    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    prompt_tokens_details: CachedDetails | None = None


class FunctionPart(msgspec.Struct, frozen=True):
    """More of a function's call. `arguments`: text; some servers send the object itself."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class CallPart(msgspec.Struct, frozen=True):
    """More of a call. `index`: which one of the reply's; some servers leave it out and send calls whole."""

    index: int | None = None
    id: str | None = None
    function: FunctionPart | None = None


class Delta(msgspec.Struct, frozen=True):
    """What is new in a reply. Reasoning has two names, which other servers may use for anything."""

    content: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: tuple[CallPart, ...] | None = None

    @property
    def thought(self) -> str:
        """The model's reasoning."""
        named = (self.reasoning_content, self.reasoning)
        return next((text for text in named if isinstance(text, str) and text), "")

    @property
    def has_content(self) -> bool:
        """Whether there is anything in it."""
        return bool(self.content or self.thought or self.tool_calls)


class Choice(msgspec.Struct, frozen=True):
    """News of a reply: `delta` of a chat, or `text` of a completion. `stop_reason`: vLLM's stop string or token id."""

    delta: Delta | None = None
    finish_reason: str | None = None
    logprobs: msgspec.Raw = NO_LOGPROBS
    text: str | None = None
    stop_reason: Any = None

    @property
    def news(self) -> Delta:
        """What is new, of a chat or of a completion."""
        return self.delta or Delta(self.text)


class Completion(msgspec.Struct, frozen=True):
    """One chunk. `usage`: a `Usage`, or whatever a server sends as one."""

    choices: tuple[Choice, ...] | None = None
    usage: msgspec.Raw = NO_LOGPROBS
    error: Any = None

    @property
    def has_content(self) -> bool:
        """Whether any of the reply is in it."""
        return any(choice.news.has_content for choice in self.choices or ())
