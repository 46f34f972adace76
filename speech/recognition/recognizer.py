"""Recordings in, segments out. Keeps the recognizer's process alive: one that ends or stands still is started again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from speech.errors import RecognizerLost
from speech.recognition import child
from speech.recognition.messages import (
    Cancel,
    Failed,
    Finished,
    FromRecognizer,
    Heard,
    Ready,
    Segment,
    Transcribe,
    Working,
)
from speech.sound.wav import Recording

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
"""Before a process is started again: twice as long each time, until one has worked."""
START_S = 15.0
"""How long a request waits for a process that is being started."""
STALL_S = 120.0
"""A segment has ten seconds of sound at most, and takes about as long on a busy core."""

log = logging.getLogger(__name__)

_Told = Segment | Finished | Failed | None


class Recognizer:
    """One process, which owners take turns with. `running` keeps it; `hear` asks it."""

    def __init__(self, grammar: str | None = None, *, stall_s: float = STALL_S) -> None:
        """`grammar`: a file in JSGF that says all that can be said; None: English at large."""
        self._grammar = grammar
        self._stall_s = stall_s
        self._numbers = count()
        self._waiting: dict[int, asyncio.Queue[_Told]] = {}
        self._child: child.Child | None = None
        self._is_ready = asyncio.Event()
        self._first = asyncio.Event()
        self._pause_s = FIRST_PAUSE_S
        self._heard_at = 0.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep a process alive while the context lasts; it is gone afterwards. Raises RecognizerLost at the start."""
        keeping = asyncio.create_task(self._keep())
        try:
            await self._first.wait()
            if not self._is_ready.is_set():
                raise RecognizerLost("The recognizer's process ended at its start.")
            yield
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def hear(self, recording: Recording, *, owner: str) -> AsyncGenerator[Segment]:
        """Yield the segments as they are recognised; who closes this ends the work. Raises RecognizerLost."""
        process = await self._process()
        number = next(self._numbers)
        told = self._waiting[number] = asyncio.Queue()
        if len(self._waiting) == 1:
            self._heard_at = asyncio.get_running_loop().time()
        process.send(Transcribe(number, owner, recording))
        try:
            while (what := await told.get()) is not None:
                if isinstance(what, Finished):
                    return
                if isinstance(what, Failed):
                    raise RecognizerLost("This recording could not be recognised.")
                yield what
        finally:
            del self._waiting[number]
            process.send(Cancel(number))
        raise RecognizerLost("The recognizer ended while it listened. Send the request again.")

    async def _process(self) -> child.Child:
        try:
            async with asyncio.timeout(START_S):
                await self._is_ready.wait()
        except TimeoutError:
            raise RecognizerLost("The recognizer is not ready yet. Try again in a moment.") from None
        assert self._child is not None  # noqa: S101 - what ready means
        return self._child

    async def _keep(self) -> None:
        while True:
            try:
                async with child.running(self._grammar) as self._child:
                    await self._read(self._child)
            except OSError as error:
                log.warning("the recognizer's process could not be started: %s", error)
            finally:
                self._lose()
            log.warning("the recognizer's process ended; it is started again in %.1f s", self._pause_s)
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)

    async def _read(self, process: child.Child) -> None:
        """Read until the process ends, or says nothing for too long though it has work."""
        loop = asyncio.get_running_loop()
        reading = asyncio.create_task(self._take_all(process))
        try:
            while not reading.done():
                await asyncio.wait((reading,), timeout=self._stall_s / 4)
                if self._waiting and loop.time() - self._heard_at > self._stall_s:
                    log.warning("the recognizer's process stands still and is ended")
                    return
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _take_all(self, process: child.Child) -> None:
        async for message in process.receive():
            self._heard_at = asyncio.get_running_loop().time()
            self._take(message)

    def _take(self, message: FromRecognizer) -> None:
        match message:
            case Ready():
                self._is_ready.set()
                self._first.set()
            case Working():
                pass
            case Heard(number, segment):
                self._pause_s = FIRST_PAUSE_S
                self._tell(number, segment)
            case Finished(number) | Failed(number):
                self._pause_s = FIRST_PAUSE_S
                self._tell(number, message)

    def _tell(self, number: int, what: _Told) -> None:
        if (told := self._waiting.get(number)) is not None:
            told.put_nowait(what)

    def _lose(self) -> None:
        self._is_ready.clear()
        self._first.set()
        self._child = None
        for told in self._waiting.values():
            told.put_nowait(None)
