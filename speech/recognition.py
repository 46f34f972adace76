"""A recognizer of recordings in a process that is kept alive: PocketSphinx, or a model of transformers."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from speech.errors import RecognizerLost
from speech.interfaces import Recording
from speech.model_families import Options
from speech.process import STALL_S, Cancel, Failed, Refused, WorkerProcess, Working

POCKETSPHINX = "pocketsphinx"


class PocketSphinx(msgspec.Struct, frozen=True, tag=True):
    """What PocketSphinx's process loads. `grammar`: a JSGF file with everything that can be said; None: English in general."""

    grammar: str | None = None


RecognizerOptions = PocketSphinx | Options


class Recognizer(WorkerProcess["Ready"]):
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
        self, recording: Recording, *, owner: str, language: str | None = None, wants_words: bool = True
    ) -> AsyncGenerator[Segment]:
        """Yield the segments as they are recognized; closing the iterator ends the work. Raises RecognizerLost."""
        lost = "The recognizer ended while it listened. Send the request again."
        request = self.request(
            lambda number: Transcribe(number, owner, recording, language, wants_words), lost=lost
        )
        async with request as pending:
            while not isinstance(answer := await pending.next(), Finished):
                assert isinstance(answer, SegmentRecognized)  # noqa: S101 - a recognizer sends nothing else about a recording
                yield answer.segment


class Word(msgspec.Struct, frozen=True):
    """A word and its time, in seconds of the recording."""

    word: str
    start: float
    end: float


class Segment(msgspec.Struct, frozen=True):
    """The words between two pauses, or in a window of sound, in seconds of the recording.

    `language`: its code, if the recognizer knows it.
    """

    start: float
    end: float
    text: str
    words: tuple[Word, ...]
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
    wants_words: bool = True


class Ready(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Recordings are accepted from now on.

    `languages`: names by code, of those that can be requested. `language`: the code of the only one. `times_words`: whether words
    have times.
    """

    languages: dict[str, str]
    language: str | None = None
    times_words: bool = True


ENGLISH = Ready(languages={"en": "english"}, language="en")
"""PocketSphinx's facts."""


class SegmentRecognized(msgspec.Struct, frozen=True, tag=True):
    """A segment of a recording, in order."""

    number: int
    segment: Segment


class Finished(msgspec.Struct, frozen=True, tag=True):
    """All of the recording is recognized."""

    number: int


ToRecognizer = Transcribe | Cancel
FromRecognizer = Ready | Working | SegmentRecognized | Finished | Failed | Refused
