"""The interface of voices for whole texts, for the endpoints: the program espeak-ng, or a model clause by clause."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from speech.voice import espeak


class AudioStream(Protocol):
    """A text that is being spoken: 16-bit PCM with one channel."""

    @property
    def rate(self) -> int:
        """Samples per second."""
        ...

    def parts(self) -> AsyncGenerator[bytes]:
        """Yield whole samples as they are made; close it. Raises VoiceFailed."""
        ...


class Synthesizer(Protocol):
    """Speaks texts."""

    @property
    def name(self) -> str:
        """Its name for clients."""
        ...

    @property
    def voices(self) -> Sequence[str]:
        """The names of its voices, the default first."""
        ...

    @property
    def examples(self) -> str:
        """Some of them, for an error."""
        ...

    @property
    def speeds(self) -> tuple[float, float]:
        """The slowest and the fastest speed, as multiples of the usual one."""
        ...

    def speaking(
        self, text: str, *, voice: str, speed: float, owner: str
    ) -> AbstractAsyncContextManager[AudioStream]:
        """Speak a text while the context lasts. Owners take turns. Raises VoiceFailed."""
        ...


class EspeakSynthesizer:
    """The program of the system. Each text has a process of its own."""

    name = espeak.PROGRAM
    speeds = (espeak.SLOWEST, espeak.FASTEST)

    def __init__(self, voices: Sequence[str]) -> None:
        """`voices`: the ones that were found, the default first."""
        self.voices = voices

    @property
    def examples(self) -> str:
        """The English ones."""
        english = ", ".join(voice for voice in self.voices if voice.startswith("en-"))
        return f"{english}, and of other languages de, fr and so on"

    def speaking(
        self,
        text: str,
        *,
        voice: str,
        speed: float,
        owner: str,  # noqa: ARG002 - no text waits for another
    ) -> AbstractAsyncContextManager[AudioStream]:
        """Speak a text while the context lasts. Raises VoiceFailed."""
        return espeak.speaking(text, voice=voice, speed=speed)
