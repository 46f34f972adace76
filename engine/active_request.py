"""One request while it is served: what it asked for, how far it is, and what it tells.

Knows neither the others nor the model.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.messages import Chunk, Finished, FinishReason, Output, Started
from engine.prepared import PreparedRequest
from engine.scheduler import Segment, Sequence
from engine.slot_batch import Span


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """A request from its submission to its end. `unsent` counts the tokens whose text has not left yet."""

    request: PreparedRequest
    sequence: Sequence
    last_token: int = 0
    unsent: int = 0
    steps_at_cancel: int | None = None

    @property
    def steps_after(self) -> int | None:
        """How many steps were started for it after its cancel; None where nobody cancelled it."""
        if self.steps_at_cancel is None:
            return None
        return self.sequence.steps - self.steps_at_cancel

    def span(self, segment: Segment) -> Span:
        """Return the tokens that a segment stands for."""
        if self.sequence.prefilled:
            return Span(segment.slot, segment.start, (self.last_token,), samples=True)
        tokens = self.request.prompt[segment.start : segment.start + segment.count]
        return Span(segment.slot, segment.start, tokens, segment.samples)

    def started(self) -> Started:
        """Tell that the prefill begins."""
        return Started(self.request.request_id, self.sequence.prompt_tokens)

    def chunk(self, text: str) -> list[Output]:
        """Tell text, if there is any, with the tokens behind it."""
        if not text:
            return []
        tokens, self.unsent = self.unsent, 0
        return [Chunk(self.request.request_id, text, tokens)]

    def finished(self, reason: FinishReason, error: str | None = None) -> Finished:
        """Tell the end."""
        return Finished(
            request_id=self.request.request_id,
            reason=reason,
            prompt_tokens=self.sequence.prompt_tokens,
            cached_tokens=0,
            generated_tokens=self.sequence.generated,
            steps_after=self.steps_after,
            error=error,
        )
