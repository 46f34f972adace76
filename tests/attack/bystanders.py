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

import msgspec

from tests.attack.attack import beats
from tests.attack.client import HOST
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

    gaps: list[float] = msgspec.field(default_factory=list)
    pings: list[float] = msgspec.field(default_factory=list)
    accepted: list[float] = msgspec.field(default_factory=list)
    refusals: list[str] = msgspec.field(default_factory=list)
    faults: list[str] = msgspec.field(default_factory=list)


class Bystander:
    """One of them: a socket and its observations."""

    def __init__(self, group: int, number: int, key: str | None, noticed: Latencies) -> None:
        self.name = f"neighbour-{group}-{number}"
        self.noticed = noticed
        self.pending: dict[object, float] = {}
        """Unanswered requests, and when they were sent."""
        self._news = asyncio.Event()
        self._source = f"127.1.{group % 250}.{number + 1}"
        self._key = key
        self._socket: MinimalWebSocket | None = None

    @property
    def socket(self) -> MinimalWebSocket:
        """Open."""
        assert self._socket is not None
        return self._socket

    async def come(self, port: int) -> None:
        """Connect and say hello. Raises Refused, Dropped, OSError."""
        self._socket = await MinimalWebSocket.connect((HOST, port), source=self._source)
        await self.socket.send_hello(client_id=self.name, **({"token": self._key} if self._key else {}))

    async def send(self, conversation_id: str, ref: str, words: int) -> None:
        """Send a message. Raises Dropped."""
        await self.socket.put(
            type="send",
            client_msg_id=ref,
            conversation_id=conversation_id,
            content="Count from 1 to 300.",
            params={"max_new_tokens": words},
        )

    def ask(self, what: object) -> None:
        """Note a question."""
        self.pending.setdefault(what, self.now())

    def receive(self, what: object) -> float:
        """Note the answer; return how long it took."""
        self._news.set()
        return self.now() - self.pending.pop(what)

    async def answered(self) -> None:
        """Wait until nothing is unanswered."""
        while self.pending:
            self._news.clear()
            await self._news.wait()

    def close(self) -> None:
        """Leave."""
        if self._socket is not None:
            self._socket.close()

    def now(self) -> float:
        """Return the time of the clock that all times here use."""
        return asyncio.get_running_loop().time()


class Bystanders:
    """The whole group. Use `come`, `notice`, `leave`, in this order."""

    def __init__(self, port: int, keys: tuple[str, ...], *, group: int) -> None:
        self.noticed = Latencies()
        self._port = port
        count = READERS + 1 + WRITERS
        self._people = [
            Bystander(group, number, keys[number] if keys else None, self.noticed) for number in range(count)
        ]
        self._readers = self._people[:READERS]
        self._pinger, *self._writers = self._people[READERS:]
        self._reading: list[asyncio.Task[None]] = []
        self._arrivals: list[list[float]] = [[] for _ in self._readers]
        self._begun = [asyncio.Event() for _ in self._readers]

    async def come(self) -> None:
        """Connect all, and start the replies. Raises TimeoutError, Refused, Dropped, OSError."""
        async with asyncio.timeout(COME_S):
            for person in self._people:
                await person.come(self._port)
            for number, reader in enumerate(self._readers):
                work = _read(reader, self._arrivals[number], self._begun[number])
                self._reading.append(asyncio.create_task(self._careful(work)))
            for begun in self._begun:
                await begun.wait()

    async def notice(self, seconds: float) -> Latencies:
        """Live for so long, then wait for the open answers. Gaps are of those seconds alone."""
        loop = asyncio.get_running_loop()
        begun, end = loop.time(), loop.time() + seconds
        lives = [_ping(self._pinger, end), *(_write(writer, end) for writer in self._writers)]
        listening = asyncio.create_task(self._careful(_receive_pongs(self._pinger)))
        working = [asyncio.create_task(self._careful(life)) for life in lives]
        await asyncio.sleep(end - loop.time())
        self._take_gaps(begun, loop.time())
        await asyncio.wait(working, timeout=LINGER_S)
        await self._last_pongs()
        await _cancel(*working, listening)
        self._take_unanswered()
        return self.noticed

    async def leave(self) -> None:
        """Disconnect all."""
        await _cancel(*self._reading)
        for person in self._people:
            person.close()

    async def _last_pongs(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await self._pinger.answered()

    def _take_gaps(self, begin: float, end: float) -> None:
        """Return the gaps between texts, and the last open one if it is longer than any before it."""
        for arrivals in self._arrivals:
            within = [at for at in arrivals if begin <= at <= end]
            gaps = [later - earlier for earlier, later in pairwise([begin, *within])][1:]
            silence = end - (within[-1] if within else begin)
            self.noticed.gaps += [*gaps, silence] if silence > max(gaps, default=0.0) else gaps

    def _take_unanswered(self) -> None:
        for person, times in (
            (self._pinger, self.noticed.pings),
            *((writer, self.noticed.accepted) for writer in self._writers),
        ):
            times += [person.now() - since for since in person.pending.values()]
            if person.pending:
                self.noticed.faults.append(f"{len(person.pending)} unanswered")

    async def _careful(self, life: Coroutine[None, None, None]) -> None:
        """Run a life; a lost connection is noted as the server's fault."""
        try:
            await life
        except (Refused, Dropped) as error:
            self.noticed.faults.append(f"connection lost: {error}")


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _read(reader: Bystander, arrivals: list[float], begun: asyncio.Event) -> None:
    """Ask for a long reply and read it, again and again."""
    while True:
        await reader.send("read", uuid.uuid4().hex, LONG_REPLY)
        while (frame := await reader.socket.get())["type"] != "done":
            if frame["type"] == "delta":
                arrivals.append(reader.now())
                begun.set()
            elif frame["type"] == "error":
                reader.noticed.refusals.append(frame["code"])
                await asyncio.sleep(AGAIN_S)
                break
        else:
            _judge(reader, frame)


def _judge(reader: Bystander, done: Frame) -> None:
    if done["reason"] not in GOOD_ENDS or not done["saved"]:
        reader.noticed.faults.append(f"a reply ended: {done['reason']}, saved: {done['saved']}")


async def _ping(pinger: Bystander, end: float) -> None:
    async for number in beats(PINGS_PER_S):
        if pinger.now() >= end:
            return
        pinger.ask(number)
        await pinger.socket.put(type="ping", t=number)


async def _receive_pongs(pinger: Bystander) -> None:
    while True:
        frame = await pinger.socket.get()
        if frame["type"] == "pong":
            pinger.noticed.pings.append(pinger.receive(frame["t"]))
        else:
            pinger.noticed.faults.append(f"a ping was answered by {frame['type']} {frame.get('code', '')}")


async def _write(writer: Bystander, end: float) -> None:
    """Send a message to a new conversation now and then, each until it is accepted."""
    async for number in beats(MESSAGES_PER_S):
        if writer.now() >= end:
            return
        await _get_accepted(writer, f"m{number}")


async def _get_accepted(writer: Bystander, ref: str) -> None:
    """Send a message until it is accepted."""
    writer.ask(ref)
    await writer.send(ref, ref, 1)
    while True:
        frame = await writer.socket.get()
        if frame["type"] == "accepted" and frame["client_msg_id"] == ref:
            writer.noticed.accepted.append(writer.receive(ref))
            return
        if frame["type"] == "error" and frame.get("ref") == ref:
            writer.noticed.refusals.append(frame["code"])
            await asyncio.sleep(AGAIN_S)
            await writer.send(ref, ref, 1)
