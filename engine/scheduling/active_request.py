"""One request while it is served: how it is admitted, what it asked for, how far it is, and its outputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

from engine.execution.executor import LoadedModel
from engine.execution.sampler import SamplerState
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
from engine.scheduling.scheduler import ScheduledRequest, Segment
from engine.step_layout import Source, Span, salted, unknown
from engine.text.reply_text import (
    Call,
    Piece,
    PreparedRequest,
    Thought,
    request_error,
    sampling_error,
)
from engine.vision.image import keyed
from engine.vision.tower import ImageInputs


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """A request from its submission to its end.

    `room`: the most tokens of source, prompt and reply together. `unsent`: how many tokens no output has counted yet.
    `position`: the last reported place in the queue. `deadline`: when it must have ended, by the core's clock.
    `image_inputs`: its images; None if it has none.
    """

    prepared: PreparedRequest
    request: ScheduledRequest
    sampler_state: SamplerState
    room: int
    position: int | None = None
    unsent: int = 0
    steps_at_cancel: int | None = None
    deadline: float = float("inf")
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
        return self.prepared.reply.logprobs is not None or self.sampler_state.guide is not None

    @property
    def is_long_enough(self) -> bool:
        """Whether the reply may have no more tokens."""
        full = len(self.request.tokens) >= self.room
        return full or self.request.generated >= self.prepared.sampling.max_new_tokens

    @property
    def prompt_tokens(self) -> int:
        """How many tokens the prompt has, without the padding of a source's last page."""
        return self.request.prompt_tokens - self.request.padding

    @property
    def cached_tokens(self) -> int:
        """How many tokens of the prompt were in the cache."""
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
        pages, source = request.table.pages, request.source
        made = Span(segment.slot, segment.start, tokens, segment.samples, pages, source)
        return made if self.image_inputs is None else self.image_inputs.span(made)

    def started(self) -> Started:
        """Return the output that reports the start of the prefill."""
        return Started(self.prepared.request_id, self.prompt_tokens, self.cached_tokens)

    def queued(self, position: int) -> list[Output]:
        """Return the place in the queue as an output, if it has changed."""
        if position == self.position:
            return []
        self.position = position
        return [Queued(self.prepared.request_id, position)]

    def prefilling(self) -> list[Output]:
        """Return the computed share of the prompt as an output, unless it is computed whole."""
        done, tokens = self.request.computed, self.request.prompt_tokens
        return [Prefilling(self.prepared.request_id, done / tokens)] if done < tokens else []

    def outputs_of(self, pieces: Iterable[Piece]) -> list[Output]:
        """Return pieces of the reply as outputs. The first one carries the number of unsent tokens."""
        return [self._output(piece) for piece in pieces]

    def _output(self, piece: Piece) -> Output:
        request_id, tokens, self.unsent = self.prepared.request_id, self.unsent, 0
        match piece:
            case str():
                logprobs = self.prepared.reply.logprobs
                return Chunk(request_id, piece, tokens, () if logprobs is None else logprobs.leave(piece))
            case Thought():
                return Reasoning(request_id, piece.text, tokens)
            case Call():
                return ToolCallOutput(request_id, piece.name, piece.arguments, tokens)
            case _:
                assert_never(piece)

    def finished(
        self, reason: FinishReason, error: str | None = None, code: ErrorCode = ErrorCode.INTERNAL
    ) -> Finished:
        """Return the end as an output. `code`: whose fault an error is."""
        return Finished(
            request_id=self.prepared.request_id,
            reason=reason,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            generated_tokens=self.request.generated,
            steps_after=self.steps_after,
            error=error,
            error_code=code,
            stop=self.prepared.reply.stop_string if reason is FinishReason.STOP else None,
        )


def scheduled_request(request: PreparedRequest, model: LoadedModel, room: int) -> ScheduledRequest:
    """Return a request as the scheduler sees it. The source of a translation fills whole pages before its target."""
    source = Source.of(len(request.source), model.kv.page_size) if request.source else None
    before = [] if source is None else [*request.source, *[0] * (source.reserved - source.length)]
    tokens = model.vision_config.tiling.tokens if model.vision_config is not None else 0
    most = min(room, len(before) + len(request.prompt) + request.sampling.max_new_tokens)
    return ScheduledRequest(
        request.request_id,
        [*before, *keyed(request.prompt, request.shown, tokens)],
        salt=request.cache_salt if source is None else salted(request.cache_salt, request.source),
        client=request.client,
        priority=request.priority,
        shared_tokens=request.shared_tokens,
        images_end=max((one.stop(tokens) for one in request.shown), default=0),
        # Whether a grammar is complete shows only after its last token.
        most=None if request.grammar else most,
        source=source,
    )


def room_for(request: PreparedRequest, model: LoadedModel) -> int:
    """Return how many tokens a request may have, its source and its reply included."""
    if not request.source or model.translation_config is None:
        return model.context_tokens
    before = Source.of(len(request.source), model.kv.page_size).reserved
    return min(model.context_tokens, before + model.translation_config.target_tokens)


def refusal(active: ActiveRequest, model: LoadedModel) -> Finished | None:
    """Return the end of a request that can't be served; None if it can."""
    request, vocabulary = active.prepared, model.vocabulary
    error = _of_source(request, model) or request_error(
        request, context_tokens=active.room - active.request.first, vocabulary=vocabulary
    )
    if error:
        return active.finished(FinishReason.ERROR, error)
    if request.grammar is not None and active.sampler_state.guide is None:
        return active.finished(FinishReason.ERROR, "This model's replies can't be held to a format.")
    if error := sampling_error(request.sampling, vocabulary=vocabulary):
        return active.finished(FinishReason.ERROR, error, ErrorCode.BAD_PARAMS)
    return None


def _of_source(request: PreparedRequest, model: LoadedModel) -> str | None:
    """Return what is wrong with a request's source; None if nothing is."""
    if model.translation_config is None:
        return "This model does not translate." if request.source else None
    most, below = model.translation_config.languages.source_tokens, model.translation_config.source_vocabulary
    if not request.source:
        return "There is nothing to translate."
    if len(request.source) > most:
        return f"The text to translate has {len(request.source)} tokens; the model reads {most} at once."
    if min(request.source) < 0 or max(request.source) >= below:
        return f"The text to translate has a token id outside of the vocabulary of {below}."
    return None
