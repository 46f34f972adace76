"""HTTP endpoints of models: the client, the key's scopes, the body, and the end of work for clients that have left."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
from typing import ClassVar, Generic, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from connections.http.exchange import Exchange
from connections.http.refusal_counters import EndpointName
from connections.limits.caller import Caller
from connections.openai.problems import problem_of
from connections.openai.request_context import RequestContext
from connections.protocol.codec import FrameCost
from connections.protocol.scopes import KeyScope
from sessions.conversation.conversation import refusal_of
from sessions.errors import Refused

R = TypeVar("R")


class HttpEndpoint(ABC, Generic[R]):
    """Answers or refuses requests, in its protocol's terms. A client that leaves ends the work for it."""

    endpoint: ClassVar[EndpointName]
    counts: ClassVar[FrameCost] = FrameCost.MESSAGE
    """What each request counts as."""

    def __init__(self, request_context: RequestContext) -> None:
        self.request_context = request_context

    @abstractmethod
    def read(self, body: bytes) -> R:
        """Return the request in a body. Raises Refused."""

    @abstractmethod
    async def serve(self, exchange: Exchange, caller: Caller, request: R, body_lease: ExitStack) -> None:
        """Answer a request while its client is there. `body_lease`: held while a large body is in memory. Raises Refused."""

    def token(self, request: Request) -> str | None:  # noqa: ARG002 - most have it in no other place
        """Return a token outside the `Authorization` header."""
        return None

    def required_scope(self, request: Request) -> KeyScope:  # noqa: ARG002 - most have a model answer
        """Return the scope that a key needs."""
        return KeyScope.CHAT

    def refusal(self, refused: Refused) -> Response:
        """Return the answer to a refused request."""
        return problem_of(refused).response()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(scope, receive, send)
        refused = await refusal_of(self._serve(exchange))
        if refused is not None and not exchange.begun:
            self.request_context.count_error(refused, self.endpoint)
            await exchange.answer(self.refusal(refused))

    async def _serve(self, exchange: Exchange) -> None:
        """Serve a request. Raises Refused."""
        with suppress(ClientDisconnect):
            caller = await self.request_context.caller(exchange.request, self.token(exchange.request))
            caller.grant.check(self.required_scope(exchange.request))
            self.request_context.take(caller, counts=self.counts)
            with ExitStack() as body_lease:
                request = await self.request_context.read(exchange, caller, body_lease, self.read)
                work = self.serve(exchange, caller, request, body_lease)
                await self.request_context.run_while_valid(exchange, caller, work)
