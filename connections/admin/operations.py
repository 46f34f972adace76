"""The acts of operators, on all replicas. They raise the errors that refusals are made of. Knows no HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from connections.admin.replica_requests import (
    NO_ANSWER,
    Disconnect,
    ListConnections,
    ListTurns,
    ReplicaAnswer,
    ReplicaRequest,
    Stop,
    SubjectFilter,
    decode_answer,
    encode,
    first_connections,
    first_turns,
)
from connections.admin.responses import ConnectionsPage, Disconnected, KeyRow, KeysPage, Stopped, TurnsPage
from connections.authentication.access import AccessControl
from connections.authentication.api_keys import ApiKey, Kind
from connections.authentication.identity import KEY
from connections.limits.quotas import Quota, usage_quotas
from connections.limits.quotas import QuotaKind as Counted
from connections.limits.redis_counters import RedisCounters
from sessions.errors import NotFound
from sessions.records import Client
from sessions.replicas.rpc import GatheredAnswers
from sessions.service import Sessions


class AdminOperations:
    """Carries out the acts."""

    def __init__(self, sessions: Sessions, access: AccessControl, counts: RedisCounters | None) -> None:
        self._sessions = sessions
        self._access = access
        self._counts = counts

    async def connections(self, whose: SubjectFilter, *, limit: int, after: str) -> ConnectionsPage:
        """Return a page of connections. Raises StoreDown."""
        gathered = await self._query_replicas(ListConnections(whose, limit + 1, after))
        every = (
            msgspec.structs.replace(row, replica=name)
            for name, one in _replica_answers(gathered)
            for row in one.connections
        )
        rows = first_connections(every, limit + 1)
        more = rows[limit - 1].connection_id if len(rows) > limit else None
        return ConnectionsPage(connections=rows[:limit], next=more, silent=gathered.silent)

    async def turns(self, whose: SubjectFilter, *, limit: int, after: str) -> TurnsPage:
        """Return a page of turns that run or wait. Raises StoreDown."""
        gathered = await self._query_replicas(ListTurns(whose, limit + 1, after))
        every = (
            msgspec.structs.replace(row, replica=name)
            for name, one in _replica_answers(gathered)
            for row in one.turns
        )
        rows = first_turns(every, limit + 1)
        more = rows[limit - 1].turn_id if len(rows) > limit else None
        return TurnsPage(turns=rows[:limit], next=more, silent=gathered.silent)

    async def disconnect(
        self, whose: SubjectFilter, connection_id: str | None = None
    ) -> tuple[SubjectFilter | None, Disconnected]:
        """End one connection, or all of a principal; return the owner of the one. Raises StoreDown, NotFound if there is none."""
        gathered = await self._query_replicas(Disconnect(whose, connection_id))
        ended = sum(one.ended for _, one in _replica_answers(gathered))
        if not ended:
            raise NotFound("There is no such connection." + _unreachable_note(gathered))
        owner = next((one.whose for _, one in _replica_answers(gathered) if one.whose is not None), None)
        return owner, Disconnected(connections=ended, silent=gathered.silent)

    async def stop(self, turn_id: str) -> tuple[SubjectFilter | None, Stopped]:
        """End a turn; return its owner, if known. Raises Refused, NotFound if it does not run."""
        if (stopped := await self._sessions.stop(turn_id)) is not None:
            owner, outcome = stopped
            return SubjectFilter(owner.principal, owner.client_id), Stopped(
                turn_id=turn_id, already=outcome.already
            )
        gathered = await self._query_replicas(Stop(turn_id))
        for _, one in _replica_answers(gathered):
            if one.ended:
                return one.whose, Stopped(turn_id=turn_id, already=one.already)
        raise NotFound("No such turn runs." + _unreachable_note(gathered))

    async def keys(self, *, limit: int, after: str) -> KeysPage:
        """Return a page of the keys, by name, with today's usage. Raises StoreDown."""
        keys = sorted((key for key in self._access.keys if key.name > after), key=lambda key: key.name)
        shown = keys[:limit]
        quota_list = [quota for key in shown for quota in _gauges(key)]
        used = [0] * len(quota_list) if self._counts is None else await self._counts.used(quota_list)
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

    async def _query_replicas(self, question: ReplicaRequest) -> GatheredAnswers:
        return await self._sessions.replicas.ask_all(encode(question).decode())


def _replica_answers(gathered: GatheredAnswers) -> Iterator[tuple[str, ReplicaAnswer]]:
    """Return the answers of the replicas that understood the question."""
    for name, body in gathered.answers:
        yield name, decode_answer(body) if body else NO_ANSWER


def _unreachable_note(gathered: GatheredAnswers) -> str:
    return f" Replicas that did not answer: {', '.join(gathered.silent)}." if gathered.silent else ""


def _gauges(key: ApiKey) -> list[Quota]:
    """Return the messages, replies and tokens of the day."""
    replies, tokens = usage_quotas(Client(f"{KEY}{key.name}", ""))
    return [msgspec.structs.replace(replies, kind=Counted.TODAY), replies, tokens]
