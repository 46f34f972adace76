"""Measures the cost of a cancel on our core: the steps after it, and the longest step that it may wait for."""

from __future__ import annotations

import time
from random import Random

from engine.messages import Finished
from tests.bench.engine.contender import ContenderFailed, GenerationRequest, prompt
from tests.bench.engine.midstream_contender import MidstreamEngine
from tests.bench.engine.records import CancelFacts, Cancels

MOST_STEPS_BETWEEN = 4
"""The most steps between two cancels of running replies."""


def measure(engine: MidstreamEngine, job: Cancels) -> CancelFacts:
    """Cancel running replies at random moments, then long prompts within their prefill. Raises ContenderFailed."""
    return CancelFacts(
        decode_steps=_decoding(engine, job),
        prefill_steps=max(_prefilling(engine, job, number) for number in range(job.prefills)),
        longest_prefill_step_s=max(_longest_step(engine, job, number) for number in range(job.prefills)),
    )


def _decoding(engine: MidstreamEngine, job: Cancels) -> int:
    """Return the most steps that a running reply took after its cancel."""
    draw = Random(0)
    names = [f"decode-{number}" for number in range(job.streams)]
    for name in names:
        _submit(engine, name, job.prompt_tokens)
    return max(_cancel_after(engine, name, draw.randint(1, MOST_STEPS_BETWEEN)) for name in names)


def _prefilling(engine: MidstreamEngine, job: Cancels, number: int) -> int:
    """Cancel a long prompt after its first chunks; return the steps it took after that."""
    name = f"prefill-{number}"
    _submit(engine, name, job.long_tokens)
    return _cancel_after(engine, name, 1 + number)


def _longest_step(engine: MidstreamEngine, job: Cancels, number: int) -> float:
    """Return the longest step, in seconds, of a long prompt's whole prefill."""
    name = f"whole-{number}"
    _submit(engine, name, job.long_tokens)
    longest, started = 0.0, False
    while not started:
        before = time.perf_counter()
        started = bool(engine.wait())
        longest = max(longest, time.perf_counter() - before)
    _cancel_after(engine, name, 0)
    return longest


def _submit(engine: MidstreamEngine, name: str, prompt_tokens: int) -> None:
    """Ask for a reply that does not end by itself."""
    room = engine.model.context_tokens - prompt_tokens
    engine.submit([GenerationRequest(name, prompt(prompt_tokens, engine.model.vocabulary, name), room, name)])


def _cancel_after(engine: MidstreamEngine, name: str, steps: int) -> int:
    """Cancel a request some steps from now; return the steps that it took after that. Raises ContenderFailed."""
    for _ in range(steps):
        engine.core.step()
    engine.core.cancel(name)
    while engine.core.busy:
        for output in engine.core.step():
            if isinstance(output, Finished) and output.request_id == name:
                return output.steps_after or 0
    raise ContenderFailed("a cancelled request had no end")
