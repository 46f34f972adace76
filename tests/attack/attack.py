"""The definition of an attack, for its author and for the code that runs it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from tests.attack.client import KB, MB, Attacker, Socket, beats


class TargetKind(StrEnum):
    """The kind of server that is attacked."""

    SCRIPTED = "scripted"
    """The gateway over an engine that says a word every 20 ms, which shows the gateway's own delays exactly."""
    MODEL = "model"
    """The product as it starts, with the demo model, for attacks that reach the tokenizer."""
    KEYS = "keys"
    """As scripted, with API keys and a key set: every client needs a token."""
    OPEN = "open"
    """As scripted, with every endpoint open: speech (PocketSphinx), embeddings, and a tool of its own."""


class Cost(StrEnum):
    """The unit by which an attacker's memory is counted."""

    SOCKET = "socket"
    BODY = "body"

    @property
    def limit_bytes(self) -> int:
        """The limit of memory for one of them."""
        return 512 * KB if self is Cost.SOCKET else 12 * MB


Life = Callable[[Attacker], Awaitable[None]]
Open = Callable[[Attacker], Awaitable[Socket]]
Make = Callable[[Attacker, int], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """`run` is the life of one socket. An attacker has so many `sockets`; `together`: all attackers share that number.

    `what` is one sentence that says what a socket does. `warm` makes slow inputs before the clock runs. `prepare` runs once
    before that; its result is the job's note. `expect` is part of an answer that its sockets must get.
    """

    name: str
    what: str
    run: Life
    sockets: int = 1
    together: bool = False
    ground: TargetKind = TargetKind.SCRIPTED
    cost: Cost = Cost.SOCKET
    warm: Callable[[], object] | None = None
    prepare: Callable[[Attacker], Awaitable[str]] | None = None
    expect: str = ""

    def sockets_of(self, attackers: int) -> int:
        """Number of sockets of each of so many attackers."""
        return max(1, self.sockets // attackers) if self.together else self.sockets


async def connect_unread(attacker: Attacker) -> Socket:
    """Open a TCP connection from which nothing will be read."""
    return await attacker.connect(small=True)


async def hello_unread(attacker: Attacker) -> Socket:
    """Open a WebSocket from which nothing will be read."""
    return await attacker.send_hello(small=True)


class Family:
    """The attacks of one module, in order: each is the life of a socket, or one of the usual lives. `common`: options of all.

    Frames and requests are made for each attacker and number, or they are a sequence that is sent in turn.
    """

    def __init__(self, **common: Any) -> None:
        self.attacks: list[Attack] = []
        self._common = common

    def add(self, name: str, what: str, run: Life, **options: Any) -> None:
        """Note an attack."""
        self.attacks.append(Attack(name=name, what=what, run=run, **self._common | options))

    def attack(self, **options: Any) -> Callable[[Life], Life]:
        """Note the decorated life of a socket as an attack of its name; its docstring says what it does."""

        def noted(run: Life) -> Life:
            self.add(run.__name__.replace("_", "-"), (run.__doc__ or "").strip(), run, **options)
            return run

        return noted

    def flood(
        self,
        name: str,
        what: str,
        frames: Make | Sequence[bytes],
        *,
        per_s: float,
        opens: Open = Attacker.send_hello,
        times: int | None = None,
        reads: bool = True,
        **options: Any,
    ) -> None:
        """Note an attack that opens a socket, sends frames at a pace, at most so often, and counts all answers."""

        async def run(attacker: Attacker) -> None:
            one, make = await opens(attacker), partial(_maker(frames), attacker)
            send = attacker.flood if reads else attacker.send_paced
            await send(one, make, per_s=per_s, times=times)

        self.add(name, what, run, **options)

    def unread(
        self,
        name: str,
        what: str,
        frames: Make | Sequence[bytes],
        *,
        per_s: float = 1.0,
        opens: Open = hello_unread,
        **options: Any,
    ) -> None:
        """Note an attack that does the same, and reads nothing."""
        self.flood(name, what, frames, per_s=per_s, opens=opens, reads=False, **options)

    def odd(
        self,
        name: str,
        what: str,
        frames: Sequence[bytes],
        *,
        opens: Open = Attacker.send_hello,
        **options: Any,
    ) -> None:
        """Note an attack that sends bad frames, too few to be cut off for, counts as many answers, and reconnects."""

        async def run(attacker: Attacker) -> None:
            one = await opens(attacker)
            await one.write(b"".join(frames))
            for _ in frames:
                await attacker.answered(one)

        self.add(name, what, run, **options)

    def ask(self, name: str, what: str, make: Callable[[], Sequence[bytes]], **options: Any) -> None:
        """Note an attack that sends requests whose making is slow, each over a connection of its own."""

        async def run(attacker: Attacker) -> None:
            for request in make():
                await attacker.ask(request)
                attacker.close()

        self.add(name, what, run, warm=make, **options)

    def ask_often(
        self, name: str, what: str, requests: Make | Sequence[bytes], *, per_s: float, **options: Any
    ) -> None:
        """Note an attack that sends one request after the other over one connection."""

        async def run(attacker: Attacker) -> None:
            one, make = await attacker.connect(), _maker(requests)
            async for number in beats(per_s):
                await attacker.ask(make(attacker, number), one)

        self.add(name, what, run, **options)

    def visits(
        self,
        name: str,
        what: str,
        visit: Callable[[Attacker], Awaitable[object]],
        *,
        per_s: float,
        **options: Any,
    ) -> None:
        """Note an attack that comes, does something and leaves, so many times a second."""

        async def run(attacker: Attacker) -> None:
            async for _ in beats(per_s):
                await visit(attacker)
                attacker.close()

        self.add(name, what, run, **options)


def _maker(frames: Make | Sequence[bytes]) -> Make:
    return frames if callable(frames) else lambda _, number: frames[number % len(frames)]
