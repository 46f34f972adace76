"""The sound of a session, and what is understood of it: words go into the source once two hypotheses agree on them."""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress

from connections.line.connection import Connection
from connections.realtime.problems import Invalid
from connections.spoken.conduct import Agreement
from connections.spoken.desk import SpokenDesk
from connections.wire.frames import Error
from speech.contract import Heard, Hearing, Listening, Partly, Paused, Started, Stopped
from speech.errors import RecognizerLost, TooFarBehind
from speech.sound.wav import RAW_RATE, Coding

EARLY_BYTES = 2 * RAW_RATE * 5
"""Of sound that comes before the recognizer listens: five seconds."""
LAST_WORDS_S = 10.0
"""So long the end of a session waits for what was said last."""
LISTENING = Listening(coding=Coding.PCM16, rate=RAW_RATE)

_LOST = "The recognizer was lost, and is started again. What was being said then is lost with it."


class Transcript:
    """Makes a text of what is heard, which is never revised. What was said between two silences is a line."""

    def __init__(self) -> None:
        self._agreement = Agreement()
        self._told = 0

    def take(self, heard: Heard) -> str:
        """Return what is added."""
        match heard:
            case Partly(text=text) | Paused(text=text):
                agreed = (self._agreement.take(text) or "").split()
                new = agreed[self._told :]
                self._told = max(self._told, len(agreed))
                return "".join(f"{word} " for word in new)
            case Stopped(text=text):
                rest, is_line = " ".join(text.split()[self._told :]), bool(self._told or text.strip())
                self._begin()
                return f"{rest}\n" if is_line else ""
            case Started():
                self._begin()
        return ""

    def _begin(self) -> None:
        self._agreement, self._told = Agreement(), 0


class Microphone:
    """What one client says. `said`: takes more of the source."""

    def __init__(self, desk: SpokenDesk, connection: Connection, said: Callable[[str], None]) -> None:
        self._desk = desk
        self._connection = connection
        self._said = said
        self._early = bytearray()
        self._hearing: Hearing | None = None
        self._is_behind = self._is_ending = False
        self._ended = asyncio.Event()

    def feed(self, audio: str) -> None:
        """Take more sound. Never waits. Raises Invalid where it is none."""
        try:
            samples = b64decode(audio, validate=True)
        except (binascii.Error, ValueError):
            raise Invalid("must be base64.", field="audio") from None
        if len(samples) % 2:
            raise Invalid("must be PCM16, which has two bytes for each sample.", field="audio")
        try:
            self._take(samples)
            self._is_behind = False
        except TooFarBehind as why:
            if not self._is_behind:
                self._is_behind = True
                self._connection.push(Error(code="rate_limited", message=str(why)))

    def _take(self, samples: bytes) -> None:
        """Raises TooFarBehind."""
        if self._hearing is not None:
            self._hearing.feed(samples)
        elif len(self._early) + len(samples) > EARLY_BYTES:
            raise TooFarBehind("Sound came faster than it is listened to; some of it was dropped.")
        else:
            self._early += samples

    async def run(self) -> None:
        """Listen for as long as the connection lasts. Raises Overloaded."""
        with self._desk.place(self._connection.caller.subject):
            while not self._ended.is_set():
                with suppress(RecognizerLost):
                    await self._hear()
                    return
                self._hearing = None
                if self._is_ending:
                    self._ended.set()
                self._connection.push(Error(code="speech_unavailable", message=_LOST))

    async def _hear(self) -> None:
        """Raises RecognizerLost."""
        transcript = Transcript()
        async with self._desk.ear.listen(LISTENING, owner=str(self._connection.owner)) as hearing:
            self._hearing = hearing
            hearing.feed(bytes(self._early))
            self._early.clear()
            if self._is_ending:
                hearing.commit()
            async for heard in hearing.events():
                if text := transcript.take(heard):
                    self._said(text)
                if self._is_ending and isinstance(heard, Stopped):
                    self._ended.set()
                    return

    async def end(self) -> None:
        """Nothing more is said: return once what was is understood."""
        self._is_ending = True
        if self._hearing is not None:
            self._hearing.commit()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._ended.wait()
