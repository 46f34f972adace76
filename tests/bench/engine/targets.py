"""The engine's targets on two cores, in one place. Nothing is measured here."""

from __future__ import annotations

from tests.bench.engine.registry import Name
from tests.bench.engine.report import Target

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
"""The longest gap of running streams while a long prompt is computed, in milliseconds."""

NEXT_TURN = Target(15.0)
"""Time to the first token on a long history, first turn divided by next turn."""

STEPS_AFTER = Target(1.0, at_most=True)
"""Steps after a cancel was read; in a prefill, chunks."""

PREFILL_STEP_MS = Target(100.0, at_most=True)
"""The longest step that a cancel may have to wait for, in milliseconds."""

BOUND = Target(0.5)
"""(matrix products + keys and values at measured bandwidth) / step time."""

GROWTH_PERCENT = Target(2.0, at_most=True)
"""Growth of resident memory once it has settled, in percent."""

OVER_SOCKETS = {"tiny": Target(0.75), "small": Target(0.9)}
"""Tokens/s over sockets, as a share of the engine's alone."""
