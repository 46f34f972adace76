"""A voice with a model of transformers, in a process that is kept alive: clauses to sound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from speech.clauses import Clauses
from speech.errors import VoiceFailed
from speech.interfaces import ModelOptions
from speech.process import (
    Cancel,
    Channel,
    Failed,
    Refused,
    Worker,
    WorkerProcess,
    Working,
)

_SHOWN = 20
"""Voices that an error lists."""


class ModelVoice(WorkerProcess["VoiceReady"]):
    """One process, in which owners take turns by the clause. `running` keeps it alive; `speak` and `speaking` use it."""

    def __init__(self, name: str, options: ModelOptions, *, module: str = str(__package__)) -> None:
        """`name`: for clients. `module`: of the process."""
        super().__init__(
            *(module, "voice", msgspec.json.encode(options).decode()),
            who="voice",
            kinds=FromVoice,
            hello=VoiceReady,
            lost=VoiceFailed,
        )
        self.name = name

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the voices, the default first."""
        return self.facts.names

    @property
    def examples(self) -> str:
        """The first of the voices, as text."""
        shown = ", ".join(self.names[:_SHOWN])
        return shown if len(self.names) <= _SHOWN else f"{shown} and so on"

    @property
    def speeds(self) -> tuple[float, float]:
        """The slowest and the fastest speed, as multiples of the usual one."""
        return self.facts.slowest, self.facts.fastest

    async def speak(self, clause: str, *, voice: str, speed: float = 1.0, owner: str = "") -> bytes:
        """Return a clause as 16-bit PCM with one channel; cancelling the caller ends the work. Raises VoiceFailed."""
        request = self.request(
            lambda number: Speak(number, owner, clause, voice, speed),
            lost="The voice ended while it spoke. Send the request again.",
        )
        async with request as pending:
            answer = await pending.next()
            assert isinstance(answer, Spoken)  # noqa: S101 - a voice sends nothing else about a clause
            return answer.pcm

    @asynccontextmanager
    async def speaking(
        self, text: str, *, voice: str, speed: float, owner: str
    ) -> AsyncIterator[_ModelAudioStream]:
        """Speak a text while the context lasts: a clause is made while the one before is sent."""
        cutter = Clauses()
        clauses = [clause.text for clause in (*cutter.feed(text), *cutter.finish())]
        speak = partial(self.speak, voice=voice, speed=speed, owner=owner)
        yield _ModelAudioStream(self.facts.rate, clauses, speak)


class _ModelAudioStream:
    """A text that is being spoken. `speak`: makes a clause."""

    def __init__(
        self, rate: int, clauses: Sequence[str], speak: Callable[[str], Coroutine[None, None, bytes]]
    ) -> None:
        self.rate = rate
        self._clauses = clauses
        self._speak = speak

    async def parts(self) -> AsyncGenerator[bytes]:
        """Yield the clauses as they are made; a caller that stops reading ends the work. Raises VoiceFailed."""
        ahead: asyncio.Task[bytes] | None = None
        try:
            for clause in [*self._clauses, None]:
                made, ahead = ahead, None if clause is None else asyncio.create_task(self._speak(clause))
                if made is not None and (pcm := await made):
                    yield pcm
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)


class Speak(msgspec.Struct, frozen=True, tag=True):
    """Speak a clause. `owner`: one owner's clauses wait for each other. `speed`: a multiple of the usual one."""

    number: int
    owner: str
    clause: str
    voice: str
    speed: float


class VoiceReady(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Clauses are accepted from now on. `names`: of its voices, the default first; `slowest`, `fastest`: speeds."""

    names: tuple[str, ...]
    rate: int
    slowest: float = 1.0
    fastest: float = 1.0


class Spoken(msgspec.Struct, frozen=True, tag=True):
    """A clause as sound."""

    number: int
    pcm: bytes


ToVoice = Speak | Cancel
FromVoice = VoiceReady | Working | Spoken | Failed | Refused


class VoiceWorker(Worker[Speak]):
    """Speaks a clause at a time. One that was cancelled before is not spoken."""

    def __init__(self, channel: Channel, facts: VoiceReady, speak: Callable[..., bytes]) -> None:
        """`speak`: `speech.voice_models.Vits.speak`."""
        super().__init__(channel, facts)
        self._speak = speak

    def step(self) -> None:
        """Speak the next clause."""
        number, request = self.queue.next()
        if self.is_gone(number):
            return
        try:
            pcm = self._speak(request.clause, voice=request.voice, speed=request.speed)
        except ArithmeticError:
            self.end(number, Failed(number, "The voice could not speak this text."))
        except Exception as error:  # noqa: BLE001 - it affects only this clause
            self.fail(number, error, "This text could not be spoken")
        else:
            self.end(number, Spoken(number, pcm))

    def take(self, message: Speak) -> None:
        """Add a clause after its owner's others."""
        self.queue.add(message.owner, message.number, message)
