"""The sound of a session: words go into the source once two hypotheses agree on them, and the translation is spoken."""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress

from connections.api.realtime.server_events import InvalidEvent
from connections.api.realtime.translation.events import AudioDelta, TranslationFrame
from connections.connection import Connection
from connections.protocol.frames import Error
from connections.voice import VoiceService
from sessions.interpreting.languages import is_spaceless, units
from speech.clauses import Clauses
from speech.errors import RecognitionOverload, RecognizerLost, VoiceFailed
from speech.interfaces import (
    RAW_RATE,
    Coding,
    Heard,
    Listening,
    Partial,
    Paused,
    RecognitionStream,
    Started,
    Stopped,
    Voice,
)

MAX_BUFFER_BYTES = 2 * RAW_RATE * 5
"""Bytes of sound that wait until the recognizer listens: five seconds."""
FINISH_TIMEOUT_S = 10.0
"""How long the end of a session waits for the last words."""
_RECOGNIZER_LOST = "The recognizer was lost, and is started again. What was being said then is lost with it."
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


class Transcript:
    """Makes a text of what is heard, which is never revised. The words between two silences are a line.

    Words, or characters of scripts without blanks, are told once two successive hypotheses agree on them
    (LocalAgreement-2).
    """

    def __init__(self) -> None:
        self._begin()

    def take(self, heard: Heard) -> str:
        """Return what a hypothesis adds."""
        match heard:
            case Partial(text=text, is_new=True) | Paused(text=text):
                return self._agree(units(text.strip()))
            case Stopped(text=text):
                rest, is_line = self._remaining(units(text.strip())), bool(self._agreed or text.strip())
                self._begin()
                return f"{rest}\n" if is_line else ""
            case Started():
                self._begin()
        return ""

    def _begin(self) -> None:
        self._before: list[str] = []
        self._agreed: list[str] = []
        self._ends_blank = True

    def _agree(self, found: list[str]) -> str:
        at = end = len(self._agreed)
        if found[:at] == self._agreed:
            while end < min(len(found), len(self._before)) and found[end] == self._before[end]:
                end += 1
            self._agreed = found[:end]
        self._before = found
        return self._joined(found, at, end)

    def _remaining(self, found: list[str]) -> str:
        return self._joined(found, len(self._agreed), len(found)).rstrip()

    def _joined(self, found: list[str], start: int, end: int) -> str:
        """Return units as the source has them; a word is complete once a blank follows."""
        text = ""
        for at in range(start, end):
            unit, is_last = found[at], at + 1 == len(found)
            between = " " if unit[0].isspace() and not self._ends_blank else ""
            is_followed = not is_spaceless(unit[-1]) if is_last else found[at + 1][0].isspace()
            text += between + unit.strip() + (" " if is_followed else "")
            self._ends_blank = is_followed
        return text


class SpeechInput:
    """One client's speech. `on_text`: takes more of the source; `language`: a code of the recognizer's; None: any."""

    def __init__(
        self,
        voice_service: VoiceService,
        connection: Connection,
        on_text: Callable[[str], None],
        *,
        language: str | None = None,
    ) -> None:
        self._voice_service = voice_service
        self._connection = connection
        self._on_text = on_text
        self._language = language
        self._buffer = bytearray()
        self._hearing: RecognitionStream | None = None
        self._is_overloaded = self._is_ending = False
        self._ended = asyncio.Event()

    def feed(self, audio: str) -> None:
        """Take more sound. Never waits. Raises InvalidEvent if it is malformed."""
        try:
            samples = b64decode(audio, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidEvent("must be base64.", field="audio") from None
        if len(samples) % 2:
            raise InvalidEvent("must be PCM16, which has two bytes for each sample.", field="audio")
        try:
            self._feed(samples)
            self._is_overloaded = False
        except RecognitionOverload as why:
            if not self._is_overloaded:
                self._is_overloaded = True
                self._connection.push(Error(code="rate_limited", message=str(why)))

    def set_language(self, language: str | None) -> None:
        """Note that later sound is in another language; earlier sound is understood as before."""
        if language == self._language:
            return
        self._language = language
        if self._hearing is not None:
            self._hearing.commit()
            self._hearing = None

    def _feed(self, samples: bytes) -> None:
        """Take samples. Raises RecognitionOverload."""
        if self._hearing is not None:
            self._hearing.feed(samples)
        elif len(self._buffer) + len(samples) > MAX_BUFFER_BYTES:
            raise RecognitionOverload("Sound came faster than it can be processed; some of it was dropped.")
        else:
            self._buffer += samples

    async def run(self) -> None:
        """Listen while the connection lasts. Raises Overloaded."""
        with self._voice_service.slot(self._connection.caller.subject):
            try:
                while not self._ended.is_set():
                    await self._listen_with_recovery()
            finally:
                self._ended.set()

    async def _listen_with_recovery(self) -> None:
        try:
            await self._listen()
        except RecognizerLost:
            self._hearing = None
            if self._is_ending:
                self._ended.set()
            self._connection.push(Error(code="speech_unavailable", message=_RECOGNIZER_LOST))

    async def _listen(self) -> None:
        """Listen in one language, up to the end. Raises RecognizerLost."""
        transcript = Transcript()
        listening = Listening(coding=Coding.PCM16, rate=RAW_RATE, language=self._language)
        async with self._voice_service.ear.listen(listening, owner=str(self._connection.owner)) as hearing:
            if self._language != listening.language:  # since it was asked to listen
                return
            self._hearing = hearing
            hearing.feed(bytes(self._buffer))
            self._buffer.clear()
            if self._is_ending:
                hearing.commit()
            async for heard in hearing.events():
                if text := transcript.take(heard):
                    self._on_text(text)
                if isinstance(heard, Stopped) and heard.is_committed:
                    if self._hearing is hearing:  # otherwise the language has changed
                        self._ended.set()
                    return

    async def end(self) -> None:
        """End the sound; return once the rest is understood."""
        self._is_ending = True
        if self._hearing is not None:
            self._hearing.commit()
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_TIMEOUT_S):
                await self._ended.wait()


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
    from speech.samples import converted  # noqa: PLC0415 - numpy, which the gateway has no other use for

    return converted(pcm, rate, RAW_RATE, Coding.PCM16)
