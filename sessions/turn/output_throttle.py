"""Releases a reply's reasoning and text evenly, at the pace that its reader asked for.

The engine is not slowed down: its output waits here, and a cancel drops it. So the history has only what was released.
"""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from time import monotonic

import msgspec

from sessions.filters.filtered_reply import ReleasedText

SLICE_S = 0.1
"""A slice is about so many seconds of reading."""
_JOINER = "\u200d"
_COMBINING = frozenset({"Mn", "Me", "Mc", "Cf"})
_TONES = range(0x1F3FB, 0x1F400)
_FLAGS = range(0x1F1E6, 0x1F200)


class OutputThrottle:
    """Releases a reply in slices, each when it is due. `stopping`: ends all waits once it is set."""

    def __init__(
        self,
        *,
        chars_per_s: float,
        stopping: asyncio.Event,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`clock`: in seconds."""
        self._chars_per_s = chars_per_s
        self._stopping = stopping
        self._clock = clock
        self._due = clock()

    async def release(
        self, add_text: Callable[[ReleasedText], Awaitable[None]], released: ReleasedText
    ) -> None:
        """Return once `add_text` got all of it, or the reply has to stop."""
        for part in parts_of(released, max(1, round(self._chars_per_s * SLICE_S))):
            await self._wait()
            if self._stopping.is_set():
                return  # the rest, which may be long, is not released
            self._due = max(self._due, self._clock()) + len(part.text) / self._chars_per_s
            await add_text(part)

    async def _wait(self) -> None:
        if (delay := self._due - self._clock()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stopping.wait()


def parts_of(released: ReleasedText, chars: int) -> Iterator[ReleasedText]:
    """Yield text in parts of about so many characters, without splitting one. Its tokens are spread over them."""
    text, start, sent_tokens = released.text, 0, 0
    while start < len(text):
        end = _grapheme_end(text, start + chars)
        tokens = released.tokens * end // len(text)
        logprobs = released.logprobs if start == 0 else ()
        yield msgspec.structs.replace(
            released, text=text[start:end], tokens=tokens - sent_tokens, logprobs=logprobs
        )
        start, sent_tokens = end, tokens


def _grapheme_end(text: str, end: int) -> int:
    """Return the next end of a user-perceived character from `end` on."""
    while end < len(text) and (text[end - 1] == _JOINER or _is_combining(text[end])):
        end += 1
    return min(end, len(text))


def _is_combining(char: str) -> bool:
    return unicodedata.category(char) in _COMBINING or ord(char) in _TONES or ord(char) in _FLAGS
