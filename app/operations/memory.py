"""Gives free memory back to the system. Where the C library can't (musl, macOS), nothing happens.

glibc returns only what is free at the end of its heap: one small string there keeps all the megabytes below it, which a
burst of long answers of the store took for a moment.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable

GIVE_BACK_S = 20.0

_trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""malloc_trim(3): it takes some milliseconds for each 100 MB, and lets other threads run meanwhile."""


def give_back() -> None:
    """Return whole pages that are free."""
    if _trim is not None:
        _trim(0)


async def keep_giving_back() -> None:
    """Do so now and then, until cancelled."""
    while True:
        await asyncio.sleep(GIVE_BACK_S)
        await asyncio.to_thread(give_back)
