"""The admin API below `/v1/admin/`, for operators' keys only."""

from __future__ import annotations

import heapq
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import TypeVar

import msgspec
import structlog
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from connections.api.endpoint import AbortOnRevocation, Erased, OwnerDataService
from connections.authentication.access import AccessControl
from connections.authentication.api_keys import ANONYMOUS, ApiKey, Kind
from connections.authentication.caller import group_of
from connections.connection import Connection
from connections.http import (
    EndpointName,
    Exchange,
    json_response,
    parse_client_id,
    parse_id,
)
from connections.limiters import Limiters
from connections.manager import ConnectionLifecycle
from connections.protocol.base import AUDIT_LOGGER
from connections.protocol.errors import BadParams, Close, CloseCode, Unauthenticated
from connections.protocol.frames import Error
from sessions.conversation.conversation import incident
from sessions.errors import Forbidden, NotFound, Refused
from sessions.limits.quotas import Quota, usage_quotas
from sessions.limits.quotas import QuotaKind as Counted
from sessions.limits.rates import FrameCost, RateLimited
from sessions.limits.shares import Subject
from sessions.limits.slots import on_behalf_of
from sessions.records import KEY, Client, Owner
from sessions.replicas.rpc import GatheredAnswers
from sessions.running.turn_list import ListedTurn
from sessions.service import Sessions

PATH = "/v1/admin"
AuditDetails = dict[str, str | int]
"""An act's subject and extent, for the log."""
AdminAction = Callable[[Exchange, AuditDetails], Awaitable[None]]
MOST = 200
FEW = 50
_LONGEST = 4096
_PRINCIPAL = re.compile(r"key:[A-Za-z0-9._@-]{1,64}|jwt:[A-Za-z0-9._~@:|%-]{1,3060}|anonymous")
"""A principal as lists show it: unusual characters of a JWT's subject are percent-encoded."""
_NO_PRINCIPAL = "must be key:NAME, jwt:SUBJECT or anonymous, as in the lists."
Query = Mapping[str, str]
Row = TypeVar("Row", "ConnectionRow", "TurnRow")
ENDED = "The operator closed this connection."
_log = structlog.get_logger("midstream.admin")
_audit_log = structlog.wrap_logger(
    logging.getLogger(AUDIT_LOGGER), wrapper_class=structlog.stdlib.BoundLogger
)
encode = msgspec.json.Encoder().encode


class AdminEndpoint:
    """Answers operators' requests. Pages of other origins can't read its answers."""

    def __init__(
        self, *, sessions: Sessions, owners: OwnerDataService, access: AccessControl, limiters: Limiters
    ) -> None:
        self._sessions = sessions
        self._owners = owners
        self._access = access
        self._limiters = limiters

    def routes(self) -> list[BaseRoute]:
        """Return the routes below `/v1`."""
        connections = {
            "GET": ("list connections", self._list_connections),
            "DELETE": ("disconnect", self._disconnect),
        }
        return [
            self._route("/connections", connections),
            self._route("/connections/{connection_id}", {"DELETE": ("disconnect", self._disconnect_one)}),
            self._route("/turns", {"GET": ("list turns", self._list_turns)}),
            self._route("/turns/{turn_id}", {"DELETE": ("stop turn", self._stop)}),
            self._route("/export", {"GET": ("export", self._export)}),
            self._route("/owner", {"DELETE": ("erase", self._erase)}),
            self._route("/keys", {"GET": ("list keys", self._list_keys)}),
        ]

    def _route(self, path: str, acts: Mapping[str, tuple[str, AdminAction]]) -> BaseRoute:
        """`acts`: the acts by method, each with its name in the log."""
        serve = {method: partial(self._serve, name, act) for method, (name, act) in acts.items()}
        return Route(f"{PATH}{path}", _AdminRoute(serve), methods=list(serve))

    async def _serve(self, name: str, act: AdminAction, exchange: Exchange) -> None:
        operator: str | None = None
        on: AuditDetails = {}
        note = partial(log_act, act=name, on=on)
        try:
            identity = self._access.identify_operator(
                authorization=exchange.request.headers.get("authorization")
            )
            operator = identity.name
            self._limiters.rates.take(FrameCost.READ, Subject(f"/admin/{operator}", ""))
            with (
                on_behalf_of(f"/admin/{operator}"),
                self._access.watch(identity, AbortOnRevocation(exchange)),
            ):
                await act(exchange, on)
        except Unauthenticated as why:
            if may_log(self._limiters, exchange.request.scope):
                note(operator=None, outcome=why.code)
            await self._limiters.refuse(exchange, EndpointName.ADMIN, why)
        except Refused as why:
            note(operator=operator, outcome=why.code)
            await self._limiters.refuse(exchange, EndpointName.ADMIN, why)
        except (ClientDisconnect, TimeoutError):
            note(operator=operator, outcome="cut off")
            exchange.cut_off()
        except Exception:  # noqa: BLE001 - a task's boundary: the operator gets the number that is in the log
            note(operator=operator, outcome="failed")
            await self._limiters.refuse(exchange, EndpointName.ADMIN, incident())
        except BaseException:
            note(operator=operator, outcome="cut off")
            raise
        else:
            note(operator=operator, outcome="done")

    async def _list_connections(self, exchange: Exchange, on: AuditDetails) -> None:
        page = await self._page(
            exchange, on, ListConnections, lambda one: one.connections, id_field="connection_id"
        )
        on["connections"] = len(page[0])
        await exchange.answer(json_response(ConnectionsPage(*page)))

    async def _list_turns(self, exchange: Exchange, on: AuditDetails) -> None:
        page = await self._page(exchange, on, ListTurns, lambda one: one.turns, id_field="turn_id")
        on["turns"] = len(page[0])
        await exchange.answer(json_response(TurnsPage(*page)))

    async def _page(
        self,
        exchange: Exchange,
        on: AuditDetails,
        question: type[ListConnections | ListTurns],
        rows_of: Callable[[ReplicaAnswer], Iterable[Row]],
        *,
        id_field: str,
    ) -> tuple[tuple[Row, ...], str | None, tuple[str, ...]]:
        """Return a page of rows, the id before the next page, and the replicas that did not answer. Raises Refused."""
        query = exchange.request.query_params
        whose, (limit, after) = _noted(query, on), parse_page(query)
        gathered = await self._query_replicas(question(whose, limit + 1, after))
        every = (
            msgspec.structs.replace(row, replica=name)
            for name, one in _replica_answers(gathered)
            for row in rows_of(one)
        )
        rows = _first(every, limit + 1, id_field)
        more: str | None = getattr(rows[limit - 1], id_field) if len(rows) > limit else None
        return rows[:limit], more, gathered.silent

    async def _disconnect(self, exchange: Exchange, on: AuditDetails) -> None:
        whose = _noted(exchange.request.query_params, on, is_needed=True)
        ended = await self._end_connections(Disconnect(whose), on)
        on["connections"] = ended.connections
        await exchange.answer(json_response(ended))

    async def _disconnect_one(self, exchange: Exchange, on: AuditDetails) -> None:
        on["connection_id"] = connection_id = _named(exchange, "connection_id")
        ended = await self._end_connections(Disconnect(parse_subject({}), connection_id), on)
        await exchange.answer(json_response(ended))

    async def _end_connections(self, question: Disconnect, on: AuditDetails) -> Disconnected:
        """End connections, and note the owner of a single one. Raises StoreDown; NotFound if there is none."""
        gathered = await self._query_replicas(question)
        answers = [one for _, one in _replica_answers(gathered)]
        ended = sum(one.ended for one in answers)
        if not ended:
            raise NotFound("Connection not found." + _unreachable_note(gathered))
        _note(next((one.whose for one in answers if one.whose is not None), None), on)
        return Disconnected(connections=ended, silent=gathered.silent)

    async def _stop(self, exchange: Exchange, on: AuditDetails) -> None:
        on["turn_id"] = turn_id = _named(exchange, "turn_id")
        if (stopped := await self._sessions.stop(turn_id)) is not None:
            owner, outcome = stopped
            _note(SubjectFilter(owner.principal, owner.client_id), on)
            already = outcome.already
        else:
            gathered = await self._query_replicas(Stop(turn_id))
            found = next((one for _, one in _replica_answers(gathered) if one.ended), None)
            if found is None:
                raise NotFound("No running turn has this ID." + _unreachable_note(gathered))
            _note(found.whose, on)
            already = found.already
        await exchange.answer(json_response(Stopped(turn_id=turn_id, already=already)))

    async def _export(self, exchange: Exchange, on: AuditDetails) -> None:
        owner = self._owner(exchange, on)
        await self._owners.export(exchange, owner, _by_operator(owner))

    async def _erase(self, exchange: Exchange, on: AuditDetails) -> None:
        owner = self._owner(exchange, on)
        on["conversations"] = erased = await self._owners.erase(owner, _by_operator(owner))
        await exchange.answer(json_response(Erased(erased)))

    def _owner(self, exchange: Exchange, on: AuditDetails) -> Owner:
        """Return the owner that a request names, and note it for the log. Raises BadParams."""
        owner = parse_owner(exchange.request.query_params, self._is_person)
        on |= {"principal": owner.principal, "client_id": owner.client_id}
        return owner

    def _is_person(self, principal: str) -> bool | None:
        """Return whether a principal is one person; None for a removed key."""
        if not principal.startswith(KEY):
            return True
        name = principal.removeprefix(KEY)
        kinds = [key.kind for key in self._access.keys if key.name == name]
        return kinds[0] is Kind.PERSONAL if kinds else None

    async def _list_keys(self, exchange: Exchange, on: AuditDetails) -> None:
        """Answer with a page of the keys, by name, with today's usage. Raises Refused."""
        limit, after = parse_page(exchange.request.query_params)
        keys = sorted((key for key in self._access.keys if key.name > after), key=lambda key: key.name)
        shown, counts = keys[:limit], self._limiters.counts
        quota_list = [quota for key in shown for quota in _gauges(key)]
        used = iter([0] * len(quota_list) if counts is None else await counts.used(quota_list))
        now = time.time()
        rows = tuple(
            KeyRow.of(key, (messages, replies, tokens), now=now)
            for key, messages, replies, tokens in zip(shown, used, used, used, strict=True)
        )
        on["keys"] = len(rows)
        more = shown[-1].name if len(keys) > limit else None
        await exchange.answer(json_response(KeysPage(keys=rows, next=more)))

    async def _query_replicas(self, question: ReplicaRequest) -> GatheredAnswers:
        return await self._sessions.replicas.ask_all(encode(question).decode())


class _AdminRoute:
    """A route's ASGI application, as an object: Starlette treats functions differently."""

    def __init__(self, serve: Mapping[str, Callable[[Exchange], Awaitable[None]]]) -> None:
        """`serve`: by method."""
        self._serve = dict(serve)
        if "GET" in serve:  # Starlette accepts HEAD wherever it accepts GET
            self._serve["HEAD"] = serve["GET"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._serve[scope["method"]](Exchange(scope, receive, send))


def _by_operator(owner: Owner) -> Subject:
    """Return the subject of operators' exports and erasures: not the owner's own."""
    return Subject(f"/admin/{owner}")


def _noted(query: Query, on: AuditDetails, *, is_needed: bool = False) -> SubjectFilter:
    """Return the owner that a request is about, and note it for the log. Raises BadParams."""
    whose = parse_subject(query, is_needed=is_needed)
    _note(whose, on)
    return whose


def _note(whose: SubjectFilter | None, on: AuditDetails) -> None:
    if whose is not None:
        on |= {name: value for name, value in msgspec.structs.asdict(whose).items() if value is not None}


def _named(exchange: Exchange, field: str) -> str:
    """Return the path's `field`. Raises BadParams."""
    return parse_id(field, exchange.request.path_params[field])


def parse_subject(query: Query, *, is_needed: bool = False) -> SubjectFilter:
    """Return the subject of a request. Raises BadParams."""
    found = SubjectFilter(
        _principal(query), None if (name := query.get("client_id")) is None else parse_client_id(name)
    )
    if is_needed and found.principal is None:
        raise BadParams("is missing. Name the principal whose connections to close.", field="principal")
    return found


def parse_page(query: Query) -> tuple[int, str]:
    """Return `limit`, and `after` (empty: the first page). Raises BadParams."""
    text = query.get("limit", str(FEW))
    if not (text.isascii() and text.isdigit() and len(text) < 5 and 1 <= int(text) <= MOST):  # noqa: PLR2004 - digits
        raise BadParams(f"must be a whole number from 1 to {MOST}.", field="limit")
    return int(text), _short(query, "after") or ""


def parse_owner(query: Query, is_person: Callable[[str], bool | None]) -> Owner:
    """Return the owner of conversations. `is_person`: whether a principal is one; None: unknown. Raises BadParams."""
    if (principal := _principal(query)) is None:
        raise BadParams(_NO_PRINCIPAL, field="principal")
    given = query.get("client_id")
    client_id = "" if given is None else parse_client_id(given)
    person = False if principal == ANONYMOUS.principal else is_person(principal)
    if person is False and not client_id:
        raise BadParams("is required, since this principal has many users.", field="client_id")
    if person and client_id:
        raise BadParams("must be left out: all devices of a person are one owner.", field="client_id")
    return Owner(principal, client_id)


def _principal(query: Query) -> str | None:
    """Return the principal that a request names. An invalid one, perhaps a key, is neither repeated nor logged. Raises BadParams."""
    principal = query.get("principal")
    if principal is not None and not _PRINCIPAL.fullmatch(principal):
        raise BadParams(_NO_PRINCIPAL, field="principal")
    return principal


def _short(query: Query, field: str) -> str | None:
    value = query.get(field)
    if value is not None and not 0 < len(value) <= _LONGEST:
        raise BadParams(f"must have 1 to {_LONGEST} characters.", field=field)
    return value


def _replica_answers(gathered: GatheredAnswers) -> Iterator[tuple[str, ReplicaAnswer]]:
    """Yield the replicas' answers; NO_ANSWER for another version's."""
    for name, body in gathered.answers:
        yield name, decode_answer(body) if body else NO_ANSWER


def _unreachable_note(gathered: GatheredAnswers) -> str:
    return f" Replicas that did not answer: {', '.join(gathered.silent)}." if gathered.silent else ""


def _gauges(key: ApiKey) -> list[Quota]:
    """Return the day's quotas: messages, replies, tokens."""
    replies, tokens = usage_quotas(Client(f"{KEY}{key.name}", ""))
    return [msgspec.structs.replace(replies, kind=Counted.TODAY), replies, tokens]


class SubjectFilter(msgspec.Struct, frozen=True):
    """A subject; None: anybody. For turns, `client_id` is the owner's: empty for a person."""

    principal: str | None = None
    client_id: str | None = None

    def matches(self, principal: str, client_id: str) -> bool:
        """Return whether a client matches."""
        return self.principal in (None, principal) and self.client_id in (None, client_id)


class ListRequest(msgspec.Struct, frozen=True):
    """At most `limit` rows with ids after `after`, in order."""

    whose: SubjectFilter
    limit: int
    after: str = ""


class ListConnections(ListRequest, frozen=True, tag="connections"):
    """List connections."""


class ListTurns(ListRequest, frozen=True, tag="turns"):
    """List turns that run or wait."""


class Disconnect(msgspec.Struct, frozen=True, tag="disconnect"):
    """End a connection, or all of a subject's."""

    whose: SubjectFilter
    connection_id: str | None = None


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End a turn outside conversations."""

    turn_id: str


ReplicaRequest = ListConnections | ListTurns | Disconnect | Stop


class ConnectionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A connection. `opened_at`: Unix milliseconds; `waiting_bytes`: the bytes that wait for its reader."""

    connection_id: str
    api: str
    principal: str
    client_id: str
    opened_at: int
    waiting_bytes: int
    replica: str = ""

    @classmethod
    def of(cls, one: Connection, opened_at: float) -> ConnectionRow:
        """Describe a connection. `opened_at`: Unix seconds."""
        return cls(
            connection_id=one.connection_id,
            api=one.endpoint,
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
    """The answer of one replica. `ended`: the number of ended connections, or 1 if the turn was found.

    `already`: its end was decided before. `whose`: the owner of the one connection or turn.
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
                return ReplicaAnswer(connections=_first(rows, limit, "connection_id"))
            case ListTurns(whose, limit, after):
                turns = (TurnRow.of(one) for one in self._sessions.running_turns() if one.turn_id > after)
                mine = (row for row in turns if whose.matches(row.principal, row.client_id))
                return ReplicaAnswer(turns=_first(mine, limit, "turn_id"))
            case Disconnect(whose, connection_id):
                matching = [
                    one for one, _ in self._matching(whose) if connection_id in (None, one.connection_id)
                ]
                for one in matching:
                    # not retryable, so that the client does not reconnect by itself
                    one.push(Error(code=Forbidden.code, message=ENDED, retryable=False))
                    one.shut(Close(CloseCode.FORBIDDEN, ENDED))
                return ReplicaAnswer(ended=len(matching), whose=_one(matching) if connection_id else None)
            case Stop(turn_id):
                owner = next(
                    (one.owner for one in self._sessions.running_turns() if one.turn_id == turn_id), None
                )
                ended = self._sessions.ephemeral.cancel(turn_id)
                theirs = None if owner is None else SubjectFilter(owner.principal, owner.client_id)
                return ReplicaAnswer(ended=int(ended is not None), already=ended is False, whose=theirs)

    def _matching(self, whose: SubjectFilter) -> list[tuple[Connection, float]]:
        return [
            (one, at)
            for one, at in self._lifecycle.connections()
            if whose.matches(one.caller.client.principal, one.caller.client.client_id)
        ]


def _first(rows: Iterable[Row], limit: int, id_field: str) -> tuple[Row, ...]:
    """Return the first `limit` rows, by id."""
    return tuple(heapq.nsmallest(limit, rows, key=attrgetter(id_field)))


def _one(matching: list[Connection]) -> SubjectFilter | None:
    """Return the first one's owner."""
    client = matching[0].caller.client if matching else None
    return None if client is None else SubjectFilter(client.principal, client.client_id)


class ConnectionsPage(msgspec.Struct, frozen=True):
    """`next`: what `after` is for the next page; null: there is none. `silent`: replicas that did not answer."""

    connections: tuple[ConnectionRow, ...]
    next: str | None
    silent: tuple[str, ...]


class TurnsPage(msgspec.Struct, frozen=True):
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


def log_act(*, operator: str | None, act: str, outcome: str, on: dict[str, str | int]) -> None:
    """Log an act, at any log level: who, what, on whom, and the outcome; no content. `operator`: the name of the key; None: without a valid one. `on`: the subject of the act, and its extent."""
    _audit_log.info("admin", operator=operator, act=act, outcome=outcome, **on)


def may_log(limiters: Limiters, scope: Scope) -> bool:
    """Return whether a request without effect gets a line: each address has a limit, so that nobody can fill the log."""
    try:
        limiters.take_read(Subject(f"/admin/{group_of(ANONYMOUS, scope)}", ""))
    except RateLimited:
        return False
    return True
