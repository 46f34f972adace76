"""The translation as sound: clause by clause, as it is sent, in a voice of its language."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Sequence

from connections.connection import Connection
from connections.protocol.frames import Error
from connections.translations.event_encoder import TranslationFrame
from connections.translations.events import AudioDelta
from speech.errors import VoiceFailed
from speech.interfaces import Voice
from speech.sound.wav import RAW_RATE, Coding
from speech.voice.clauses import Clauses

PART_BYTES = 2 * RAW_RATE // 5
"""Sound of one event: 200 ms."""
MAX_UNREAD_BYTES = 128 * 1024
"""Bytes that may wait for a late reader before more sound is sent."""
POLL_S = 0.05
MAX_CLAUSES = 64
"""Clauses that may wait to be spoken; further ones are sent as text only."""
_ESPEAK_CODES = {"zh": "cmn"}
"""The voice program's codes that differ from language tags."""
_BEHIND = "Speaking is too far behind: some of the translation is sent as text only."


def voice_for(names: Sequence[str], language: str) -> str | None:
    """Return the first voice of a language, by its tag; None if there is none."""
    primary = language.replace("_", "-").partition("-")[0].lower()
    wanted = _ESPEAK_CODES.get(primary, primary)
    return next((name for name in names if name.partition("-")[0].lower() == wanted), None)


class SpeechOutput:
    """The speech of one session. `name`: of the current voice; None: nothing is spoken."""

    def __init__(self, voice: Voice, connection: Connection) -> None:
        self.name: str | None = None
        self._voice = voice
        self._connection = connection
        self._clauses = Clauses()
        self._waiting: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._is_overloaded = False

    def begin(self, name: str | None) -> None:
        """Change the voice from now on; earlier text is spoken by the voice before."""
        self._end()
        self.name = name

    def feed(self, text: str) -> None:
        """Take more of the translation."""
        self._put([clause.text for clause in self._clauses.feed(text)])

    async def finish(self) -> None:
        """End the translation; return once all of its sound was sent."""
        self._end()
        await self._waiting.join()

    def _end(self) -> None:
        self._put([clause.text for clause in self._clauses.finish()])
        self._clauses = Clauses()

    def _put(self, clauses: Sequence[str]) -> None:
        for clause in clauses:
            if self.name is None or not any(one.isalnum() for one in clause):
                continue
            if self._waiting.qsize() < MAX_CLAUSES:
                self._is_overloaded = False
                self._waiting.put_nowait((clause, self.name))
            elif not self._is_overloaded:
                self._is_overloaded = True
                self._connection.push(Error(code="rate_limited", message=_BEHIND))

    async def run(self) -> None:
        """Speak until cancelled."""
        while True:
            clause, name = await self._waiting.get()
            try:
                await self._speak(clause, name)
            except VoiceFailed as failed:
                self._connection.push(Error(code="speech_unavailable", message=str(failed)))
            finally:
                self._waiting.task_done()

    async def _speak(self, clause: str, name: str) -> None:
        """Speak one clause. Raises VoiceFailed."""
        spoken = await self._voice.speak(clause, voice=name)
        pcm = await asyncio.to_thread(_converted, spoken.pcm, spoken.rate)
        for at in range(0, len(pcm), PART_BYTES):
            await wait_for_reader(self._connection, MAX_UNREAD_BYTES)
            part = b64encode(pcm[at : at + PART_BYTES]).decode()
            self._connection.push(TranslationFrame(events=(AudioDelta(delta=part),)))


async def wait_for_reader(connection: Connection, most: int) -> None:
    """Return once at most so many bytes wait for the reader, or it has left."""
    while connection.waiting_bytes > most and not connection.closed:  # noqa: ASYNC110 - connections tell nobody that their reader caught up
        await asyncio.sleep(POLL_S)


def _converted(pcm: bytes, rate: int) -> bytes:
    from speech.sound.samples import converted  # noqa: PLC0415 - numpy, which the gateway has no other use for

    return converted(pcm, rate, RAW_RATE, Coding.PCM16)
