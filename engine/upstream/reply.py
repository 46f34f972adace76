"""One reply as an upstream tells it, made into what the engine's door promises: whole characters, one end. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.messages import Chunk, ErrorCode, Finished, FinishReason, Output, Started
from engine.text.characters import whole_length
from engine.upstream.logprobs import NOTHING_TOLD, UpstreamLogprobs

_REASONS = {"length": FinishReason.LENGTH, "max_tokens": FinishReason.LENGTH}
_FILTERED = "content_filter"


class CachedDetails(msgspec.Struct, frozen=True):
    """What of the prompt was in a cache."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """Totals, so far or at the end."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: CachedDetails | None = None


class Delta(msgspec.Struct, frozen=True):
    """What is new in a reply; reasoning and tool calls are passed over, in whichever shape they come."""

    content: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None

    @property
    def hides(self) -> bool:
        """Whether tokens of it belong to what is passed over."""
        return bool(self.reasoning_content or self.reasoning or self.tool_calls)


class Choice(msgspec.Struct, frozen=True):
    """News of a reply."""

    delta: Delta | None = None
    finish_reason: str | None = None
    logprobs: msgspec.Raw = NOTHING_TOLD


class Completion(msgspec.Struct, frozen=True):
    """One chunk of `POST /chat/completions`, as far as it is of use here."""

    choices: tuple[Choice, ...] | None = None
    usage: Usage | None = None
    error: Any = None


class UpstreamReply:
    """Takes chunks, gives outputs. `ended` is true once the upstream named a reason, or the reply is as long as it may get.

    Tokens are the upstream's totals where it tells them in time, else one for each chunk with text.
    """

    def __init__(
        self, request_id: str, *, prompt_tokens: int, max_new_tokens: int, logprobs: bool = False
    ) -> None:
        """Take the prompt's length as it was estimated, how long the reply may get, and whether logprobs were asked for."""
        self._request_id = request_id
        self._waiting = ""
        self._logprobs = UpstreamLogprobs() if logprobs else None
        self._shown_tokens = 0
        self._texts = 0
        self._reason: FinishReason | None = None
        self._filtered = False
        self._told = False
        self.started = False
        self.max_new_tokens = max_new_tokens
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = 0
        self.generated_tokens = 0

    @property
    def ended(self) -> bool:
        """Whether no more text will be taken."""
        return self._reason is not None

    @property
    def told(self) -> bool:
        """Whether it was the upstream that named the reason."""
        return self._told

    def take(self, completion: Completion) -> list[Output]:
        """Return what a chunk makes known."""
        outputs: list[Output] = []
        choice = completion.choices[0] if completion.choices else None
        text = (choice.delta.content if choice and choice.delta else None) or ""
        if text and not self.ended:
            self._texts += 1
            self.generated_tokens = max(self.generated_tokens, self._texts)
            if self._texts <= self.max_new_tokens:
                self._waiting += text
        if self._logprobs is not None and choice is not None and not self.ended:
            if choice.delta is not None and choice.delta.hides:
                self._logprobs.pass_over(text)
            else:
                self._logprobs.hear(text, choice.logprobs)
        if completion.usage is not None:
            self._account(completion.usage)
        if choice is not None and not self.started:
            self.started = True
            outputs.append(Started(self._request_id, self.prompt_tokens, self.cached_tokens))
        outputs += self._shown(whole_length(self._waiting))
        if not self.ended:
            self._end(choice.finish_reason if choice else None)
        return outputs

    def finish(self) -> list[Output]:
        """Return what was held back, and the end."""
        error = "The engine's own filter ended the reply." if self._filtered else None
        reason = FinishReason.ERROR if error else self._reason or FinishReason.STOP
        return [*self.rest(), self.finished(reason, error=error)]

    def rest(self) -> list[Output]:
        """Return what was held back: the text won't grow any more."""
        return self._shown(len(self._waiting))

    def finished(
        self,
        reason: FinishReason,
        *,
        steps_after: int | None = None,
        error: str | None = None,
        code: ErrorCode = ErrorCode.INTERNAL,
    ) -> Finished:
        """Return an end for this reason."""
        counts = (self.prompt_tokens, self.cached_tokens, self.generated_tokens)
        return Finished(self._request_id, reason, *counts, steps_after, error, code)

    def _shown(self, length: int) -> list[Output]:
        text, self._waiting = self._waiting[:length], self._waiting[length:]
        if not text:
            return []
        tokens = max(0, self.generated_tokens - self._shown_tokens)
        self._shown_tokens += tokens
        logprobs = self._logprobs.leave(text) if self._logprobs is not None else ()
        return [Chunk(self._request_id, text, tokens, logprobs)]

    def _account(self, usage: Usage) -> None:
        self.prompt_tokens = usage.prompt_tokens or self.prompt_tokens
        self.generated_tokens = usage.completion_tokens or self.generated_tokens
        details = usage.prompt_tokens_details
        self.cached_tokens = (details.cached_tokens if details else None) or self.cached_tokens

    def _end(self, told: str | None) -> None:
        """Note the end; an upstream that goes on beyond what was asked for is not listened to any more."""
        if told is not None:
            self._reason = _REASONS.get(told, FinishReason.STOP)
            self._told = True
            self._filtered = told == _FILTERED
        elif self._texts > self.max_new_tokens:
            self._reason = FinishReason.LENGTH
