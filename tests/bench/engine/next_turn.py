"""Measures the cost of a conversation's second turn compared with its first, on our core."""

from __future__ import annotations

import time
from collections.abc import Sequence

from engine.messages import Chunk, Finished, Started
from tests.bench.engine.contender import ContenderFailed, GenerationRequest, prompt
from tests.bench.engine.midstream_contender import MidstreamEngine
from tests.bench.engine.records import NextTurn, TurnTimes


def measure(engine: MidstreamEngine, job: NextTurn) -> TurnTimes:
    """Run both turns, each to its end. Raises ContenderFailed."""
    vocabulary = engine.model.vocabulary
    conversation = f"conversation-{job.salt}"
    history = prompt(job.history_tokens, vocabulary, conversation)
    first = _Turn(engine, GenerationRequest(f"{conversation}-1", history, job.reply_tokens, conversation))
    added = prompt(job.added_tokens, vocabulary, f"{conversation}-added")
    longer = [*history, *first.tokens, *added]
    following = _Turn(engine, GenerationRequest(f"{conversation}-2", longer, job.reply_tokens, conversation))
    return TurnTimes(
        first_s=first.first_s,
        next_s=following.first_s,
        prompt_tokens=len(longer),
        cached_tokens=following.cached_tokens,
    )


class _Turn:
    """One turn, run alone. `first_s`: until its first text; `tokens`: of the reply; `cached_tokens`: of the prompt."""

    def __init__(self, engine: MidstreamEngine, request: GenerationRequest) -> None:
        self.cached_tokens = 0
        first_s: float | None = None
        started = time.perf_counter()
        reply = engine.ask(request)
        while engine.core.busy:
            for output in engine.core.step():
                match output:
                    case Started():
                        self.cached_tokens = output.cached_tokens
                    case Chunk() if first_s is None:
                        first_s = time.perf_counter() - started
                    case Finished(error=str(error)):
                        raise ContenderFailed(error)
        if first_s is None:
            raise ContenderFailed("a turn had no text")
        self.first_s = first_s
        self.tokens: Sequence[int] = reply.tokens
