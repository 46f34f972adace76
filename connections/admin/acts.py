"""The acts of operators, on all replicas. They raise the errors that refusals are made of. Knows no HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from connections.admin.questions import (
    NOTHING,
    Answered,
    Disconnect,
    ListConnections,
    ListTurns,
    Question,
    Stop,
    Whose,
    answered,
    encode,
    first_connections,
    first_turns,
)
from connections.admin.telling import ConnectionsPage, Disconnected, KeyRow, KeysPage, Stopped, TurnsPage
from connections.authentication.access import AccessControl
from connections.authentication.api_keys import ApiKey, Kind
from connections.authentication.identity import KEY
from connections.limits.quotas import Gauge, usage_gauges
from connections.limits.quotas import Kind as Counted
from connections.limits.shared_counts import SharedCounts
from sessions.errors import NotFound
from sessions.records import Client
from sessions.replicas.gathering import Gathered
from sessions.service import Sessions


class AdminActs:
    """Carries out the acts."""

    def __init__(self, sessions: Sessions, access: AccessControl, counts: SharedCounts | None) -> None:
        self._sessions = sessions
        self._access = access
        self._counts = counts

    async def connections(self, whose: Whose, *, limit: int, after: str) -> ConnectionsPage:
        """Return a page of connections. Raises StoreDown."""
        told = await self._ask(ListConnections(whose, limit + 1, after))
        every = (
            msgspec.structs.replace(row, replica=name) for name, one in _each(told) for row in one.connections
        )
        rows = first_connections(every, limit + 1)
        more = rows[limit - 1].connection_id if len(rows) > limit else None
        return ConnectionsPage(connections=rows[:limit], next=more, silent=told.silent)

    async def turns(self, whose: Whose, *, limit: int, after: str) -> TurnsPage:
        """Return a page of turns that run or wait. Raises StoreDown."""
        told = await self._ask(ListTurns(whose, limit + 1, after))
        every = (msgspec.structs.replace(row, replica=name) for name, one in _each(told) for row in one.turns)
        rows = first_turns(every, limit + 1)
        more = rows[limit - 1].turn_id if len(rows) > limit else None
        return TurnsPage(turns=rows[:limit], next=more, silent=told.silent)

    async def disconnect(
        self, whose: Whose, connection_id: str | None = None
    ) -> tuple[Whose | None, Disconnected]:
        """End one connection, or all of a principal; return the owner of the one. Raises StoreDown, NotFound if there is none."""
        told = await self._ask(Disconnect(whose, connection_id))
        ended = sum(one.ended for _, one in _each(told))
        if not ended:
            raise NotFound("There is no such connection." + _but_silent(told))
        owner = next((one.whose for _, one in _each(told) if one.whose is not None), None)
        return owner, Disconnected(connections=ended, silent=told.silent)

    async def stop(self, turn_id: str) -> tuple[Whose | None, Stopped]:
        """End a turn; return its owner, if known. Raises Refused, NotFound if it does not run."""
        if (stopped := await self._sessions.stop(turn_id)) is not None:
            owner, met = stopped
            return Whose(owner.principal, owner.client_id), Stopped(turn_id=turn_id, already=met.already)
        told = await self._ask(Stop(turn_id))
        for _, one in _each(told):
            if one.ended:
                return one.whose, Stopped(turn_id=turn_id, already=one.already)
        raise NotFound("No such turn runs." + _but_silent(told))

    async def keys(self, *, limit: int, after: str) -> KeysPage:
        """Return a page of the keys, by name, with today's usage. Raises StoreDown."""
        keys = sorted((key for key in self._access.keys if key.name > after), key=lambda key: key.name)
        shown = keys[:limit]
        gauges = [gauge for key in shown for gauge in _gauges(key)]
        used = [0] * len(gauges) if self._counts is None else await self._counts.used(gauges)
        counts = zip(*[iter(used)] * 3, strict=True)
        now = time.time()
        rows = tuple(
            KeyRow.of(key, (messages, replies, tokens), now=now)
            for key, (messages, replies, tokens) in zip(shown, counts, strict=True)
        )
        return KeysPage(keys=rows, next=shown[-1].name if len(keys) > limit else None)

    def is_person(self, principal: str) -> bool | None:
        """Return whether a principal is one person; None for a removed key."""
        if not principal.startswith(KEY):
            return True
        name = principal.removeprefix(KEY)
        kinds = [key.kind for key in self._access.keys if key.name == name]
        return kinds[0] is Kind.PERSONAL if kinds else None

    async def _ask(self, question: Question) -> Gathered:
        return await self._sessions.replicas.ask_all(encode(question).decode())


def _each(told: Gathered) -> Iterator[tuple[str, Answered]]:
    """Return the answers of the replicas that understood the question."""
    for name, body in told.answers:
        yield name, answered(body) if body else NOTHING


def _but_silent(told: Gathered) -> str:
    return f" Replicas that did not answer: {', '.join(told.silent)}." if told.silent else ""


def _gauges(key: ApiKey) -> list[Gauge]:
    """Return the messages, replies and tokens of the day."""
    replies, tokens = usage_gauges(Client(f"{KEY}{key.name}", ""))
    return [msgspec.structs.replace(replies, kind=Counted.TODAY), replies, tokens]
