"""How long to wait before the next attempt to connect: doubling, capped, half of it random."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator


def delays(
    *, base_s: float = 0.25, cap_s: float = 15.0, chance: Callable[[], float] = random.random
) -> Iterator[float]:
    """Seconds before each attempt, without an end: each between a half and the whole of `min(cap, base * 2^n)`.

    A thousand clients that lost the same server do not come back in the same moment. `chance` gives 0 to 1.
    """
    whole = base_s
    while True:
        yield whole / 2 + whole / 2 * chance()
        whole = min(cap_s, whole * 2)
