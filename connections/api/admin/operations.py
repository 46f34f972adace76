"""The acts of operators on all replicas: what each replica is asked, its answer, and the pages made of them. Knows no HTTP."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import msgspec
import structlog

from connections.authentication.access import AccessControl
from connections.authentication.api_keys import ApiKey, Kind
from connections.manager import ConnectionLifecycle, ManagedConnection
from connections.protocol.errors import Close, CloseCode
from connections.protocol.frames import Error
from sessions.errors import Forbidden, NotFound
from sessions.limits.quotas import Quota, RedisCounters, usage_quotas
from sessions.limits.quotas import QuotaKind as Counted
from sessions.records import KEY, Client
from sessions.replicas.rpc import GatheredAnswers
from sessions.running.turn_list import ListedTurn
from sessions.service import Sessions

ENDED = "The operator ended this connection."
_log = structlog.get_logger("midstream.admin")
encode = msgspec.json.Encoder().encode


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


class SubjectFilter(msgspec.Struct, frozen=True):
    """A subject; None: anybody. For turns, `client_id` is the owner's, which a person does not have."""

    principal: str | None = None
    client_id: str | None = None

    def matches(self, principal: str, client_id: str) -> bool:
        """Return whether this one is meant."""
        return self.principal in (None, principal) and self.client_id in (None, client_id)


class ListConnections(msgspec.Struct, frozen=True, tag="connections"):
    """At most `limit` connections with ids after `after`, in order."""

    whose: SubjectFilter
    limit: int
    after: str = ""


class ListTurns(msgspec.Struct, frozen=True, tag="turns"):
    """The same of turns."""

    whose: SubjectFilter
    limit: int
    after: str = ""


class Disconnect(msgspec.Struct, frozen=True, tag="disconnect"):
    """End one connection, or all of a subject."""

    whose: SubjectFilter
    connection_id: str | None = None


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End a turn without a conversation."""

    turn_id: str


ReplicaRequest = ListConnections | ListTurns | Disconnect | Stop


class ConnectionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A connection. `opened_at`: Unix milliseconds; `waiting_bytes`: the bytes that wait for its reader."""

    connection_id: str
    door: str
    principal: str
    client_id: str
    opened_at: int
    waiting_bytes: int
    replica: str = ""

    @classmethod
    def of(cls, one: ManagedConnection, opened_at: float) -> ConnectionRow:
        """Describe a connection. `opened_at`: Unix seconds."""
        return cls(
            connection_id=one.connection_id,
            door=one.endpoint,
            principal=one.caller.client.principal,
            client_id=one.caller.client.client_id,
            opened_at=int(opened_at * 1000),
            waiting_bytes=one.waiting_bytes,
        )


class TurnRow(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that runs or waits. `principal`, `client_id`: its owner's; the latter is empty for a person. `chars`: the length of its reply so far."""

    turn_id: str
    conversation_id: str | None
    principal: str
    client_id: str
    state: str
    chars: int
    model: str
    replica: str = ""

    @classmethod
    def of(cls, one: ListedTurn) -> TurnRow:
        """Describe a turn."""
        return cls(
            turn_id=one.turn_id,
            conversation_id=one.conversation_id,
            principal=one.owner.principal,
            client_id=one.owner.client_id,
            state=one.state,
            chars=one.chars,
            model=one.model,
        )


class ReplicaAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of one replica. `ended`: the number of ended connections, or whether the turn was ended; `already`: its end was decided before.

    `whose`: the owner of the one connection or turn.
    """

    connections: tuple[ConnectionRow, ...] = ()
    turns: tuple[TurnRow, ...] = ()
    ended: int = 0
    already: bool = False
    whose: SubjectFilter | None = None


NO_ANSWER = ReplicaAnswer()
_decode_request = msgspec.json.Decoder(ReplicaRequest).decode
decode_answer = msgspec.json.Decoder(ReplicaAnswer).decode


class ReplicaRequestHandler:
    """Answers for this replica. Synchronous."""

    def __init__(self, sessions: Sessions, lifecycle: ConnectionLifecycle) -> None:
        self._sessions = sessions
        self._lifecycle = lifecycle

    def handle(self, body: str) -> str:
        """Answer a question, both as JSON; the answer is empty if the question is from another version."""
        try:
            question = _decode_request(body)
        except msgspec.DecodeError:
            _log.warning("unknown replica request")
            return ""
        return encode(self.answer(question)).decode()

    def answer(self, question: ReplicaRequest) -> ReplicaAnswer:
        """The answer."""
        match question:
            case ListConnections(whose, limit, after):
                rows = (
                    ConnectionRow.of(one, at)
                    for one, at in self._matching(whose)
                    if one.connection_id > after
                )
                return ReplicaAnswer(connections=first_connections(rows, limit))
            case ListTurns(whose, limit, after):
                turns = (TurnRow.of(one) for one in self._sessions.running_turns() if one.turn_id > after)
                mine = (row for row in turns if whose.matches(row.principal, row.client_id))
                return ReplicaAnswer(turns=first_turns(mine, limit))
            case Disconnect(whose, connection_id):
                matching = [
                    one for one, _ in self._matching(whose) if connection_id in (None, one.connection_id)
                ]
                for one in matching:
                    _end(one)
                return ReplicaAnswer(ended=len(matching), whose=_one(matching) if connection_id else None)
            case Stop(turn_id):
                owner = next(
                    (one.owner for one in self._sessions.running_turns() if one.turn_id == turn_id), None
                )
                ended = self._sessions.ephemeral.cancel(turn_id)
                theirs = None if owner is None else SubjectFilter(owner.principal, owner.client_id)
                return ReplicaAnswer(ended=int(ended is not None), already=ended is False, whose=theirs)

    def _matching(self, whose: SubjectFilter) -> list[tuple[ManagedConnection, float]]:
        return [
            (one, at)
            for one, at in self._lifecycle.connections()
            if whose.matches(one.caller.client.principal, one.caller.client.client_id)
        ]


def first_connections(rows: Iterable[ConnectionRow], limit: int) -> tuple[ConnectionRow, ...]:
    """Return so many of them, by id."""
    return tuple(heapq.nsmallest(limit, rows, key=lambda row: row.connection_id))


def first_turns(rows: Iterable[TurnRow], limit: int) -> tuple[TurnRow, ...]:
    """Return so many of them, by id."""
    return tuple(heapq.nsmallest(limit, rows, key=lambda row: row.turn_id))


def _one(matching: list[ManagedConnection]) -> SubjectFilter | None:
    """Return the owner of a connection."""
    client = matching[0].caller.client if matching else None
    return None if client is None else SubjectFilter(client.principal, client.client_id)


def _end(connection: ManagedConnection) -> None:
    """Close a client's connection, so that it does not reconnect by itself."""
    connection.push(Error(code=Forbidden.code, message=ENDED, retryable=False))
    connection.shut(Close(CloseCode.FORBIDDEN, ENDED))


class ConnectionsPage(msgspec.Struct, frozen=True, kw_only=True):
    """`next`: what `after` is for the next page; null: there is none. `silent`: replicas that did not answer."""

    connections: tuple[ConnectionRow, ...]
    next: str | None
    silent: tuple[str, ...]


class TurnsPage(msgspec.Struct, frozen=True, kw_only=True):
    """The same of turns."""

    turns: tuple[TurnRow, ...]
    next: str | None
    silent: tuple[str, ...]


class Disconnected(msgspec.Struct, frozen=True, kw_only=True):
    """The number of ended connections."""

    connections: int
    silent: tuple[str, ...]


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """An ended turn. `already`: its end was decided before."""

    turn_id: str
    already: bool


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A key, its terms, and its usage since midnight UTC. `messages_today` null: without a limit they are not counted."""

    name: str
    kind: str
    note: str
    expires_at: str | None
    expired: bool
    scopes: tuple[str, ...]
    models: tuple[str, ...]
    messages_per_minute: int | None
    messages_per_day: int | None
    tokens_per_day: int | None
    messages_today: int | None
    replies_today: int
    tokens_today: int

    @classmethod
    def of(cls, key: ApiKey, used: tuple[int, int, int], *, now: float) -> KeyRow:
        """`used`: messages, replies, tokens."""
        policy, at = key.policy, key.policy.expires_at
        messages, replies, tokens = used
        return cls(
            name=key.name,
            kind=key.kind,
            note=key.note,
            expires_at=None if at is None else datetime.fromtimestamp(at, UTC).isoformat(),
            expired=policy.has_expired(now),
            scopes=tuple(sorted(policy.grant.scopes)),
            models=tuple(sorted(policy.grant.models)),
            messages_per_minute=policy.allowance.messages_per_minute,
            messages_per_day=policy.allowance.messages_per_day,
            tokens_per_day=policy.allowance.tokens_per_day,
            messages_today=None if policy.allowance.messages_per_day is None else messages,
            replies_today=replies,
            tokens_today=tokens,
        )


class KeysPage(msgspec.Struct, frozen=True, kw_only=True):
    """Keys by name."""

    keys: tuple[KeyRow, ...]
    next: str | None
