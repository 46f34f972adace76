"""A recognizer that listens during speech, in a process that is kept alive for all speakers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from speech.errors import RecognitionOverload, RecognizerLost
from speech.interfaces import Coding, Heard, Listening, Stopped
from speech.process import Cancel, Failed, PendingRequest, Refused, WorkerProcess, Working
from speech.recognition import Ready, RecognizerOptions

STALL_S = 60.0
"""How long the process may be silent: a piece of some seconds is processed at once, which takes less on any core."""
BEHIND_S = 10.0
"""Seconds of one speaker's sound that may wait."""


class StreamingRecognizer(WorkerProcess[Ready]):
    """One process, in which owners take turns. `running` keeps it alive."""

    def __init__(
        self, options: RecognizerOptions, *, known: Ready | None = None, module: str = str(__package__)
    ) -> None:
        """`known`: the process's facts; given them, it starts at its first use. `module`: of the process."""
        super().__init__(
            *(module, "listening", msgspec.json.encode(options).decode()),
            who="listener",
            kinds=FromListener,
            hello=Ready,
            lost=RecognizerLost,
            stall_s=STALL_S,
            known=known,
        )

    @property
    def languages(self) -> tuple[str, ...]:
        """The supported languages; empty: any. Only within `running`."""
        return tuple(self.facts.languages)

    @asynccontextmanager
    async def listen(self, listening: Listening, *, owner: str) -> AsyncIterator[RecognitionStream]:
        """Listen while the context lasts. Raises RecognizerLost."""
        lost = "The recognizer ended while it listened. What was said meanwhile is lost: say it once more."
        width = 2 if listening.coding is Coding.PCM16 else 1
        async with self.request(lambda number: Listen(number, owner, listening), lost=lost) as pending:
            pending.set_answer_due(is_owed=False)
            yield RecognitionStream(pending, most=int(listening.rate * width * BEHIND_S))


class RecognitionStream:
    """Sound that a process recognizes. `backlog_bytes`: bytes that are not processed yet."""

    def __init__(self, pending: PendingRequest, *, most: int) -> None:
        """`most`: bytes that may wait."""
        self.backlog_bytes = 0
        self._pending = pending
        self._most = most
        self._commits = self._clears = 0

    def feed(self, sound: bytes) -> None:
        """Take the next sound, in whole samples. Never waits. Raises RecognitionOverload: this sound is dropped.

        If a speaker sends no more sound for a while, the utterance ends.
        """
        if self.backlog_bytes + len(sound) > self._most:
            raise RecognitionOverload("More sound comes than can be processed: send it as it is spoken.")
        self.backlog_bytes += len(sound)
        self._send(Sound(self._pending.number, sound))

    def commit(self) -> None:
        """End the utterance: `Stopped` follows, with or without speech."""
        self._commits += 1
        self._send(Commit(self._pending.number))

    def clear(self) -> None:
        """Drop what was said and not committed. No events about it follow, even if they were due."""
        self._clears += 1
        self._send(Clear(self._pending.number))

    async def events(self) -> AsyncIterator[Heard]:
        """Yield what is heard while the context lasts. Raises RecognizerLost: sound that came meanwhile is lost.

        Keep reading: words count as understood once they were yielded.
        """
        while True:
            heard = self._take(await self._pending.next())
            self._update_due()
            if heard is not None:
                yield heard

    def _take(self, answer: Recognized | Processed | Cleared) -> Heard | None:
        """Return the event in an answer, if any, unless it was heard before a `clear` and not committed."""
        match answer:
            case Processed(_, size):
                self.backlog_bytes -= size
            case Cleared():
                self._clears -= 1
            case Recognized(_, heard):
                is_committed = isinstance(heard, Stopped) and heard.is_committed
                self._commits -= is_committed
                return heard if is_committed or not self._clears else None
        return None

    def _send(self, message: msgspec.Struct) -> None:
        self._pending.send(message)
        self._update_due()

    def _update_due(self) -> None:
        self._pending.set_answer_due(is_owed=bool(self.backlog_bytes or self._commits or self._clears))


class Listen(msgspec.Struct, frozen=True, tag=True):
    """Listen to a speaker under this number until a `Cancel`. `owner`: one owner's speakers take one turn together."""

    number: int
    owner: str
    listening: Listening


class Sound(msgspec.Struct, frozen=True, tag=True):
    """`RecognitionStream.feed`."""

    number: int
    sound: bytes


class Commit(msgspec.Struct, frozen=True, tag=True):
    """`RecognitionStream.commit`. A `Stopped` answers it."""

    number: int


class Clear(msgspec.Struct, frozen=True, tag=True):
    """`RecognitionStream.clear`. `Cleared` answers it."""

    number: int


class Recognized(msgspec.Struct, frozen=True, tag=True):
    """An event for a speaker."""

    number: int
    heard: Heard


class Cleared(msgspec.Struct, frozen=True, tag=True):
    """Events before this one were heard before the `Clear`."""

    number: int


class Processed(msgspec.Struct, frozen=True, tag=True):
    """`size` more bytes of sound need no further processing: they were understood, or were not speech."""

    number: int
    size: int


ToListener = Listen | Sound | Commit | Clear | Cancel
FromListener = Ready | Recognized | Cleared | Processed | Working | Failed | Refused
