"""`/v1/admin/…`: the endpoint of operators. Pages of other origins can't read its answers."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import msgspec
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from connections.api.admin import audit
from connections.api.admin.audit import may_log
from connections.api.admin.operations import AdminOperations, SubjectFilter
from connections.api.owner_data import AbortOnRevocation, Erased, OwnerDataService
from connections.authentication.access import AccessControl
from connections.authentication.identity import ANONYMOUS
from connections.http.exchange import Exchange
from connections.http.inputs import parse_client_id, parse_id
from connections.http.json_responses import error_code_of, json_response, refusal_response
from connections.http.refusal_counters import EndpointName
from connections.limiters import Limiters
from connections.protocol.errors import BadParams, Unauthenticated
from sessions.conversation.conversation import incident
from sessions.errors import Refused
from sessions.limits.rates import FrameCost
from sessions.limits.shares import Subject
from sessions.limits.slots import on_behalf_of
from sessions.records import Owner

PATH = "/v1/admin"
AuditDetails = dict[str, str | int]
"""The subject of an act, and its extent, for the log."""
AdminAction = Callable[[Exchange, AuditDetails], Awaitable[None]]
MOST = 200
FEW = 50
_LONGEST = 4096
_PRINCIPAL = re.compile(r"key:[A-Za-z0-9._@-]{1,64}|jwt:[A-Za-z0-9._~@:|%-]{1,3060}|anonymous")
"""A principal as lists show it: unusual characters of a JWT's subject are percent-encoded."""
_NO_PRINCIPAL = "must be one as lists show it: key:NAME, jwt:SUBJECT or anonymous."
Query = Mapping[str, str]


class AdminEndpoint:
    """Answers requests."""

    def __init__(
        self, *, acts: AdminOperations, owners: OwnerDataService, access: AccessControl, limiters: Limiters
    ) -> None:
        self._acts = acts
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
        note = partial(audit.note, act=name, on=on)
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
            await self._refuse(exchange, why)
        except (BadParams, Refused) as why:
            note(operator=operator, outcome=why.code)
            await self._refuse(exchange, why)
        except (ClientDisconnect, TimeoutError):
            note(operator=operator, outcome="cut off")
            exchange.cut_off()
        except Exception:  # noqa: BLE001 - a task's boundary: the operator is told a number that the log has
            note(operator=operator, outcome="failed")
            await self._refuse(exchange, incident())
        except BaseException:
            note(operator=operator, outcome="cut off")
            raise
        else:
            note(operator=operator, outcome="done")

    async def _refuse(self, exchange: Exchange, why: BadParams | Unauthenticated | Refused) -> None:
        self._limiters.refusals.count_error(EndpointName.ADMIN, error_code_of(why))
        if exchange.begun:
            exchange.cut_off()
        else:
            await exchange.answer(refusal_response(why))

    async def _list_connections(self, exchange: Exchange, on: AuditDetails) -> None:
        query = exchange.request.query_params
        whose, (limit, after) = _noted(query, on), parse_page(query)
        shown = await self._acts.connections(whose, limit=limit, after=after)
        on["connections"] = len(shown.connections)
        await exchange.answer(json_response(shown))

    async def _list_turns(self, exchange: Exchange, on: AuditDetails) -> None:
        query = exchange.request.query_params
        whose, (limit, after) = _noted(query, on), parse_page(query)
        shown = await self._acts.turns(whose, limit=limit, after=after)
        on["turns"] = len(shown.turns)
        await exchange.answer(json_response(shown))

    async def _disconnect(self, exchange: Exchange, on: AuditDetails) -> None:
        _, ended = await self._acts.disconnect(_noted(exchange.request.query_params, on, is_needed=True))
        on["connections"] = ended.connections
        await exchange.answer(json_response(ended))

    async def _disconnect_one(self, exchange: Exchange, on: AuditDetails) -> None:
        on["connection_id"] = connection_id = _named(exchange, "connection_id")
        owner, ended = await self._acts.disconnect(parse_subject({}), connection_id)
        _note(owner, on)
        await exchange.answer(json_response(ended))

    async def _stop(self, exchange: Exchange, on: AuditDetails) -> None:
        on["turn_id"] = turn_id = _named(exchange, "turn_id")
        owner, stopped = await self._acts.stop(turn_id)
        _note(owner, on)
        await exchange.answer(json_response(stopped))

    async def _export(self, exchange: Exchange, on: AuditDetails) -> None:
        owner = parse_owner(exchange.request.query_params, self._acts.is_person)
        on |= {"principal": owner.principal, "client_id": owner.client_id}
        await self._owners.export(exchange, owner, _by_operator(owner))

    async def _erase(self, exchange: Exchange, on: AuditDetails) -> None:
        owner = parse_owner(exchange.request.query_params, self._acts.is_person)
        on |= {"principal": owner.principal, "client_id": owner.client_id}
        on["conversations"] = erased = await self._owners.erase(owner, _by_operator(owner))
        await exchange.answer(json_response(Erased(erased)))

    async def _list_keys(self, exchange: Exchange, on: AuditDetails) -> None:
        limit, after = parse_page(exchange.request.query_params)
        shown = await self._acts.keys(limit=limit, after=after)
        on["keys"] = len(shown.keys)
        await exchange.answer(json_response(shown))


class _AdminRoute:
    """The application of a route, as an object: Starlette treats functions differently."""

    def __init__(self, serve: Mapping[str, Callable[[Exchange], Awaitable[None]]]) -> None:
        """`serve`: by method."""
        self._serve = dict(serve)
        if "GET" in serve:  # Starlette accepts HEAD wherever it accepts GET
            self._serve["HEAD"] = serve["GET"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._serve[scope["method"]](Exchange(scope, receive, send))


def _by_operator(owner: Owner) -> Subject:
    """Return the subject of its counts: owners' own exports take no operator's place."""
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
    """Return what the path names. Raises BadParams."""
    return parse_id(field, exchange.request.path_params[field])


def parse_subject(query: Query, *, is_needed: bool = False) -> SubjectFilter:
    """Return the subject of a request. Raises BadParams."""
    found = SubjectFilter(
        _principal(query), None if (name := query.get("client_id")) is None else parse_client_id(name)
    )
    if is_needed and found.principal is None:
        raise BadParams("is missing: whose connections are to end?", field="principal")
    return found


def parse_page(query: Query) -> tuple[int, str]:
    """Return the number of rows, and the row that they follow. Raises BadParams."""
    text = query.get("limit", str(FEW))
    if not (text.isascii() and text.isdigit() and len(text) < 5 and 1 <= int(text) <= MOST):  # noqa: PLR2004 - digits
        raise BadParams(f"must be a whole number from 1 to {MOST}.", field="limit")
    return int(text), _short(query, "after") or ""


def parse_owner(query: Query, is_person: Callable[[str], bool | None]) -> Owner:
    """Return the owner of conversations. `is_person`: whether the principal is one; None: not known. Raises BadParams."""
    if (principal := _principal(query)) is None:
        raise BadParams(_NO_PRINCIPAL, field="principal")
    given = query.get("client_id")
    client_id = "" if given is None else parse_client_id(given)
    person = False if principal == ANONYMOUS.principal else is_person(principal)
    if person is False and not client_id:
        raise BadParams("is missing: this principal has many users.", field="client_id")
    if person and client_id:
        raise BadParams("may not be given: all devices of a person are one owner.", field="client_id")
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
