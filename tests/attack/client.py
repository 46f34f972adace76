"""Code that attacks share: sockets from an address of their own, and counts of the server's answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from tests.chaos.minimal_websocket import CLOSE, PING, PONG, TEXT, MinimalWebSocket, Refused

HOST = "127.0.0.1"
KB = 1024
MB = 1024 * KB
SMALL_BUFFER = 8 * KB
"""Bytes that a socket takes whose attacker reads nothing."""
LATE_S = 0.5
"""If an attacker is later than this, it leaves out what it missed."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """An attack on one server. `keys`: the attackers' keys, if the server asks for some."""

    attack: str
    port: int
    attackers: int
    seconds: float
    keys: tuple[str, ...] = ()
    note: str = ""
    """Result of the attack's preparation."""


class Outcome(msgspec.Struct, kw_only=True):
    """Outcome of an attack. `answers`: number of answers and ends by kind; `sockets`: the most that were open at once."""

    answers: dict[str, int] = {}
    sent_bytes: int = 0
    sockets: int = 0
    opened: int = 0


class _ServerMessage(msgspec.Struct):
    type: str
    code: str = ""


_decode_message = msgspec.json.Decoder(_ServerMessage).decode


class Socket(MinimalWebSocket):
    """A socket that counts its bytes, and the sockets that are open."""

    open_now = 0
    on_sent: Callable[[int], None] | None = None

    def __init__(self, *rest: object) -> None:
        super().__init__(*rest)  # type: ignore[arg-type]
        type(self).open_now += 1

    async def write(self, data: bytes) -> None:
        await super().write(data)
        if self.on_sent is not None:
            self.on_sent(len(data))

    def close(self) -> None:
        super().close()
        type(self).open_now -= 1

    async def discard(self) -> None:
        """Read all that comes, and drop it. Raises Dropped."""
        while True:
            await self._fill()
            self._received.clear()


class Attacker:
    """One life of a socket's attack. `number`: the attacker; `place`: the socket among its own; `life`: earlier lives.

    `small` sockets have a small receive buffer, since nothing is read from them. Methods raise Refused, Dropped, OSError.
    """

    def __init__(
        self,
        job: Job,
        outcome: Outcome,
        *,
        number: int = 0,
        place: int = 0,
        life: int = 0,
        on_news: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_news` is called whenever something is counted."""
        self.job = job
        self.number = number
        self.place = place
        self.life = life
        self._outcome = outcome
        self._on_news = on_news
        self._sockets: list[Socket] = []

    @property
    def client_id(self) -> str:
        """Client id; each attacker is one client."""
        return f"attacker-{self.number}"

    @property
    def socket_id(self) -> str:
        """A client id for this socket alone."""
        return f"{self.client_id}-{self.place}"

    @property
    def key(self) -> str | None:
        """The attacker's key, if there are keys."""
        return self.job.keys[self.number % len(self.job.keys)] if self.job.keys else None

    def count(self, what: str, times: int = 1) -> None:
        """Count an answer of the server."""
        self._outcome.answers[what] = self._outcome.answers.get(what, 0) + times
        self._on_news()

    async def connect(self, *, small: bool = False) -> Socket:
        """Open a TCP connection from the attacker's own address."""
        source, buffer = f"127.0.2.{self.number + 1}", SMALL_BUFFER if small else None
        one = await Socket.connect((HOST, self.job.port), source=source, receive_buffer=buffer)
        one.on_sent = self._sent
        self._sockets.append(one)
        self._outcome.opened += 1
        self._outcome.sockets = max(self._outcome.sockets, Socket.open_now)
        self._on_news()
        return one

    def _sent(self, size: int) -> None:
        self._outcome.sent_bytes += size
        self._on_news()

    async def handshake(self, path: str = "/v1/ws", *, small: bool = False) -> Socket:
        """Open a WebSocket without a hello."""
        one = await self.connect(small=small)
        await one.handshake(path=path)
        return one

    async def send_hello(
        self, client_id: str | None = None, *, small: bool = False, features: Sequence[str] = ()
    ) -> Socket:
        """Open a WebSocket that said hello."""
        one = await self.connect(small=small)
        token = {"token": self.key} if self.key else {}
        await one.send_hello(client_id=client_id or self.client_id, features=features, **token)
        return one

    async def send_paced(
        self, one: Socket, make: Callable[[int], bytes], *, per_s: float, times: int | None = None
    ) -> None:
        """Send what `make` gives for 0, 1, 2, …, so many a second, so often; then keep the socket."""
        async for number in beats(per_s):
            if number == times:
                await asyncio.Event().wait()
            await one.write(make(number))

    async def flood(
        self, one: Socket, make: Callable[[int], bytes], *, per_s: float, times: int | None = None
    ) -> None:
        """Do the same, and count all answers."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.listen(one))
            await self.send_paced(one, make, per_s=per_s, times=times)

    async def trickle(self, one: Socket, rest: bytes, *, per_s: float) -> None:
        """Send bytes one at a time, until the server answers or all are sent; count the answer to an HTTP request."""
        async with asyncio.TaskGroup() as tasks:
            receiving = tasks.create_task(self.receive(one))
            async for number in beats(per_s):
                if receiving.done() or number >= len(rest):
                    break
                await one.write(rest[number : number + 1])

    async def listen(self, one: Socket) -> None:
        """Read all that comes and count it."""
        while True:
            opcode, payload = await one.read()
            if opcode == TEXT:
                self._count_message(payload)
            elif opcode == PING:
                await one.send(payload, opcode=PONG)
            elif opcode == CLOSE:
                raise Refused(int.from_bytes(payload[:2], "big"), payload[2:].decode())

    def _count_message(self, payload: bytes) -> None:
        message = _decode_message(payload)
        self.count(f"{message.type} {message.code}".strip())

    async def answered(self, one: Socket) -> str:
        """Count the next frame; return its type."""
        frame = await one.get()
        self.count(f"{frame['type']} {frame.get('code', '')}".strip())
        return str(frame["type"])

    async def ask(self, request: bytes, one: Socket | None = None) -> None:
        """Send an HTTP request, over a connection of its own if none is given, and count the answer's status."""
        one = one or await self.connect()
        await one.write(request)
        await self.receive(one)

    async def receive(self, one: Socket) -> None:
        """Count the status of an HTTP answer."""
        status, _ = await one.answer()
        self.count(f"HTTP {status}")

    def close(self) -> None:
        """End all open sockets."""
        while self._sockets:
            self._sockets.pop().close()


async def beats(per_s: float) -> AsyncIterator[int]:
    """Count at a steady pace. A short delay is made up for; a longer one is left out."""
    loop, number = asyncio.get_running_loop(), 0
    started = loop.time()
    while True:
        yield number
        number += 1
        late = loop.time() - started - number / per_s
        if late > LATE_S:
            started += late
        await asyncio.sleep(max(0.0, -late))
