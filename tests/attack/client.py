"""Code that attacks share: sockets from an address of their own, and counts of the server's answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from tests.attack.attack import beats
from tests.chaos.minimal_websocket import CLOSE, PING, PONG, TEXT, Frame, MinimalWebSocket, Refused

HOST = "127.0.0.1"


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
    """One life of a socket's attack. `number`: the attacker; `place`: the socket among its own; `life`: earlier lives."""

    def __init__(
        self,
        job: Job,
        outcome: Outcome,
        *,
        number: int,
        place: int,
        life: int,
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
    def key(self) -> str | None:
        """The attacker's key, if there are keys."""
        return self.job.keys[self.number % len(self.job.keys)] if self.job.keys else None

    def count(self, what: str, times: int = 1) -> None:
        """Count an answer of the server."""
        self._outcome.answers[what] = self._outcome.answers.get(what, 0) + times
        self._on_news()

    async def connect(self, *, receive_buffer: int | None = None) -> Socket:
        """Open a TCP connection from the attacker's own address. Raises OSError."""
        source = f"127.0.2.{self.number + 1}"
        one = await Socket.connect((HOST, self.job.port), source=source, receive_buffer=receive_buffer)
        one.on_sent = self._sent
        self._sockets.append(one)
        self._outcome.opened += 1
        self._outcome.sockets = max(self._outcome.sockets, Socket.open_now)
        self._on_news()
        return one

    def _sent(self, size: int) -> None:
        self._outcome.sent_bytes += size
        self._on_news()

    async def handshake(self, *, receive_buffer: int | None = None) -> Socket:
        """Open a WebSocket without a hello. Raises Refused, Dropped, OSError."""
        one = await self.connect(receive_buffer=receive_buffer)
        await one.handshake()
        return one

    async def send_hello(
        self,
        client_id: str | None = None,
        *,
        receive_buffer: int | None = None,
        features: tuple[str, ...] = (),
    ) -> Socket:
        """Open a WebSocket that said hello. Raises Refused, Dropped, OSError."""
        one = await self.connect(receive_buffer=receive_buffer)
        hello: Frame = {"client_id": client_id or self.client_id, "features": features}
        await one.send_hello(**hello | ({"token": self.key} if self.key else {}))
        return one

    async def flood(self, one: Socket, make: Callable[[int], bytes], *, per_s: float) -> None:
        """Send what `make` gives for 0, 1, 2, …, so many a second, and count all answers. Raises Refused, Dropped."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.listen(one))
            async for number in beats(per_s):
                await one.write(make(number))

    async def listen(self, one: Socket) -> None:
        """Read all that comes and count it. Raises Refused, Dropped."""
        while True:
            opcode, payload = await one.read()
            if opcode == TEXT:
                frame = _decode_message(payload)
                self.count(f"{frame.type} {frame.code}".strip())
            elif opcode == PING:
                await one.send(payload, opcode=PONG)
            elif opcode == CLOSE:
                raise Refused(int.from_bytes(payload[:2], "big"), payload[2:].decode())

    async def answered(self, one: Socket) -> None:
        """Count the next frame. Raises Refused, Dropped."""
        frame = await one.get()
        self.count(f"{frame['type']} {frame.get('code', '')}".strip())

    async def ask(self, one: Socket, request: bytes) -> None:
        """Send an HTTP request, and count the answer's status. Raises Dropped."""
        await one.write(request)
        await self.receive(one)

    async def receive(self, one: Socket) -> None:
        """Count the status of an HTTP answer. Raises Dropped."""
        status, _ = await one.answer()
        self.count(f"HTTP {status}")

    def close(self) -> None:
        """End all open sockets."""
        while self._sockets:
            self._sockets.pop().close()
