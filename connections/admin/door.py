"""`/v1/admin/…`: the door of operators. Pages of other origins can't read its answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import msgspec
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from connections.account.acts import Cut, Erased, OwnersActs
from connections.admin import audit, queries
from connections.admin.acts import AdminActs
from connections.admin.missed import may_be_noted
from connections.admin.questions import Whose
from connections.authentication.access import AccessControl
from connections.http.exchange import Exchange
from connections.http.json_answers import answer, counted_as, refused
from connections.http.queries import name_of
from connections.http.refusals import Door
from connections.limits.limiters import Limiters
from connections.wire.errors import BadParams, Unauthenticated
from connections.wire.table import Counts
from sessions.conversation.guarding import incident
from sessions.errors import Refused
from sessions.records import Owner
from sessions.shares import Subject
from sessions.store.redis.asker import asking_for

PATH = "/v1/admin"

On = dict[str, str | int]
"""The subject of an act, and its extent, for the log."""
Act = Callable[[Exchange, On], Awaitable[None]]


class AdminDoor:
    """Answers requests."""

    def __init__(
        self, *, acts: AdminActs, owners: OwnersActs, access: AccessControl, limiters: Limiters
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

    def _route(self, path: str, acts: Mapping[str, tuple[str, Act]]) -> BaseRoute:
        """`acts`: the acts by method, each with its name in the log."""
        serve = {method: partial(self._serve, name, act) for method, (name, act) in acts.items()}
        return Route(f"{PATH}{path}", _Asgi(serve), methods=list(serve))

    async def _serve(self, name: str, act: Act, exchange: Exchange) -> None:
        operator: str | None = None
        on: On = {}
        note = partial(audit.note, act=name, on=on)
        try:
            identity = self._access.identify_operator(
                authorization=exchange.request.headers.get("authorization")
            )
            operator = identity.name
            self._limiters.rates.take(Counts.READ, Subject(f"/admin/{operator}", ""))
            with asking_for(f"/admin/{operator}"), self._access.inside(identity, Cut(exchange)):
                await act(exchange, on)
        except Unauthenticated as why:
            if may_be_noted(self._limiters, exchange.request.scope):
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
        self._limiters.refusals.tell(Door.ADMIN, counted_as(why))
        if exchange.begun:
            exchange.cut_off()
        else:
            await exchange.answer(refused(why))

    async def _list_connections(self, exchange: Exchange, on: On) -> None:
        query = exchange.request.query_params
        whose, (limit, after) = _noted(query, on), queries.page(query)
        shown = await self._acts.connections(whose, limit=limit, after=after)
        on["connections"] = len(shown.connections)
        await exchange.answer(answer(shown))

    async def _list_turns(self, exchange: Exchange, on: On) -> None:
        query = exchange.request.query_params
        whose, (limit, after) = _noted(query, on), queries.page(query)
        shown = await self._acts.turns(whose, limit=limit, after=after)
        on["turns"] = len(shown.turns)
        await exchange.answer(answer(shown))

    async def _disconnect(self, exchange: Exchange, on: On) -> None:
        _, ended = await self._acts.disconnect(_noted(exchange.request.query_params, on, is_needed=True))
        on["connections"] = ended.connections
        await exchange.answer(answer(ended))

    async def _disconnect_one(self, exchange: Exchange, on: On) -> None:
        on["connection_id"] = connection_id = _named(exchange, "connection_id")
        owner, ended = await self._acts.disconnect(queries.whose({}), connection_id)
        _note(owner, on)
        await exchange.answer(answer(ended))

    async def _stop(self, exchange: Exchange, on: On) -> None:
        on["turn_id"] = turn_id = _named(exchange, "turn_id")
        owner, stopped = await self._acts.stop(turn_id)
        _note(owner, on)
        await exchange.answer(answer(stopped))

    async def _export(self, exchange: Exchange, on: On) -> None:
        owner = queries.owner(exchange.request.query_params, self._acts.is_person)
        on |= {"principal": owner.principal, "client_id": owner.client_id}
        await self._owners.export(exchange, owner, _by_operator(owner))

    async def _erase(self, exchange: Exchange, on: On) -> None:
        owner = queries.owner(exchange.request.query_params, self._acts.is_person)
        on |= {"principal": owner.principal, "client_id": owner.client_id}
        on["conversations"] = erased = await self._owners.erase(owner, _by_operator(owner))
        await exchange.answer(answer(Erased(erased)))

    async def _list_keys(self, exchange: Exchange, on: On) -> None:
        limit, after = queries.page(exchange.request.query_params)
        shown = await self._acts.keys(limit=limit, after=after)
        on["keys"] = len(shown.keys)
        await exchange.answer(answer(shown))


class _Asgi:
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


def _noted(query: queries.Query, on: On, *, is_needed: bool = False) -> Whose:
    """Return the owner that a request is about, and note it for the log. Raises BadParams."""
    whose = queries.whose(query, is_needed=is_needed)
    _note(whose, on)
    return whose


def _note(whose: Whose | None, on: On) -> None:
    if whose is not None:
        on |= {name: value for name, value in msgspec.structs.asdict(whose).items() if value is not None}


def _named(exchange: Exchange, field: str) -> str:
    """Return what the path names. Raises BadParams."""
    return name_of(field, exchange.request.path_params[field])
