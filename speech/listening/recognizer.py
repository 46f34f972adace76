"""A recognizer in a process that is kept alive, for all speakers: PocketSphinx, or a model of transformers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec

from speech.errors import RecognitionOverload, RecognizerLost
from speech.interfaces import Heard, Listening, Stopped
from speech.listening.messages import (
    Clear,
    Cleared,
    Commit,
    FromListener,
    Listen,
    Processed,
    Recognized,
    Sound,
)
from speech.models.families import Options
from speech.process.supervisor import PendingRequest, ProcessSupervisor, WorkerSpec
from speech.recognition.messages import ENGLISH, Ready
from speech.sound.wav import Coding

STALL_S = 60.0
"""A piece of some seconds is processed at once, which takes less on any core."""
BEHIND_S = 10.0
"""Seconds of one speaker's sound that may wait."""


class RecognizerProcess:
    """An `StreamingRecognizer`: one process, for which owners take turns. `running` keeps it."""

    def __init__(
        self,
        module: str,
        arguments: tuple[str, ...] = (),
        *,
        stall_s: float = STALL_S,
        known: Ready | None = None,
    ) -> None:
        """`module`, `arguments`: of the process. `known`: its facts, if it is started at its first use."""
        self._supervisor = ProcessSupervisor(
            WorkerSpec(
                who="listener",
                module=module,
                arguments=arguments,
                kinds=FromListener,
                hello=Ready,
                lost=RecognizerLost,
            ),
            stall_s=stall_s,
            known=known,
        )

    @property
    def languages(self) -> tuple[str, ...]:
        """The supported languages; empty: any. Only within `running`."""
        return tuple(self._supervisor.hello.languages)

    def running(self) -> AbstractAsyncContextManager[None]:
        """Keep the process while the context lasts. Raises RecognizerLost and ModelLoadError at the start."""
        return self._supervisor.running()

    @asynccontextmanager
    async def listen(self, listening: Listening, *, owner: str) -> AsyncIterator[ProcessStream]:
        """Listen while the context lasts. Raises RecognizerLost."""
        lost = "The recognizer ended while it listened. What was said meanwhile is lost: say it once more."
        request = self._supervisor.request(lambda number: Listen(number, owner, listening), lost=lost)
        width = 2 if listening.coding is Coding.PCM16 else 1
        async with request as pending:
            pending.set_answer_due(is_owed=False)
            yield ProcessStream(pending, most=int(listening.rate * width * BEHIND_S))


class ProcessStream:
    """Sound that a process recognizes. `backlog_bytes`: bytes that are not processed yet."""

    def __init__(self, pending: PendingRequest, *, most: int) -> None:
        """`most`: bytes that may wait."""
        self.backlog_bytes = 0
        self._pending = pending
        self._most = most
        self._commits = self._clears = 0

    def feed(self, sound: bytes) -> None:
        """Take the next sound, in whole samples. Raises RecognitionOverload: this sound is dropped."""
        if self.backlog_bytes + len(sound) > self._most:
            raise RecognitionOverload("More sound comes than can be processed: send it as it is spoken.")
        self.backlog_bytes += len(sound)
        self._send(Sound(self._pending.number, sound))

    def commit(self) -> None:
        """End the utterance."""
        self._commits += 1
        self._send(Commit(self._pending.number))

    def clear(self) -> None:
        """Drop what was said and not committed."""
        self._clears += 1
        self._send(Clear(self._pending.number))

    async def events(self) -> AsyncIterator[Heard]:
        """Yield what is heard. Raises RecognizerLost."""
        while True:
            heard = self._take(await self._pending.next())
            self._update_due()
            if heard is not None:
                yield heard

    def _take(self, answer: Recognized | Processed | Cleared) -> Heard | None:
        """Return the event, unless it was heard before a `clear` and not committed."""
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


def streaming_pocketsphinx(
    grammar: str | None = None, *, stall_s: float = STALL_S, is_lazy: bool = False
) -> RecognizerProcess:
    """Return PocketSphinx. `grammar`: a JSGF file with everything that can be said; None: English in general.

    `is_lazy`: it is started at its first use, which waits for it.
    """
    answer = () if grammar is None else (grammar,)
    return RecognizerProcess(str(__package__), answer, stall_s=stall_s, known=ENGLISH if is_lazy else None)


def streaming_model(options: Options, *, stall_s: float = STALL_S) -> RecognizerProcess:
    """Return a recognizer with a model of transformers."""
    return RecognizerProcess(
        f"{__package__}.models", (msgspec.json.encode(options).decode(),), stall_s=stall_s
    )
