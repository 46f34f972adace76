"""A recognizer of recordings in a process that is kept alive: PocketSphinx, or a model of transformers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager

import msgspec

from speech.errors import RecognizerLost
from speech.models.families import Options
from speech.process.supervisor import STALL_S, ProcessSupervisor, WorkerSpec
from speech.recognition.messages import (
    ENGLISH,
    Finished,
    FromRecognizer,
    Ready,
    Segment,
    SegmentRecognized,
    Transcribe,
)
from speech.sound.wav import Recording

POCKETSPHINX = "pocketsphinx"


class Recognizer:
    """One process, for which owners take turns. `running` keeps it; `transcribe` asks it."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: tuple[str, ...] = (),
        *,
        stall_s: float = STALL_S,
        known: Ready | None = None,
    ) -> None:
        """`name`: for clients. `module`, `arguments`: of its process. `known`: its facts, if it starts lazily."""
        self.name = name
        self._supervisor = ProcessSupervisor(
            WorkerSpec(
                who="recognizer",
                module=module,
                arguments=arguments,
                kinds=FromRecognizer,
                hello=Ready,
                lost=RecognizerLost,
            ),
            stall_s=stall_s,
            known=known,
        )

    @property
    def facts(self) -> Ready:
        """Its facts; only within `running`."""
        return self._supervisor.hello

    def running(self) -> AbstractAsyncContextManager[None]:
        """Keep the process while the context lasts. Raises RecognizerLost and ModelLoadError at the start."""
        return self._supervisor.running()

    async def transcribe(
        self, recording: Recording, *, owner: str, language: str | None = None, wants_words: bool = True
    ) -> AsyncGenerator[Segment]:
        """Yield the segments as they are recognized; closing the iterator ends the work. Raises RecognizerLost."""
        lost = "The recognizer ended while it listened. Send the request again."
        request = self._supervisor.request(
            lambda number: Transcribe(number, owner, recording, language, wants_words), lost=lost
        )
        async with request as pending:
            while not isinstance(answer := await pending.next(), Finished):
                assert isinstance(answer, SegmentRecognized)  # noqa: S101 - a recognizer sends nothing else about a recording
                yield answer.segment


def pocketsphinx(
    grammar: str | None = None, *, stall_s: float = STALL_S, is_lazy: bool = False
) -> Recognizer:
    """Return PocketSphinx. `grammar`: a JSGF file with everything that can be said; None: English in general.

    `is_lazy`: it is started at its first use, which waits for it.
    """
    answer = () if grammar is None else (grammar,)
    known = ENGLISH if is_lazy else None
    return Recognizer(POCKETSPHINX, str(__package__), answer, stall_s=stall_s, known=known)


def model_recognizer(name: str, options: Options, *, stall_s: float = STALL_S) -> Recognizer:
    """Return a recognizer with a model of transformers."""
    answer = msgspec.json.encode(options).decode()
    return Recognizer(name, f"{__package__}.models", (answer,), stall_s=stall_s)
