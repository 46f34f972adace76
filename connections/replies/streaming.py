"""One reply as server-sent events, as it is written: to its end, to whoever reads in time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from connections.http.exchange import Exchange
from sessions.running.ephemeral_reply import EphemeralReply
from sessions.running.waiting_pieces import Piece

PING_S = 10.0
"""Proxies and clients take a stream that is silent for long for a dead one."""


class Teller(Protocol):
    """Tells a reply in a door's words; what it gives may be nothing."""

    def open(self) -> bytes:
        """What comes at once."""

    def begin(self, reply: EphemeralReply) -> bytes:
        """What comes once the model has read its prompt, before anything that it wrote."""

    def piece(self, piece: Piece) -> bytes:
        """A piece of the reply."""

    def end(self, reply: EphemeralReply) -> bytes:
        """The end, whichever it is: `begin` was called only where a piece came."""

    def ping(self) -> bytes:
        """What is said while nothing comes."""


async def stream(
    exchange: Exchange, reply: EphemeralReply, teller: Teller, headers: Mapping[str, str]
) -> None:
    """Tells the whole reply. A client that does not read is cut off."""
    reply.cut_off = exchange.cut_off
    await exchange.begin_events(reply.turn_id, headers)
    await _write(exchange, teller.open())
    has_begun = False
    with suppress(StopAsyncIteration):
        while True:
            if (piece := await _next(reply)) is None:
                await _write(exchange, teller.ping())
                continue
            first = b"" if has_begun else teller.begin(reply)
            has_begun = True
            await _write(exchange, first + teller.piece(piece))
    await exchange.write(teller.end(reply), more=False)


async def _next(reply: EphemeralReply) -> Piece | None:
    """The next piece; None where none comes in time. Raises StopAsyncIteration at the end."""
    if (piece := reply.get_nowait()) is not None:
        return piece
    try:
        async with asyncio.timeout(PING_S):
            return await anext(reply)
    except TimeoutError:
        return None


async def _write(exchange: Exchange, part: bytes) -> None:
    if part:
        await exchange.write(part)
