"""Waiting times between attempts to connect: doubling, capped, half of them random."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator


def delays(
    *, base_s: float = 0.25, cap_s: float = 15.0, chance: Callable[[], float] = random.random
) -> Iterator[float]:
    """Yield the seconds before each attempt, without end: between half and all of `min(cap, base * 2^n)`.

    So a thousand clients that lost the same server do not reconnect at the same moment. `chance` returns 0 to 1.
    """
    whole = base_s
    while True:
        yield whole / 2 + whole / 2 * chance()
        whole = min(cap_s, whole * 2)
