"""Lets a reply's thoughts and text out evenly, at the pace that its reader asked for, however fast they are made.

The engine is not slowed down: what it has made waits here, and a cancel drops what waits. So the history has what was let out.
"""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from time import monotonic

import msgspec

from sessions.filters.filtered_reply import Released

SLICE_S = 0.1
"""What is let out at once is read in about so long."""
_JOINER = "\u200d"
_CLINGING = frozenset({"Mn", "Me", "Mc", "Cf"})
_TONES = range(0x1F3FB, 0x1F400)
_FLAGS = range(0x1F1E6, 0x1F200)


class Pacer:
    """Hands a reply on in slices, each when it is due. `stopping`: nothing is waited for once it is set."""

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

    async def tell(self, hear: Callable[[Released], Awaitable[None]], released: Released) -> None:
        """Return once `hear` was told all of it, or the reply is to stop."""
        for part in parts_of(released, max(1, round(self._chars_per_s * SLICE_S))):
            await self._wait()
            if self._stopping.is_set():
                return  # nobody is told the rest, of which there may be much
            self._due = max(self._due, self._clock()) + len(part.text) / self._chars_per_s
            await hear(part)

    async def _wait(self) -> None:
        if (delay := self._due - self._clock()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stopping.wait()


def parts_of(released: Released, chars: int) -> Iterator[Released]:
    """Give text in parts of about so many characters, none of which is torn. Its tokens are spread over them."""
    text, start, told = released.text, 0, 0
    while start < len(text):
        end = _whole(text, start + chars)
        tokens = released.tokens * end // len(text)
        logprobs = released.logprobs if start == 0 else ()
        yield msgspec.structs.replace(released, text=text[start:end], tokens=tokens - told, logprobs=logprobs)
        start, told = end, tokens


def _whole(text: str, end: int) -> int:
    """Return the next place from `end` on where one character as people see it does not go on in the next code point."""
    while end < len(text) and (text[end - 1] == _JOINER or _clings(text[end])):
        end += 1
    return min(end, len(text))


def _clings(char: str) -> bool:
    return unicodedata.category(char) in _CLINGING or ord(char) in _TONES or ord(char) in _FLAGS
