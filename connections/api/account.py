"""`POST /v1/tickets`, `GET /v1/export` and `DELETE /v1/me`: a ticket for a caller's page, its stored data, and their erasure.

A ticket is single-use, for a browser's page, which can't set headers on a WebSocket. For the other two the caller sends a key or
a JWT in the header; a ticket, which is in a URL, is not accepted. An application's key names its user by `client_id`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from connections.api.owner_data import AbortOnRevocation, Erased, OwnerDataService
from connections.authentication.access import AccessControl
from connections.authentication.caller import Caller, named_caller
from connections.authentication.identity import Identity
from connections.authentication.tickets import TTL_S
from connections.http.exchange import Exchange
from connections.http.json_responses import (
    error_code_of,
    forbidden_origin,
    json_response,
    refusal,
    refusal_response,
)
from connections.http.refusal_counters import EndpointName, Refusal, RefusalCounters
from connections.limiters import Limiters
from connections.middleware.origins import AllowedOrigins, CorsMiddleware
from connections.protocol.errors import BadParams, Unauthenticated
from connections.protocol.scopes import KeyScope
from sessions.conversation.conversation import refusal_of
from sessions.errors import NotFound, Refused
from sessions.limits.rates import FrameCost, RateLimited
from sessions.limits.slots import on_behalf_of

WEIGHT = 10
"""Reads that such a request counts as."""
AccountAction = Callable[[Exchange, Identity, Caller], Awaitable[None]]
TicketLimiter = Callable[[Identity, Scope], None]


class AccountEndpoint:
    """Answers requests."""

    def __init__(self, *, acts: OwnerDataService, access: AccessControl, limiters: Limiters) -> None:
        self._acts = acts
        self._access = access
        self._limiters = limiters

    async def export(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with all conversations and messages, one a line."""
        await self._answer(Exchange(scope, receive, send), self._export, KeyScope.READ)

    async def erase(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Erase all of them, and answer with their number."""
        await self._answer(Exchange(scope, receive, send), self._erase, KeyScope.MANAGE)

    async def _answer(self, exchange: Exchange, act: AccountAction, scope: KeyScope) -> None:
        failed = await refusal_of(self._serve(exchange, act, scope))
        if failed is not None:
            await self._refuse(exchange, failed)

    async def _serve(self, exchange: Exchange, act: AccountAction, scope: KeyScope) -> None:
        """Raises Refused."""
        try:
            identity = await self._identify(exchange)
            identity.grant.check(scope)
            caller = named_caller(identity, exchange.request)
            self._count(caller)
            with on_behalf_of(caller.group or caller.client.client_id):
                await act(exchange, identity, caller)
        except (BadParams, Unauthenticated) as why:
            await self._refuse(exchange, why)
        except (ClientDisconnect, TimeoutError):
            exchange.cut_off()

    async def _refuse(self, exchange: Exchange, why: BadParams | Unauthenticated | Refused) -> None:
        self._limiters.refusals.count_error(EndpointName.ACCOUNT, error_code_of(why))
        if exchange.begun:
            exchange.cut_off()
        else:
            await exchange.answer(refusal_response(why))

    async def _identify(self, exchange: Exchange) -> Identity:
        """Return the caller by a key or JWT. Raises Unauthenticated, Refused."""
        authorization = exchange.request.headers.get("authorization")
        return await self._access.identify_without_ticket(authorization=authorization)

    def _count(self, caller: Caller) -> None:
        """Count the cost of the request. Raises RateLimited."""
        try:
            self._limiters.rates.take(FrameCost.READ, caller.subject, WEIGHT)
        except RateLimited:
            self._limiters.refusals.count(Refusal.RATE)
            raise

    async def _export(self, exchange: Exchange, identity: Identity, caller: Caller) -> None:
        with self._access.watch(identity, AbortOnRevocation(exchange)):
            await self._acts.export(exchange, caller.owner, caller.subject)

    async def _erase(self, exchange: Exchange, _: Identity, caller: Caller) -> None:
        await exchange.answer(json_response(Erased(await self._acts.erase(caller.owner, caller.subject))))


def account_routes(
    endpoint: AccountEndpoint, origins: AllowedOrigins, refusals: RefusalCounters
) -> list[BaseRoute]:
    """Return the routes below `/v1`."""
    export = CorsMiddleware(endpoint.export, origins, refusals, method="GET", refusal=forbidden_origin)
    erase = CorsMiddleware(endpoint.erase, origins, refusals, method="DELETE", refusal=forbidden_origin)
    return [
        Route("/v1/export", export, methods=["GET", "OPTIONS"]),
        Route("/v1/me", erase, methods=["DELETE", "OPTIONS"]),
    ]


class TicketGiven(msgspec.Struct, frozen=True):
    """A ticket and its lifetime."""

    ticket: str
    expires_in_s: int


class TicketEndpoint:
    """Answers requests. `admit` counts one, and may raise Refused."""

    def __init__(self, access: AccessControl, refusals: RefusalCounters, admit: TicketLimiter) -> None:
        self._access = access
        self._refusals = refusals
        self._admit = admit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        """Answer `{ticket, expires_in_s}`, or `{error: {code, message}}` with 401, 404, 429 or 503."""
        if self._access.allows_anonymous:
            self._refusals.count_error(EndpointName.TICKETS, NotFound.code)
            return refusal(404, NotFound.code, "No authentication is configured: no ticket is needed.")

        try:
            ticket = await self._access.ticket(
                authorization=request.headers.get("authorization"),
                admit=lambda identity: self._admit(identity, request.scope),
            )
        except (Unauthenticated, Refused) as why:
            self._refusals.count_error(EndpointName.TICKETS, why.code)
            return refusal_response(why)
        return json_response(TicketGiven(ticket, TTL_S))


def ticket_routes(
    endpoint: TicketEndpoint, origins: AllowedOrigins, refusals: RefusalCounters
) -> list[BaseRoute]:
    """Return the route below `/v1`."""
    shown = CorsMiddleware(endpoint, origins, refusals, method="POST", refusal=forbidden_origin)
    return [Route("/v1/tickets", shown, methods=["POST", "OPTIONS"])]
