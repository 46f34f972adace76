"""A voice with a model of transformers, in a process that is kept alive: clauses to sound, with the times of words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec

from speech.errors import VoiceFailed
from speech.interfaces import SpokenClause
from speech.models.families import Options
from speech.process.messages import Cancel, Failed, Refused, Working
from speech.process.supervisor import STALL_S, ProcessSupervisor, WorkerSpec
from speech.voice.clauses import Clauses


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
    clause: SpokenClause


ToVoice = Speak | Cancel
FromVoice = VoiceReady | Working | Spoken | Failed | Refused


MODULE = f"{__package__}.models"
_SHOWN = 20
"""Voices that an error lists."""


class ModelVoice:
    """One process, for which owners take turns by the clause. `running` keeps it; `speak` and `speaking` ask it."""

    def __init__(self, name: str, options: Options, *, stall_s: float = STALL_S) -> None:
        """`name`: for clients."""
        self.name = name
        self._supervisor = ProcessSupervisor(
            WorkerSpec(
                who="voice",
                module=MODULE,
                arguments=(msgspec.json.encode(options).decode(),),
                kinds=FromVoice,
                hello=VoiceReady,
                lost=VoiceFailed,
            ),
            stall_s=stall_s,
        )

    def running(self) -> AbstractAsyncContextManager[None]:
        """Keep the process while the context lasts. Raises VoiceFailed and ModelLoadError at the start."""
        return self._supervisor.running()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the voices, the default first."""
        return self._supervisor.hello.names

    @property
    def voices(self) -> Sequence[str]:
        """The same, for the endpoints."""
        return self.names

    @property
    def examples(self) -> str:
        """The first of them, as text."""
        shown = ", ".join(self.names[:_SHOWN])
        return shown if len(self.names) <= _SHOWN else f"{shown} and so on"

    @property
    def speeds(self) -> tuple[float, float]:
        """The slowest and the fastest speed, as multiples of the usual one."""
        return self._supervisor.hello.slowest, self._supervisor.hello.fastest

    async def speak(self, clause: str, *, voice: str, speed: float = 1.0, owner: str = "") -> SpokenClause:
        """Return a clause as sound; cancelling the caller ends the work. Raises VoiceFailed."""
        request = self._supervisor.request(
            lambda number: Speak(number, owner, clause, voice, speed),
            lost="The voice ended while it spoke. Send the request again.",
        )
        async with request as pending:
            answer = await pending.next()
            assert isinstance(answer, Spoken)  # noqa: S101 - a voice sends nothing else about a clause
            return answer.clause

    @asynccontextmanager
    async def speaking(
        self, text: str, *, voice: str, speed: float, owner: str
    ) -> AsyncIterator[_ModelAudioStream]:
        """Speak a text while the context lasts: a clause is made while the one before is sent."""
        cutter = Clauses()
        clauses = [clause.text for clause in (*cutter.feed(text), *cutter.finish())]
        yield _ModelAudioStream(
            self, clauses, rate=self._supervisor.hello.rate, voice=voice, speed=speed, owner=owner
        )


class _ModelAudioStream:
    """A text that is being spoken."""

    def __init__(
        self, model: ModelVoice, clauses: Sequence[str], *, rate: int, voice: str, speed: float, owner: str
    ) -> None:
        self.rate = rate
        self._model = model
        self._clauses = clauses
        self._how = {"voice": voice, "owner": owner}
        self._speed = speed

    async def parts(self) -> AsyncGenerator[bytes]:
        """Yield the clauses as they are made; a caller that stops reading ends the work. Raises VoiceFailed."""
        ahead: asyncio.Task[SpokenClause] | None = None
        try:
            for clause in self._clauses:
                made, ahead = ahead, asyncio.create_task(self._speak(clause))
                if made is not None and (pcm := (await made).pcm):
                    yield pcm
            if ahead is not None and (pcm := (await ahead).pcm):
                yield pcm
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)

    async def _speak(self, clause: str) -> SpokenClause:
        return await self._model.speak(clause, speed=self._speed, **self._how)
