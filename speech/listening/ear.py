"""Sound in, what is heard out, of all who speak. Keeps the listening process alive: one that ends or stands still is started again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import msgspec

from speech.contract import Heard, Listening
from speech.errors import RecognizerLost, TooFarBehind
from speech.listening.messages import (
    Clear,
    Commit,
    FromListener,
    Leave,
    Listen,
    Ready,
    Sound,
    Taken,
    Told,
)
from speech.process.child import Child, running

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
"""Before a process is started again: twice as long each time, until one has worked."""
START_S = 15.0
"""How long somebody waits for a process that is being started."""
STALL_S = 60.0
"""A minute is understood at once at most, which takes less on any core."""
BEHIND_S = 10.0
"""So much sound of one speaker may wait to be listened to."""
_MODULE = str(__package__)

log = logging.getLogger(__name__)


class PocketSphinxEar:
    """PocketSphinx as an `Ear`: one process, which owners take turns with. `running` keeps it."""

    languages = ("en",)

    def __init__(self, grammar: str | None = None, *, stall_s: float = STALL_S) -> None:
        """`grammar`: a file in JSGF that says all that can be said; None: English at large."""
        self._grammar = grammar
        self._stall_s = stall_s
        self._numbers = count()
        self._hearings: dict[int, ProcessHearing] = {}
        self._child: Child | None = None
        self._is_ready = asyncio.Event()
        self._first = asyncio.Event()
        self._pause_s = FIRST_PAUSE_S
        self._told_at = 0.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep a process alive while the context lasts; it is gone afterwards. Raises RecognizerLost at the start."""
        keeping = asyncio.create_task(self._keep())
        try:
            await self._first.wait()
            if not self._is_ready.is_set():
                raise RecognizerLost("The listening process ended at its start.")
            yield
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    @asynccontextmanager
    async def listen(self, listening: Listening, *, owner: str) -> AsyncIterator[ProcessHearing]:
        """Listen while the context lasts. Raises RecognizerLost."""
        process = await self._process()
        number = next(self._numbers)
        width = 2 if listening.coding == "pcm16" else 1
        hearing = ProcessHearing(process, number, most=int(listening.rate * width * BEHIND_S))
        if not self._hearings:
            self._told_at = asyncio.get_running_loop().time()
        self._hearings[number] = hearing
        process.send(Listen(number, owner, listening))
        try:
            yield hearing
        finally:
            del self._hearings[number]
            process.send(Leave(number))

    async def _process(self) -> Child:
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
                arguments = [self._grammar] if self._grammar else []
                async with running(_MODULE, *arguments) as self._child:
                    await self._read(self._child)
            except OSError as error:
                log.warning("the listening process could not be started: %s", error)
            finally:
                self._lose()
            log.warning("the listening process ended; it is started again in %.1f s", self._pause_s)
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)

    async def _read(self, process: Child) -> None:
        """Read until the process ends, or says nothing for too long though sound waits."""
        loop = asyncio.get_running_loop()
        reading = asyncio.create_task(self._take_all(process))
        try:
            while not reading.done():
                await asyncio.wait((reading,), timeout=self._stall_s / 4)
                is_behind = any(hearing.behind for hearing in self._hearings.values())
                if is_behind and loop.time() - self._told_at > self._stall_s:
                    log.warning("the listening process stands still and is ended")
                    return
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _take_all(self, process: Child) -> None:
        decode = msgspec.msgpack.Decoder(FromListener).decode
        async for body in process.bodies():
            self._told_at = asyncio.get_running_loop().time()
            self._take(decode(body))

    def _take(self, message: FromListener) -> None:
        match message:
            case Ready():
                self._is_ready.set()
                self._first.set()
            case Told(number, heard):
                self._pause_s = FIRST_PAUSE_S
                if (hearing := self._hearings.get(number)) is not None:
                    hearing.tell(heard)
            case Taken(number, size):
                if (hearing := self._hearings.get(number)) is not None:
                    hearing.behind -= size

    def _lose(self) -> None:
        self._is_ready.clear()
        self._first.set()
        self._child = None
        for hearing in self._hearings.values():
            hearing.tell(None)


class ProcessHearing:
    """Sound that a process listens to. `behind`: bytes that it has not listened to so far."""

    def __init__(self, process: Child, number: int, *, most: int) -> None:
        self.behind = 0
        self._process = process
        self._number = number
        self._most = most
        self._told: asyncio.Queue[Heard | None] = asyncio.Queue()

    def feed(self, sound: bytes) -> None:
        """Take the next sound, whole samples. Raises TooFarBehind: this sound is not taken."""
        if self.behind + len(sound) > self._most:
            raise TooFarBehind("More sound comes than can be listened to: send it as it is spoken.")
        self.behind += len(sound)
        self._process.send(Sound(self._number, sound))

    def commit(self) -> None:
        """What came so far is all that is said."""
        self._process.send(Commit(self._number))

    def clear(self) -> None:
        """Forget what was said since the last end."""
        self._process.send(Clear(self._number))

    def tell(self, heard: Heard | None) -> None:
        """Pass on what is heard; None: the process is gone. There are fewer of these than frames of sound."""
        self._told.put_nowait(heard)

    async def events(self) -> AsyncIterator[Heard]:
        """Yield what is heard. Raises RecognizerLost."""
        while (heard := await self._told.get()) is not None:
            yield heard
        raise RecognizerLost("The recognizer ended while it listened. What was said meanwhile is lost.")
