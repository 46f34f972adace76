"""Divides long texts into slices, and lets other tasks run between them."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import AsyncIterator

SLICE_CHARS = 256
"""Characters of a slice: about a millisecond's work with common lists, so running replies are not delayed."""


async def slices(text: str) -> AsyncIterator[str]:
    """Yield a text slice by slice; other tasks run between them."""
    for start in range(0, len(text), SLICE_CHARS):
        if start:
            await sleep(0)
        yield text[start : start + SLICE_CHARS]
