"""One request while it is served: what it asked for, how far it is, and what it tells.

Knows neither the others nor the model.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.messages import Chunk, Finished, FinishReason, Output, Prefilling, Queued, Started
from engine.sampling.sampler import Chooser
from engine.scheduling.scheduler import Request
from engine.text.prepared import PreparedRequest
from engine.text.reply_logprobs import Scored


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """A request from its submission to its end.

    `unsent` counts the tokens whose text has not left yet; `position` is the place in the queue that was told last.
    """

    prepared: PreparedRequest
    request: Request
    chooser: Chooser
    position: int | None = None
    unsent: int = 0
    steps_at_cancel: int | None = None

    @property
    def waits(self) -> bool:
        """Whether its next token can be chosen only once the last one is known here."""
        return self.prepared.logprobs is not None

    @property
    def steps_after(self) -> int | None:
        """How many steps were started for it after its cancel; None where nobody cancelled it."""
        if self.steps_at_cancel is None:
            return None
        return self.request.steps - self.steps_at_cancel

    def started(self) -> Started:
        """Tell that the prefill begins."""
        return Started(self.prepared.request_id, self.request.prompt_tokens, self.request.cached)

    def queued(self, position: int) -> list[Output]:
        """Tell the place in the queue, if it is another than before."""
        if position == self.position:
            return []
        self.position = position
        return [Queued(self.prepared.request_id, position)]

    def prefilling(self) -> list[Output]:
        """Tell how much of the prompt is computed, where some is left to compute."""
        done, tokens = self.request.computed, self.request.prompt_tokens
        return [Prefilling(self.prepared.request_id, done / tokens)] if done < tokens else []

    def score(self, scored: Scored) -> None:
        """Take a token's score: it leaves with the token's text."""
        if self.prepared.logprobs is not None:
            self.prepared.logprobs.score(scored)

    def chunk(self, text: str) -> list[Output]:
        """Tell text, if there is any, with the tokens behind it."""
        if not text:
            return []
        tokens, self.unsent = self.unsent, 0
        logprobs = self.prepared.logprobs.leave(text) if self.prepared.logprobs is not None else ()
        return [Chunk(self.prepared.request_id, text, tokens, logprobs)]

    def finished(self, reason: FinishReason, error: str | None = None) -> Finished:
        """Tell the end."""
        return Finished(
            request_id=self.prepared.request_id,
            reason=reason,
            prompt_tokens=self.request.prompt_tokens,
            cached_tokens=self.request.cached,
            generated_tokens=self.request.generated,
            steps_after=self.steps_after,
            error=error,
        )
