"""Turns an upstream's chunks of one reply into what `Engine` promises: pieces with tokens, and one end. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from engine.messages import ErrorCode, Finished, FinishReason, Output, Started
from engine.upstream.wire.chunks import MOST_TOKENS, CachedDetails, Choice, Completion, Usage
from engine.upstream.wire.logprobs import NO_LOGPROBS
from engine.upstream.wire.pieces import Piece, UpstreamPieces

_REASONS = {"length": FinishReason.LENGTH, "max_tokens": FinishReason.LENGTH}
_FILTERED = "content_filter"
_NOTHING = Choice()
_usage = msgspec.json.Decoder(Usage | None).decode


class UpstreamReply:
    """Takes chunks, and gives outputs.

    Tokens are counted by the upstream's totals if they come in time, else as one for each chunk with content.
    """

    def __init__(
        self,
        request_id: str,
        *,
        prompt_tokens: int,
        max_new_tokens: int,
        most_tokens: int = MOST_TOKENS,
        logprobs: bool = False,
        upstream: str = "",
    ) -> None:
        """Take the estimated length of the prompt, the longest reply, and whether log-probabilities were asked for.

        `most_tokens`: prompts and replies of an upstream's totals are no longer.
        """
        self._most_tokens = most_tokens
        self._request_id = request_id
        self._pieces = UpstreamPieces(request_id, upstream, logprobs=logprobs)
        self._shown_tokens = 0
        self._chunks = 0
        self._reason: FinishReason | None = None
        self._stop_detail: str | None = None
        self._stop: str | None = None
        self.started = False
        self.max_new_tokens = max_new_tokens
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = 0
        self.generated_tokens = 0

    @property
    def ended(self) -> bool:
        """Whether the upstream named a finish reason, or the reply is as long as it may get."""
        return self._reason is not None

    @property
    def has_reason(self) -> bool:
        """Whether the upstream named the finish reason."""
        return self._stop_detail is not None

    def take(self, completion: Completion) -> list[Output]:
        """Return the outputs of a chunk. Raises EngineLost if there are too many calls."""
        outputs: list[Output] = []
        choice = completion.choices[0] if completion.choices else None
        pieces = self._pieces_of(choice or _NOTHING) if not self.ended else []
        if completion.usage is not NO_LOGPROBS:
            self._account(completion.usage)
        if choice is not None and not self.started:
            self.started = True
            outputs.append(Started(self._request_id, self.prompt_tokens, self.cached_tokens))
        outputs += self._counted(pieces)
        if not self.ended:
            self._end(choice or _NOTHING)
        return outputs

    def finish(self) -> list[Output]:
        """Return what was held back, and the end."""
        error = "The engine's own filter ended the reply." if self._stop_detail == _FILTERED else None
        reason = FinishReason.ERROR if error else self._reason or FinishReason.STOP
        return [*self.rest(), self.finished(reason, error=error)]

    def rest(self) -> list[Output]:
        """Return what was held back, since the reply has ended."""
        return self._counted(self._pieces.finish())

    def finished(
        self,
        reason: FinishReason,
        *,
        steps_after: int | None = None,
        error: str | None = None,
        code: ErrorCode = ErrorCode.INTERNAL,
    ) -> Finished:
        """Return the end of the reply, with this reason."""
        counts = (self.prompt_tokens, self.cached_tokens, self.generated_tokens)
        stop = self._stop if reason is FinishReason.STOP else None
        return Finished(self._request_id, reason, *counts, steps_after, error, code, stop=stop)

    def _pieces_of(self, choice: Choice) -> list[Piece]:
        if choice.news.has_content:
            self._chunks += 1
            self.generated_tokens = max(self.generated_tokens, self._chunks)
            if self._chunks > self.max_new_tokens:
                return []
        return list(self._pieces.take(choice))

    def _counted(self, pieces: Iterable[Piece]) -> list[Output]:
        """Return the pieces. The first one carries all tokens that were generated since the last piece."""
        counted: list[Output] = []
        for piece in pieces:
            tokens = max(0, self.generated_tokens - self._shown_tokens)
            self._shown_tokens += tokens
            counted.append(msgspec.structs.replace(piece, tokens=tokens))
        return counted

    def _account(self, raw: msgspec.Raw) -> None:
        """Take an upstream's totals, unless they can't be true: then our own counts stand."""
        try:
            usage = _usage(raw)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            usage = None
        if usage is None:
            return
        prompt = usage.prompt_tokens or self.prompt_tokens
        cached = (usage.prompt_tokens_details or CachedDetails()).cached_tokens or self.cached_tokens
        generated = usage.completion_tokens or self.generated_tokens
        if prompt <= self._most_tokens and generated <= self._most_tokens and cached <= prompt:
            self.prompt_tokens, self.cached_tokens, self.generated_tokens = prompt, cached, generated

    def _end(self, choice: Choice) -> None:
        """Note the end, also if an upstream goes on beyond the length that was asked for."""
        reason = choice.finish_reason
        if reason is not None:
            self._reason = _REASONS.get(reason, FinishReason.STOP)
            self._stop_detail = reason
            self._stop = choice.stop_reason if isinstance(choice.stop_reason, str) else None
        elif self._chunks > self.max_new_tokens:
            self._reason = FinishReason.LENGTH
