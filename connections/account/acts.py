"""Gives out all that is kept of one owner, and erases it: for the owner, or for an operator."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import structlog

from connections.http.exchange import Exchange
from sessions.errors import Overloaded
from sessions.records import Owner
from sessions.running.admission import AGAIN_MS
from sessions.service import Sessions
from sessions.store.belongings import ExportedConversation

AT_ONCE = 4
"""Exports and erasures that this replica does at a time."""
LONGEST_S = 600.0
"""An export that its client reads slower is cut off."""
PART_BYTES = 64 * 1024
_HEADERS = [
    (b"content-type", b"application/x-ndjson; charset=utf-8"),
    (b"content-disposition", b'attachment; filename="conversations.jsonl"'),
    (b"cache-control", b"no-store"),
]

_log = structlog.get_logger("midstream.account")


class Erased(msgspec.Struct, frozen=True):
    """What was erased."""

    conversations: int


class ExportEnd(msgspec.Struct, frozen=True, tag_field="type", tag="end"):
    """The last line of an export: one without it was cut off."""

    conversations: int


class OwnersActs:
    """Does it."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._running = 0

    @contextmanager
    def place(self) -> Iterator[None]:
        """Few do it at a time. Raises Overloaded."""
        if self._running >= AT_ONCE:
            raise Overloaded("The server does as much of this as it can.", retry_after_ms=AGAIN_MS)
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    async def export(self, exchange: Exchange, owner: Owner) -> None:
        """Answers with all conversations and messages, one a line. Raises Refused, ClientDisconnect, TimeoutError."""
        async with asyncio.timeout(LONGEST_S):
            await exchange.while_there(self._told(exchange, owner))

    async def _told(self, exchange: Exchange, owner: Owner) -> None:
        lines = bytearray()
        conversations = 0
        await exchange.begin(_HEADERS)
        async for one in self._sessions.export(owner):
            conversations += isinstance(one, ExportedConversation)
            lines += msgspec.json.encode(one) + b"\n"
            if len(lines) >= PART_BYTES:
                await exchange.write(bytes(lines))
                lines.clear()
        lines += msgspec.json.encode(ExportEnd(conversations)) + b"\n"
        await exchange.write(bytes(lines), more=False)
        _log.info("exported", principal=owner.principal, conversations=conversations)

    async def erase(self, owner: Owner) -> int:
        """How many conversations were erased. Goes on though its client leaves: half of it erased is what nobody asked for."""
        erased = await asyncio.shield(asyncio.ensure_future(self._sessions.erase(owner)))
        _log.info("erased", principal=owner.principal, conversations=erased)
        return erased
