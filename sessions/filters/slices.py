"""Long texts are read in slices, with others' work between them."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import AsyncIterator

SLICE_CHARS = 256
"""What is read at once, for the sake of the replies under way: a millisecond's work with common lists."""


async def slices(text: str) -> AsyncIterator[str]:
    """A text, slice by slice; others work before each but the first."""
    for start in range(0, len(text), SLICE_CHARS):
        if start:
            await sleep(0)
        yield text[start : start + SLICE_CHARS]
