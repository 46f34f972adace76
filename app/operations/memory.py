"""Returns free memory to the system, and runs the garbage collector when there may be much to collect.

glibc returns only free memory at the end of its heap. One small string there keeps all the megabytes below it, after a burst of
long answers from the store. Where the C library can't do it (musl, macOS), nothing is returned.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Callable

GIVE_BACK_S = 20.0
YOUNG = 1_000
"""After so many new objects, the young generation is collected."""
MIDDLE = 10
"""After so many of those, the next generation is collected: some milliseconds."""
NEVER = 1_000_000

_trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""malloc_trim(3): some milliseconds for each 100 MB, during which other threads run."""


def collect_seldom() -> None:
    """Leave the oldest generation to `keep_giving_back`. Python collects it whenever a quarter of it is new.

    When thousands connect at once that is again and again, and each takes a tenth of a second in which nobody gets any text.
    """
    gc.freeze()  # imported modules stay for good
    gc.set_threshold(YOUNG, MIDDLE, NEVER)


def collect() -> None:
    """Collect the oldest generation if it has grown so much that some of it may be garbage."""
    if gc.get_count()[2]:
        gc.collect()


def give_back() -> None:
    """Return free pages to the system."""
    if _trim is not None:
        _trim(0)


async def keep_giving_back(forget: Callable[[], None]) -> None:
    """Do both from time to time, until cancelled. `forget`: is called before, to let go of what is no longer needed."""
    while True:
        await asyncio.sleep(GIVE_BACK_S)
        forget()
        collect()
        await asyncio.to_thread(give_back)
