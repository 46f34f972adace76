"""espeak-ng as a `Voice`: clauses as sound, with the exact times of their words. It stays a program of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from speech.errors import VoiceFailed
from speech.interfaces import SpokenClause
from speech.voice.espeak import plain, speaking

if TYPE_CHECKING:
    from speech.voice.alignment import Word

_LOUD, _QUIET = 100, 60
"""The program's usual loudness, and one that changes every audible sample."""


class TimedEspeak:
    """The voices of the system's espeak-ng."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names`: by their languages, the default first."""
        self._names = tuple(names)

    @property
    def names(self) -> tuple[str, ...]:
        """The voices that it has."""
        return self._names

    async def speak(self, clause: str, *, voice: str) -> SpokenClause:
        """Return a clause as sound. Raises VoiceFailed."""
        from speech.voice.alignment import BITS, words_of  # noqa: PLC0415 - numpy, which the gateway has no other use for

        words = words_of(clause)
        spans = [plain(clause[word.off : word.end]) for word in words]
        failed: list[Exception] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                renderings_raw = [
                    tasks.create_task(_spoken(_commanded(spans, bit), voice)) for bit in (None, *range(BITS))
                ]
        except* VoiceFailed as voices:
            failed += voices.exceptions
        if failed:
            raise VoiceFailed(str(failed[0]))
        return await asyncio.to_thread(_aligned, words, [task.result() for task in renderings_raw])


def _aligned(words: Sequence[Word], renderings_raw: Sequence[tuple[int, bytes]]) -> SpokenClause:
    import numpy as np  # noqa: PLC0415 - as above

    from speech.voice.alignment import marks_of  # noqa: PLC0415 - as above

    rate, pcm = renderings_raw[0]
    whole, *renderings = (np.frombuffer(one, "<i2") for _, one in renderings_raw)
    return SpokenClause(rate, pcm, marks_of(words, rate, whole, renderings))


def _commanded(words: Sequence[str], bit: int | None) -> str:
    """Return the words with loudness commands (espeak-ng's docs/markup.md), at the same places in all renderings."""
    from speech.voice.alignment import quieter  # noqa: PLC0415 - as above

    loudness = (_LOUD if bit is None or not quieter(place, bit) else _QUIET for place in range(len(words)))
    return " ".join(f"\x01{loud}A{word}" for loud, word in zip(loudness, words, strict=True))


async def _spoken(text: str, voice: str) -> tuple[int, bytes]:
    async with speaking(text, voice=voice, speed=1.0, has_commands=True) as voiced:
        return voiced.rate, b"".join([part async for part in voiced.parts()])
