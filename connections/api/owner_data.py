"""Exports and erases all stored data of one owner, for the owner or for an operator."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import structlog

from connections.http.exchange import Exchange
from connections.protocol.errors import Close
from connections.protocol.frames import Frame
from sessions.errors import Overloaded
from sessions.limits.shares import AGAIN_MS, FairShare, Subject
from sessions.records import Owner
from sessions.service import Sessions
from sessions.store.owner_data import ExportedConversation, ExportedMessage

AT_ONCE = 16
"""Concurrent exports of this replica, and as many erasures. One owner has one of each, an address half of the free ones."""
PART_S = 10.0
"""Most seconds until the client has read a part of an export, of 64 KiB; one that reads more slowly is cut off."""
LONGEST_S = 600.0
"""Most seconds of an export."""
PART_BYTES = 64 * 1024
_HEADERS = [
    (b"content-type", b"application/x-ndjson; charset=utf-8"),
    (b"content-disposition", b'attachment; filename="conversations.jsonl"'),
    (b"cache-control", b"no-store"),
]

_log = structlog.get_logger("midstream.account")


class Erased(msgspec.Struct, frozen=True):
    """The answer to an erasure."""

    conversations: int


class ExportEnd(msgspec.Struct, frozen=True, tag_field="type", tag="end"):
    """The last line of an export: one without it was cut off."""

    conversations: int


class _Progress:
    """The number of conversations done so far."""

    conversations = 0


class OwnerDataService:
    """Exports and erases. A caller has one of each at a time; erasures do not wait behind slow exports."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._exports = FairShare(AT_ONCE)
        self._erasures = FairShare(AT_ONCE)

    async def export(self, exchange: Exchange, owner: Owner, subject: Subject) -> None:
        """Answer with all conversations and messages, one a line. Raises Refused, ClientDisconnect, TimeoutError."""
        with _slot(self._exports, subject), _logged("exported", owner) as tally:
            async with asyncio.timeout(LONGEST_S):
                await exchange.cancel_on_disconnect(self._export(exchange, owner, tally))

    async def _export(self, exchange: Exchange, owner: Owner, tally: _Progress) -> None:
        rows = self._sessions.export(owner)
        lines = _line(await anext(rows, None))  # a store outage shows before the answer begins
        tally.conversations = int(bool(lines))
        await exchange.begin(_HEADERS)
        async for one in rows:
            tally.conversations += isinstance(one, ExportedConversation)
            lines += _line(one)
            if len(lines) >= PART_BYTES:
                await _write(exchange, bytes(lines))
                lines.clear()
        lines += _line(ExportEnd(tally.conversations))
        await _write(exchange, bytes(lines), more=False)

    async def erase(self, owner: Owner, subject: Subject) -> int:
        """Erase, and return the number of conversations. Goes on if the client leaves: nobody wants half an erasure.

        Raises Refused.
        """
        return await asyncio.shield(asyncio.ensure_future(self._erase(owner, subject)))

    async def _erase(self, owner: Owner, subject: Subject) -> int:
        with _slot(self._erasures, subject), _logged("erased", owner) as tally:
            async for _ in self._sessions.erase(owner):
                tally.conversations += 1
        return tally.conversations


async def _write(exchange: Exchange, part: bytes, *, more: bool = True) -> None:
    """Raises TimeoutError, ClientDisconnect."""
    async with asyncio.timeout(PART_S):
        await exchange.write(part, more=more)


class AbortOnRevocation:
    """Cuts an answer off when the caller's key is revoked, or the JWT expires."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def push(self, frame: Frame) -> None:  # noqa: ARG002 - the answer has no place for it
        """Do nothing: only the end matters, and the token can't be renewed here."""
        self._exchange.cut_off()

    def shut(self, close: Close) -> None:
        """Do nothing: it is cut off already."""


@contextmanager
def _slot(shares: FairShare, subject: Subject) -> Iterator[None]:
    """Limit the concurrent ones. Raises Overloaded."""
    if not shares.has_capacity_for(subject):
        raise Overloaded(
            "The server is running as many exports or erasures as it can.", retry_after_ms=AGAIN_MS
        )
    shares.take(subject)
    try:
        yield
    finally:
        shares.give_back(subject)


@contextmanager
def _logged(event: str, owner: Owner) -> Iterator[_Progress]:
    """Log what was done, also if it was cut short."""
    tally, is_done = _Progress(), False
    try:
        yield tally
        is_done = True
    finally:
        cut = {} if is_done else {"cut_short": True}
        _log.info(event, principal=owner.principal, conversations=tally.conversations, **cut)


def _line(row: ExportedConversation | ExportedMessage | ExportEnd | None) -> bytearray:
    return bytearray() if row is None else bytearray(msgspec.json.encode(row) + b"\n")
