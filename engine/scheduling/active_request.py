"""One request while it is served: what it asked for, how far it is, and its outputs.

Knows neither other requests nor the model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

from engine.cache.layout import Span, unknown
from engine.messages import (
    Chunk,
    ErrorCode,
    Finished,
    FinishReason,
    Output,
    Prefilling,
    Queued,
    Reasoning,
    Started,
    ToolCallOutput,
)
from engine.sampling.sampler import SamplerState
from engine.scheduling.image_inputs import ImageInputs
from engine.scheduling.plan import ScheduledRequest, Segment
from engine.text.pieces import Call, Piece, Thought
from engine.text.prepared_request import PreparedRequest
from engine.text.reply_logprobs import ScoredToken


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """A request from its submission to its end.

    `room`: the most tokens of source, prompt and reply together. `unsent`: how many tokens no output has counted yet.
    `position`: the last reported place in the queue. `image_inputs`: its images; None if it has none.
    """

    prepared: PreparedRequest
    request: ScheduledRequest
    sampler_state: SamplerState
    room: int
    position: int | None = None
    unsent: int = 0
    steps_at_cancel: int | None = None
    image_inputs: ImageInputs | None = None

    @property
    def tokens(self) -> list[int]:
        """All tokens of its own text so far, without a source, as the model reads them."""
        request = self.request
        tokens = request.tokens[request.first :] if request.first else request.tokens
        return tokens if self.image_inputs is None else self.image_inputs.plain(tokens)

    @property
    def waits(self) -> bool:
        """Whether its next token can be chosen only when the host knows the last one."""
        return self.prepared.logprobs is not None or self.sampler_state.guide is not None

    @property
    def is_long_enough(self) -> bool:
        """Whether the reply may have no more tokens."""
        full = len(self.request.tokens) >= self.room
        return full or self.request.generated >= self.prepared.sampling.max_new_tokens

    @property
    def is_far_enough(self) -> bool:
        """Whether the reply has all the tokens that it may have behind what was right of its draft."""
        request = self.request
        behind = request.generated - request.accepted
        return request.ahead is not None and not request.draft and behind >= request.ahead

    @property
    def accepted(self) -> list[int]:
        """The tokens of its draft that were right."""
        request = self.request
        return request.tokens[request.prompt_tokens : request.prompt_tokens + request.accepted]

    @property
    def prompt_tokens(self) -> int:
        """How many tokens the prompt has, without the padding of a source's last page."""
        return self.request.prompt_tokens - self.request.padding

    @property
    def cached_tokens(self) -> int:
        """How many of them were in the cache."""
        return max(0, self.request.cached - self.request.padding)

    @property
    def steps_after(self) -> int | None:
        """How many steps were started for it after its cancel; None if it was not cancelled."""
        if self.steps_at_cancel is None:
            return None
        return self.request.steps - self.steps_at_cancel

    def span(self, segment: Segment) -> Span:
        """Return the span that a step computes for a segment."""
        request = self.request
        tokens = request.tokens[segment.start : segment.start + segment.count]
        if request.in_flight:
            tokens.append(unknown(segment.slot))
        tokens += request.draft if segment.drafted else ()
        made = Span(
            segment.slot,
            segment.start,
            tokens,
            segment.samples,
            request.table.pages,
            request.source,
            drafted=segment.drafted,
        )
        return made if self.image_inputs is None else self.image_inputs.span(made)

    def started(self) -> Started:
        """Tell that the prefill begins."""
        return Started(self.prepared.request_id, self.prompt_tokens, self.cached_tokens)

    def queued(self, position: int) -> list[Output]:
        """Tell the place in the queue, if it has changed."""
        if position == self.position:
            return []
        self.position = position
        return [Queued(self.prepared.request_id, position)]

    def prefilling(self) -> list[Output]:
        """Tell the share of the prompt that is computed, unless it is all of it."""
        done, tokens = self.request.computed, self.request.prompt_tokens
        return [Prefilling(self.prepared.request_id, done / tokens)] if done < tokens else []

    def score(self, scored: ScoredToken) -> None:
        """Take a token's score, which leaves with the token's text."""
        if self.prepared.logprobs is not None:
            self.prepared.logprobs.score(scored)

    def outputs_of(self, pieces: Iterable[Piece]) -> list[Output]:
        """Tell pieces of the reply. The first one carries the number of unsent tokens."""
        return [self._output(piece) for piece in pieces]

    def _output(self, piece: Piece) -> Output:
        request_id, tokens, self.unsent = self.prepared.request_id, self.unsent, 0
        match piece:
            case str():
                logprobs = self.prepared.logprobs.leave(piece) if self.prepared.logprobs is not None else ()
                return Chunk(request_id, piece, tokens, logprobs)
            case Thought():
                return Reasoning(request_id, piece.text, tokens)
            case Call():
                return ToolCallOutput(request_id, piece.name, piece.arguments, tokens)
            case _:
                assert_never(piece)

    def finished(
        self, reason: FinishReason, error: str | None = None, code: ErrorCode = ErrorCode.INTERNAL
    ) -> Finished:
        """Tell the end. `code`: whose fault an error is."""
        return Finished(
            request_id=self.prepared.request_id,
            reason=reason,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            generated_tokens=self.request.generated,
            accepted_tokens=self.request.accepted,
            steps_after=self.steps_after,
            error=error,
            error_code=code,
            written=self.prepared.reply.written,
            stop=self.prepared.reply.stop_string if reason is FinishReason.STOP else None,
        )
