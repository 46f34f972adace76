"""Returns free memory to the system, and runs the garbage collector when there may be a lot to collect.

By itself glibc returns only the free memory at the end of its heap: one small string there keeps all the megabytes below it, say
after a burst of long answers from the store. `malloc_trim` returns all free pages; C libraries without it (musl, macOS) return
nothing. A small string still keeps its own page. So everything unused, however small, is released first.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from collections.abc import Callable

GIVE_BACK_S = 20.0
YOUNG = 1_000
"""After this many new objects, the young generation is collected."""
MIDDLE = 10
"""After this many collections of the young generation, the next one is collected: that takes some milliseconds."""
NEVER = 1_000_000

_trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""malloc_trim(3) takes some milliseconds for each 100 MB, during which other threads run."""

_M_MMAP_THRESHOLD = -3
LARGE_BYTES = 512 * 1024

_clear_caches: Callable[[], None] | None = getattr(sys, "_clear_internal_caches", None) or getattr(
    sys, "_clear_type_cache", None
)
"""`_clear_type_cache` is the name before Python 3.13; later versions warn about it."""


def set_up() -> None:
    """Configure the collector and the allocator. Call it once, before the event loop runs.

    The oldest generation is left to `keep_giving_back`: Python collects it whenever a quarter of it is new. When thousands connect
    at once, that happens again and again. Each time takes a tenth of a second in which nobody gets any text.

    The C library is to get blocks of half a megabyte and more from the system, and give each back as soon as it is free. glibc
    does so at first, but raises the limit to the largest block that was freed (mallopt(3), M_MMAP_THRESHOLD). Later blocks of
    that size then come from the heap: after three long bodies at once, it stays twenty times as large as one of them. As at
    first, free memory at the heap's end is given back from 128 KiB on.
    """
    gc.freeze()  # imported modules stay for good
    gc.set_threshold(YOUNG, MIDDLE, NEVER)
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, LARGE_BYTES)


def forget_names() -> None:
    """Clear Python's cache of attributes by class and name. It fills up again within a millisecond.

    It is keyed by a name's address. C code makes a new string to look up a name, as msgspec does for each text with a pattern.
    The cache then holds up to 4,096 copies of one name, each in a page that would otherwise be free.
    """
    if _clear_caches is not None:
        _clear_caches()


def give_back() -> None:
    """Return free pages to the system."""
    if _trim is not None:
        _trim(0)


async def keep_giving_back(forget: Callable[[], None]) -> None:
    """Collect garbage and return free pages from time to time, until cancelled. `forget` first releases what is not needed."""
    while True:
        await asyncio.sleep(GIVE_BACK_S)
        forget()
        if gc.get_count()[2]:  # the oldest generation has grown enough to hold garbage
            gc.collect()
        forget_names()
        await asyncio.to_thread(give_back)
