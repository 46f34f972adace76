"""Requests that write on beside whatever a test does, token for token; every second one is sampled."""

from __future__ import annotations

from collections.abc import Sequence

from engine.messages import Chunk, Output
from engine.scheduling.core import EngineCore
from tests.engine.families import WINDOW
from tests.engine.faulty_requests import POISON
from tests.engine.tiny_models import greedy, prepared_request, prompt, tokens_of

NAMES = [f"bystander {n}" for n in range(8)]
PLACES = 12
"""Requests at once: enough for all bystanders and some others."""
ROOM = 16 * WINDOW
"""Tokens of KV memory: enough for all, so that nobody has to wait."""


def start(core: EngineCore) -> list[Output]:
    """Step until all bystanders have begun to write."""
    for n, name in enumerate(NAMES):
        how = greedy(max_new_tokens=24 + n, do_sample=n % 2 == 1, temperature=0.8, top_p=0.95, seed=n)
        tokens = [token for token in prompt(5 + 17 * n % 60, salt=n) if token != POISON]
        core.submit(prepared_request(name, tokens, how, client=str(n)))
    outputs: list[Output] = []
    while len({output.request_id for output in outputs if isinstance(output, Chunk)}) < len(NAMES):
        outputs += core.step()
    return outputs


def written(outputs: Sequence[Output]) -> dict[str, list[int]]:
    return {name: tokens_of(outputs, name) for name in NAMES}
