"""Recognizers in processes that are kept alive: PocketSphinx, or a model of transformers.

`Recognizer` transcribes recordings; `StreamingRecognizer` listens during speech.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from speech.errors import RecognitionOverload, RecognizerLost
from speech.interfaces import WIDTH, Heard, Listening, ModelOptions, Recording, Stopped
from speech.process import STALL_S, Cancel, Failed, PendingRequest, Refused, WorkerProcess, Working

POCKETSPHINX = "pocketsphinx"
LISTENING_STALL_S = 60.0
"""How long a process that listens may be silent: a piece of some seconds is processed at once, which takes less on any core."""
BEHIND_S = 10.0
"""Seconds of one speaker's sound that may wait."""


class PocketSphinx(msgspec.Struct, frozen=True, tag=True):
    """What PocketSphinx's process loads. `grammar`: a JSGF file with everything that can be said; None: English in general."""

    grammar: str | None = None


RecognizerOptions = PocketSphinx | ModelOptions


class Ready(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Requests are accepted from now on.

    `languages`: names by code, of those that can be requested; empty: any. `language`: the code of the only one.
    """

    languages: dict[str, str]
    language: str | None = None


ENGLISH = Ready(languages={"en": "english"}, language="en")
"""The facts of PocketSphinx, and of models that only know English."""


class Recognizer(WorkerProcess[Ready]):
    """One process, in which owners take turns. `running` keeps it alive; `transcribe` uses it."""

    def __init__(
        self,
        name: str,
        options: RecognizerOptions,
        *,
        known: Ready | None = None,
        stall_s: float = STALL_S,
        module: str = str(__package__),
    ) -> None:
        """`name`: for clients. `known`: the process's facts; given them, it starts at its first use. `module`: of the process."""
        super().__init__(
            *(module, "recognition", msgspec.json.encode(options).decode()),
            who="recognizer",
            kinds=FromRecognizer,
            hello=Ready,
            lost=RecognizerLost,
            known=known,
            stall_s=stall_s,
        )
        self.name = name

    async def transcribe(
        self, recording: Recording, *, owner: str, language: str | None = None
    ) -> AsyncGenerator[Segment]:
        """Yield the segments as they are recognized; closing the iterator ends the work. Raises RecognizerLost."""
        lost = "The recognizer ended while it listened. Send the request again."
        request = self.request(lambda number: Transcribe(number, owner, recording, language), lost=lost)
        async with request as pending:
            while not isinstance(answer := await pending.next(), Finished):
                assert isinstance(answer, SegmentRecognized)  # noqa: S101 - a recognizer sends nothing else about a recording
                yield answer.segment


class StreamingRecognizer(WorkerProcess[Ready]):
    """One process, in which owners take turns. `running` keeps it alive; `listen` uses it."""

    def __init__(
        self, options: RecognizerOptions, *, known: Ready | None = None, module: str = str(__package__)
    ) -> None:
        """`known`, `module`: as for `Recognizer`."""
        super().__init__(
            *(module, "listening", msgspec.json.encode(options).decode()),
            who="listener",
            kinds=FromListener,
            hello=Ready,
            lost=RecognizerLost,
            stall_s=LISTENING_STALL_S,
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
        async with self.request(lambda number: Listen(number, owner, listening), lost=lost) as pending:
            pending.set_answer_due(is_owed=False)
            yield RecognitionStream(pending, most=int(listening.rate * WIDTH * BEHIND_S))


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


class Segment(msgspec.Struct, frozen=True):
    """The words between two pauses, or in a part of a window of sound, in seconds of the recording.

    `language`: its code, if the recognizer knows it.
    """

    start: float
    end: float
    text: str
    language: str | None = None


class Utterance(msgspec.Struct, frozen=True):
    """The words of a speaker so far. `is_whole`: whether they are a complete sentence; None: unknown.

    `is_confident`: False: they may be noise. A recognizer that can't judge this says True. `beginning`: the words of a sentence
    that can't end there, while speech continues.
    """

    text: str
    is_whole: bool | None = None
    is_confident: bool = True
    beginning: str = ""


class Transcribe(msgspec.Struct, frozen=True, tag=True):
    """Recognize a recording. `owner`: one owner's recordings wait for each other. `language`: a code; None: any."""

    number: int
    owner: str
    recording: Recording
    language: str | None = None


class SegmentRecognized(msgspec.Struct, frozen=True, tag=True):
    """A segment of a recording, in order."""

    number: int
    segment: Segment


class Finished(msgspec.Struct, frozen=True, tag=True):
    """All of the recording is recognized."""

    number: int


ToRecognizer = Transcribe | Cancel
FromRecognizer = Ready | Working | SegmentRecognized | Finished | Failed | Refused


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
