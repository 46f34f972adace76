"""What is asked of the engine on two cores, in one place. Nothing here is measured."""

from __future__ import annotations

from tests.bench.engine.findings import Target
from tests.bench.engine.roster import Name

AGAINST = {
    "tiny": {Name.BATCHING: Target(3.0), Name.THREADS: Target(10.0)},
    "small": {Name.BATCHING: Target(2.0), Name.THREADS: Target(8.0)},
}
"""Tokens/s at the fullest level, as a multiple of a peer's."""

FULLEST = 32

ALONE = {"tiny": Target(1.8), "small": Target(1.7)}
"""Tokens/s of one stream, as a multiple of the better peer's; in bfloat16."""

STEADY = Target(1.5, at_most=True)
"""p99 / p50 of the gaps between tokens, with no arrivals."""

PREFILL_GAP_MS = {"tiny": Target(150.0, at_most=True)}
"""The longest gap of running streams while a long prompt is computed."""

NEXT_TURN = Target(15.0)
"""How many times sooner the first token comes on a long history in the next turn than in its first one."""

STEPS_AFTER = Target(1.0, at_most=True)
"""Steps after a cancel was read; in a prefill, chunks."""

PREFILL_STEP_MS = Target(100.0, at_most=True)
"""The longest step that a cancel may have to wait for."""

BOUND = Target(0.5)
"""(matrix products + keys and values at measured bandwidth) / step time."""

GROWTH_PERCENT = Target(2.0, at_most=True)
"""Of resident memory, once it has settled."""

OVER_SOCKETS = {"tiny": Target(0.75), "small": Target(0.9)}
"""Tokens/s over sockets, as a share of the engine's alone."""
