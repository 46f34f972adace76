"""Endpoints of APIs: the client, its key's scopes, its request, and the end of work for clients that have left."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import ClassVar, Generic, Protocol, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from connections.api.errors import metric_code, problem_of, with_client_field
from connections.api.replies import ReplySource
from connections.api.request_context import RequestContext
from connections.http.exchange import Exchange
from connections.http.refusal_counters import EndpointName
from connections.limits.caller import Caller
from connections.middleware.client_address import client_address_of
from connections.protocol.codec import FrameCost
from connections.protocol.scopes import KeyScope
from connections.protocol.server_info import Limits
from connections.websocket_endpoint import WebSocketEndpoint
from sessions.conversation.conversation import refusal_of
from sessions.errors import BadParams, Refused
from sessions.running.ephemeral import EphemeralReply, EphemeralRequest
from sessions.service import Sessions

R = TypeVar("R")
IGNORED_HEADER = "X-Midstream-Ignored"
"""The header with the ignored fields of a request: hints, and tools that can't be called if the operator allows that."""
G = TypeVar("G")


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


class ModelRequest(Protocol):
    """A request with a model's name."""

    @property
    def model(self) -> str | None:
        """The requested model; None: the default."""


M = TypeVar("M", bound=ModelRequest)


class ModelEndpoint(HttpEndpoint[M]):
    """Asks a model for any client."""

    def __init__(self, sessions: Sessions, request_context: RequestContext) -> None:
        super().__init__(request_context)
        self.sessions = sessions

    @abstractmethod
    def turn_request(self, request: M, limits: Limits) -> EphemeralRequest:
        """Return what the model is asked. Raises Refused."""

    @abstractmethod
    def names(self, request: M) -> Mapping[str, str]:
        """Return the client's names of fields that the layers below name otherwise."""

    @abstractmethod
    async def answer(self, exchange: Exchange, caller: Caller, request: M, body_lease: ExitStack) -> None:
        """Answer a request; `body_lease` as in `serve`. Raises Refused; its field may have a name of the layers below."""

    async def build_request(self, exchange: Exchange, caller: Caller, request: M) -> EphemeralRequest:
        """Return what a model is asked for a caller. Raises Refused."""
        model = self.request_context.model(request.model, caller.grant)
        limits = await self.request_context.limits(model)
        turn_request = await self.request_context.run_in_thread(
            exchange, lambda: self.turn_request(request, limits)
        )
        return self.request_context.for_caller(caller, turn_request, model, self.names(request))

    async def serve(self, exchange: Exchange, caller: Caller, request: M, body_lease: ExitStack) -> None:
        """Answer a request. Raises Refused, with the client's own names."""
        try:
            await self.answer(exchange, caller, request, body_lease)
        except BadParams as refused:
            raise with_client_field(refused, self.names(request)) from None


class SingleReplyEndpoint(ModelEndpoint[M]):
    """Answers each request with a reply. A client that leaves stops its turn."""

    @abstractmethod
    async def send_reply(self, exchange: Exchange, request: M, reply: EphemeralReply) -> None:
        """Send a reply up to its end, of any kind. Raises Refused while nothing of it was sent."""

    async def answer(self, exchange: Exchange, caller: Caller, request: M, body_lease: ExitStack) -> None:
        """Have a turn write the reply. Raises Refused."""
        turn_request = await self.build_request(exchange, caller, request)
        await self.request_context.count(caller)
        reply = await self.sessions.ephemeral.answer(caller.owner, turn_request)
        body_lease.close()
        try:
            await self.send_reply(exchange, request, reply)
        finally:
            reply.cancel()


def ignored_header(reply: ReplySource[object]) -> dict[str, str]:
    """Return the header with the ignored fields, if there are any."""
    return {IGNORED_HEADER: ", ".join(reply.ignored)} if reply.ignored else {}


class ApiWebSocketEndpoint(WebSocketEndpoint[G]):
    """Serves sockets whose handshake identifies the client."""

    @abstractmethod
    async def handshake_info(self, websocket: WebSocket) -> G:
        """Return the client and its request. Raises Refused."""

    async def receive(self, websocket: WebSocket) -> G | Response:
        """Return the client, or the refusal."""
        try:
            with self.limiters.handshake_limit.slot(client_address_of(websocket.scope)):
                return await self.handshake_info(websocket)
        except Refused as refused:
            self.tally.sent(metric_code(refused))
            return problem_of(refused).response()
