"""Gives free memory back to the system, and looks for garbage when there may be much.

glibc returns only what is free at the end of its heap: one small string there keeps all the megabytes below it, which a
burst of long answers of the store took for a moment. Where the C library can't (musl, macOS), nothing is given back.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Callable

GIVE_BACK_S = 20.0
YOUNG = 1_000
"""Objects: so many more than before, and the collector looks through those that are new."""
MIDDLE = 10
"""So often, and it looks through ten times as many: some milliseconds."""
NEVER = 1_000_000

_trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""malloc_trim(3): it takes some milliseconds for each 100 MB, and lets other threads run meanwhile."""


def collect_seldom() -> None:
    """Leave what lives for long to `keep_giving_back`. Python looks through all of it whenever a quarter is new.

    When thousands connect at once that is again and again, for a tenth of a second in which nobody gets any text.
    """
    gc.freeze()  # what was imported
    gc.set_threshold(YOUNG, MIDDLE, NEVER)


def collect() -> None:
    """Look through all, if so much came that lives for long that some of it may be garbage by now."""
    if gc.get_count()[2]:
        gc.collect()


def give_back() -> None:
    """Return whole pages that are free."""
    if _trim is not None:
        _trim(0)


async def keep_giving_back() -> None:
    """Do so now and then, until cancelled."""
    while True:
        await asyncio.sleep(GIVE_BACK_S)
        collect()
        await asyncio.to_thread(give_back)
