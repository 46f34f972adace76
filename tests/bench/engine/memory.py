"""Measures whether our core's memory grows over many turns, some of which are cancelled at random moments."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

from engine.messages import Finished, FinishReason
from tests.bench.engine.contender import GenerationRequest, prompt
from tests.bench.engine.midstream_contender import MidstreamEngine
from tests.bench.engine.records import Memory, MemoryFacts

CONVERSATIONS = 500
CANCELLED = 0.3
PROMPT_TOKENS = (8, 64)
NEW_TOKENS = (4, 32)


def measure(engine: MidstreamEngine, job: Memory) -> MemoryFacts:
    """Run the turns, `at_once` at any moment. Raises ContenderFailed, or OSError if the system does not report memory."""
    churn = _Churn(engine, job.at_once)
    churn.run_until(job.settled)
    settled = _resident_bytes()
    churn.run_until(job.turns)
    return MemoryFacts(settled_bytes=settled, end_bytes=_resident_bytes(), cancelled=churn.cancelled)


class _Churn:
    """A fixed number of turns at once: a new one for each that ended."""

    def __init__(self, engine: MidstreamEngine, at_once: int) -> None:
        self._engine = engine
        self._at_once = at_once
        self._draw = Random(0)
        self._submitted = 0
        self._cancel_at: dict[str, int] = {}
        """Remaining steps of the turns that will be cancelled."""
        self.ended = 0
        self.cancelled = 0

    def run_until(self, turns: int) -> None:
        """Run until so many turns have ended, counted from the beginning."""
        while self.ended < turns:
            while self._submitted - self.ended < self._at_once:
                self._ask()
            self._cancel_those_due()
            for output in self._engine.core.step():
                if isinstance(output, Finished):
                    self.ended += 1
                    self.cancelled += output.reason is FinishReason.CANCELLED
                    self._cancel_at.pop(output.request_id, None)

    def _ask(self) -> None:
        name = f"turn-{self._submitted}"
        conversation = f"conversation-{self._draw.randrange(CONVERSATIONS)}"
        length = self._draw.randint(*PROMPT_TOKENS)
        # The same conversation begins the same way each time: what the engine kept of it is used again.
        tokens = prompt(length, self._engine.model.vocabulary, conversation)
        new_tokens = self._draw.randint(*NEW_TOKENS)
        if self._draw.random() < CANCELLED:
            self._cancel_at[name] = self._draw.randint(0, new_tokens)
        self._engine.submit([GenerationRequest(name, tokens, new_tokens, conversation)])
        self._submitted += 1

    def _cancel_those_due(self) -> None:
        for name, steps in list(self._cancel_at.items()):
            if steps == 0:
                self._engine.cancel(name)
                del self._cancel_at[name]
            else:
                self._cancel_at[name] = steps - 1


def _resident_bytes() -> int:
    """Return this process's resident memory, as Linux reports it."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
