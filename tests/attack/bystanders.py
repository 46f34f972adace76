"""People who do nothing odd on the attacked server, and what they notice.

Four read replies, one pings, four send messages, each from an address of their own and as a client of their own. The next
group has other addresses and ids, so that none of its limits is used up.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine
from contextlib import suppress
from itertools import pairwise
from time import monotonic

import msgspec

from tests.attack.client import HOST, beats
from tests.chaos.minimal_websocket import Dropped, Frame, MinimalWebSocket, Refused

READERS = 4
WRITERS = 4
PINGS_PER_S = 20
MESSAGES_PER_S = 10 / 3
"""Forty in three seconds."""
AGAIN_S = 0.1
"""Seconds before a refused message is sent again."""
COME_S = 30.0
LINGER_S = 20.0
"""Seconds to wait for open answers at the end; what is not answered then took at least so long."""
LONG_REPLY = 1_000
GOOD_ENDS = {"stop", "length"}


class Latencies(msgspec.Struct):
    """Times in seconds: between texts of a reply, from a ping to its pong, from a message to `accepted`.

    `refusals`: refused messages by the error's code; each was sent again until it was accepted, and its time
    counts from the first try. `faults`: other things that went wrong.
    """

    gaps: list[float] = []
    pings: list[float] = []
    accepted: list[float] = []
    refusals: list[str] = []
    faults: list[str] = []


async def come(port: int, *, group: int, number: int, key: str | None) -> MinimalWebSocket:
    """Connect as a person and say hello. Raises Refused, Dropped, OSError."""
    one = await MinimalWebSocket.connect((HOST, port), source=f"127.1.{group % 250}.{number + 1}")
    await one.send_hello(client_id=f"neighbour-{group}-{number}", **({"token": key} if key else {}))
    return one


async def send(one: MinimalWebSocket, conversation_id: str, ref: str, words: int) -> None:
    """Send a message. Raises Dropped."""
    message = {"conversation_id": conversation_id, "content": "Count from 1 to 300."}
    await one.put(type="send", client_msg_id=ref, **message, params={"max_new_tokens": words})


class Bystanders:
    """The whole group. Use `come`, `notice`, `leave`, in this order."""

    def __init__(self, port: int, keys: tuple[str, ...], *, group: int) -> None:
        self.noticed = Latencies()
        self._port, self._keys, self._group = port, keys, group
        self._people: list[MinimalWebSocket] = []
        self._lives: list[asyncio.Task[None]] = []
        self._arrivals: list[list[float]] = []
        self._pings: dict[int, float] = {}
        """Unanswered pings, and when they were sent."""
        self._messages: dict[MinimalWebSocket, float] = {}
        """The same of messages: each writer has one at most."""
        self._all_answered = asyncio.Event()

    async def come(self) -> None:
        """Connect all, and start the replies. Raises TimeoutError, Refused, Dropped, OSError."""
        async with asyncio.timeout(COME_S):
            for number in range(READERS + 1 + WRITERS):
                key = self._keys[number] if self._keys else None
                self._people.append(await come(self._port, group=self._group, number=number, key=key))
            for reader in self._people[:READERS]:
                arrivals: list[float] = []
                self._arrivals.append(arrivals)
                begun = asyncio.Event()
                self._live(self._read(reader, arrivals, begun))
                await begun.wait()

    async def notice(self, seconds: float) -> Latencies:
        """Live for so long, then wait for the open answers. Gaps are of those seconds alone."""
        begun = monotonic()
        pinger, *writers = self._people[READERS:]
        self._live(self._receive_pongs(pinger))
        lives = (self._ping(pinger, begun + seconds), *(self._write(one, begun + seconds) for one in writers))
        working = [self._live(life) for life in lives]
        await asyncio.sleep(begun + seconds - monotonic())
        self._take_gaps(begun, monotonic())
        await asyncio.wait(working, timeout=LINGER_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while self._pings:
                    self._all_answered.clear()
                    await self._all_answered.wait()
        for unanswered, times in ((self._pings, self.noticed.pings), (self._messages, self.noticed.accepted)):
            times += [monotonic() - since for since in unanswered.values()]
            self.noticed.faults += ["unanswered"] * len(unanswered)
        return self.noticed

    async def leave(self) -> None:
        """Disconnect all."""
        for life in self._lives:
            life.cancel()
        await asyncio.gather(*self._lives, return_exceptions=True)
        for one in self._people:
            one.close()

    def _live(self, life: Coroutine[None, None, None]) -> asyncio.Task[None]:
        self._lives.append(asyncio.create_task(self._careful(life)))
        return self._lives[-1]

    async def _careful(self, life: Coroutine[None, None, None]) -> None:
        """Run a life; a lost connection is noted as the server's fault."""
        try:
            await life
        except (Refused, Dropped) as error:
            self.noticed.faults.append(f"connection lost: {error}")

    def _take_gaps(self, begin: float, end: float) -> None:
        """Note the gaps between texts, and the last open one if it is longer than any before it."""
        for arrivals in self._arrivals:
            within = [at for at in arrivals if begin <= at <= end]
            gaps = [later - earlier for earlier, later in pairwise([begin, *within])][1:]
            silence = end - (within[-1] if within else begin)
            self.noticed.gaps += [*gaps, silence] if silence > max(gaps, default=0.0) else gaps

    async def _read(self, one: MinimalWebSocket, arrivals: list[float], begun: asyncio.Event) -> None:
        """Ask for a long reply and read it, again and again."""
        while True:
            await send(one, "read", uuid.uuid4().hex, LONG_REPLY)
            while (frame := await one.get())["type"] != "done":
                if frame["type"] == "delta":
                    arrivals.append(monotonic())
                    begun.set()
                elif frame["type"] == "error":
                    await self._refused(frame)
                    break
            else:
                if frame["reason"] not in GOOD_ENDS or not frame["saved"]:
                    self.noticed.faults.append(f"a reply ended: {frame['reason']}, saved: {frame['saved']}")

    async def _ping(self, one: MinimalWebSocket, end: float) -> None:
        async for number in beats(PINGS_PER_S):
            if (now := monotonic()) >= end:
                return
            self._pings[number] = now
            await one.put(type="ping", t=number)

    async def _receive_pongs(self, one: MinimalWebSocket) -> None:
        while True:
            frame = await one.get()
            if frame["type"] == "pong":
                self.noticed.pings.append(monotonic() - self._pings.pop(frame["t"]))
                if not self._pings:
                    self._all_answered.set()
            else:
                refused = f"{frame['type']} {frame.get('code', '')}"
                self.noticed.faults.append(f"a ping was answered by {refused}")

    async def _write(self, one: MinimalWebSocket, end: float) -> None:
        """Send a message to a new conversation now and then, each until it is accepted."""
        async for number in beats(MESSAGES_PER_S):
            if (now := monotonic()) >= end:
                return
            self._messages[one] = now
            while not await self._is_accepted(one, f"m{number}"):
                pass
            self.noticed.accepted.append(monotonic() - self._messages.pop(one))

    async def _is_accepted(self, one: MinimalWebSocket, ref: str) -> bool:
        await send(one, ref, ref, 1)
        while True:
            frame = await one.get()
            if frame["type"] == "accepted" and frame["client_msg_id"] == ref:
                return True
            if frame["type"] == "error" and frame.get("ref") == ref:
                await self._refused(frame)
                return False

    async def _refused(self, error: Frame) -> None:
        self.noticed.refusals.append(error["code"])
        await asyncio.sleep(AGAIN_S)
