"""One reply as server-sent events, as it is written: to its end, to whoever reads in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from connections.http.exchange import Exchange
from sessions.errors import Refused
from sessions.events import Done

PING_S = 10.0
"""Proxies and clients take a stream that is silent for long for a dead one."""


P_co = TypeVar("P_co", covariant=True)
P_contra = TypeVar("P_contra", contravariant=True)
R_contra = TypeVar("R_contra", contravariant=True)


class Reply(Protocol[P_co]):
    """A reply that is being written, of a turn that is kept or not."""

    cut_off: Callable[[], None]

    @property
    def turn_id(self) -> str:
        """Its turn."""

    @property
    def model(self) -> str:
        """Which one writes it."""

    @property
    def ignored(self) -> tuple[str, ...]:
        """Fields of its request that were passed over."""

    @property
    def ended(self) -> Done:
        """Its end."""

    def get_nowait(self) -> P_co | None:
        """The next piece; None where none waits. Raises StopAsyncIteration at the end."""

    async def __anext__(self) -> P_co: ...


R = TypeVar("R", bound=Reply[Any])


class Teller(Protocol[P_contra, R_contra]):
    """Tells a reply in a door's words; what it gives may be nothing."""

    def open(self) -> bytes:
        """What comes at once."""

    def begin(self, reply: R_contra) -> bytes:
        """What comes once the model has read its prompt, before anything that it wrote."""

    def piece(self, piece: P_contra) -> bytes:
        """A piece of the reply."""

    def end(self, reply: R_contra) -> bytes:
        """The end, whichever it is: `begin` was called only where a piece came."""

    def fail(self, refused: Refused) -> bytes:
        """The end of a reply that can't be told to its end."""

    def ping(self) -> bytes:
        """What is said while nothing comes."""


async def stream(exchange: Exchange, reply: R, teller: Teller[Any, R], headers: Mapping[str, str]) -> None:
    """Tells the whole reply. A client that does not read is cut off."""
    reply.cut_off = exchange.cut_off
    await exchange.begin_events(reply.turn_id, headers)
    await _write(exchange, teller.open())
    try:
        await _tell(exchange, reply, teller)
        last = teller.end(reply)
    except Refused as refused:  # its conversation was deleted, or events of it are lost
        last = teller.fail(refused)
    await exchange.write(last, more=False)


async def _tell(exchange: Exchange, reply: R, teller: Teller[Any, R]) -> None:
    """Tells the pieces. Raises Refused."""
    has_begun = False
    with suppress(StopAsyncIteration):
        while True:
            if (piece := await _next(reply)) is None:
                await _write(exchange, teller.ping())
                continue
            first = b"" if has_begun else teller.begin(reply)
            has_begun = True
            await _write(exchange, first + teller.piece(piece))


async def _next(reply: Reply[Any]) -> Any:
    """The next piece; None where none comes in time. Raises StopAsyncIteration at the end."""
    if (piece := reply.get_nowait()) is not None:
        return piece
    try:
        async with asyncio.timeout(PING_S):
            return await reply.__anext__()
    except TimeoutError:
        return None


async def _write(exchange: Exchange, part: bytes) -> None:
    if part:
        await exchange.write(part)
