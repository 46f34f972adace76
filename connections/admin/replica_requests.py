"""The questions of replicas to each other for an operator, and the answers: local connections and turns."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import msgspec
import structlog

from connections.manager import ConnectionLifecycle, ManagedConnection
from connections.protocol.errors import Close, CloseCode
from connections.protocol.frames import Error
from sessions.errors import Forbidden
from sessions.running.turn_list import ListedTurn
from sessions.service import Sessions

ENDED = "The operator ended this connection."

_log = structlog.get_logger("midstream.admin")


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
encode = msgspec.json.Encoder().encode
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
