"""The definition of an attack, for its author and for the code that runs it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.attack.client import Attacker

KB = 1024
MB = 1024 * KB
SMALL_BUFFER = 8 * KB
"""Bytes that a socket takes whose attacker reads nothing."""
LATE_S = 0.5
"""If an attacker is later than this, it leaves out what it missed."""


class TargetKind(StrEnum):
    """The kind of server that is attacked."""

    SCRIPTED = "scripted"
    """The gateway over an engine that says a word every 20 ms, which shows the gateway's own delays exactly."""
    MODEL = "model"
    """The product as it starts, with the demo model, for attacks that reach the tokenizer."""
    KEYS = "keys"
    """As scripted, with API keys and a key set: every client needs a token."""
    SPEECH = "speech"
    """As scripted, with speech recognition: PocketSphinx recognizes the demo's sentences."""
    OPEN = "open"
    """As scripted, with every endpoint open: speech, embeddings, and a tool of its own."""


class Cost(StrEnum):
    """The unit by which an attacker's memory is counted."""

    SOCKET = "socket"
    BODY = "body"

    @property
    def limit_bytes(self) -> int:
        """The limit of memory for one of them."""
        return 512 * KB if self is Cost.SOCKET else 12 * MB


Life = Callable[["Attacker"], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """`run` is the life of one socket. An attacker has so many `sockets`; `together`: all attackers share that number.

    `what` is one sentence that says what a socket does. `warm` makes slow inputs before the clock runs. `prepare` runs once
    before that; its result is the job's note.
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

    def sockets_of(self, attackers: int) -> int:
        """Number of sockets of each of so many attackers."""
        return max(1, self.sockets // attackers) if self.together else self.sockets


class Family:
    """The attacks of one module, in order: each is the life of a socket, or one of the usual lives. `common`: options of all."""

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
        self, name: str, what: str, make: Callable[[Attacker, int], bytes], *, per_s: float, **options: Any
    ) -> None:
        """Note an attack that says hello and sends what `make` gives for 0, 1, 2, …, and counts all answers."""

        async def run(attacker: Attacker) -> None:
            await attacker.flood(await attacker.send_hello(), partial(make, attacker), per_s=per_s)

        self.add(name, what, run, **options)

    def ask(self, name: str, what: str, make: Callable[[], bytes], **options: Any) -> None:
        """Note an attack that connects and sends a request whose making is slow."""

        async def run(attacker: Attacker) -> None:
            await attacker.ask(await attacker.connect(), make())

        self.add(name, what, run, warm=make, **options)

    def ask_often(
        self, name: str, what: str, make: Callable[[Attacker, int], bytes], *, per_s: float, **options: Any
    ) -> None:
        """Note an attack that sends one request after the other over one connection."""

        async def run(attacker: Attacker) -> None:
            one = await attacker.connect()
            async for number in beats(per_s):
                await attacker.ask(one, make(attacker, number))

        self.add(name, what, run, **options)


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
