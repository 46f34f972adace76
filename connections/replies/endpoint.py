"""Endpoints with one reply a request, in protocols of their own: the client and its rights, the turn and its end."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Protocol, TypeVar

from connections.http.exchange import Exchange
from connections.limits.caller import Caller
from connections.openai.endpoint import HttpEndpoint
from connections.openai.generation_endpoint import IGNORED_HEADER
from connections.openai.problems import with_client_field
from connections.openai.request_context import RequestContext
from connections.protocol.server_info import Limits
from connections.replies.streaming import ReplySource
from sessions.errors import BadParams
from sessions.running.ephemeral import EphemeralReply, EphemeralRequest
from sessions.service import Sessions


class ModelRequest(Protocol):
    """A request with a model's name."""

    @property
    def model(self) -> str | None:
        """The requested model; None: the default."""


R = TypeVar("R", bound=ModelRequest)


class ModelEndpoint(HttpEndpoint[R]):
    """Asks a model for any client."""

    def __init__(self, sessions: Sessions, request_context: RequestContext) -> None:
        super().__init__(request_context)
        self.sessions = sessions

    @abstractmethod
    def turn_request(self, request: R, limits: Limits) -> EphemeralRequest:
        """Return what the model is asked. Raises Refused."""

    @abstractmethod
    def names(self, request: R) -> Mapping[str, str]:
        """Return the client's names of fields that the layers below name otherwise."""

    @abstractmethod
    async def answer(self, exchange: Exchange, caller: Caller, request: R, body_lease: ExitStack) -> None:
        """Answer a request; `body_lease` as in `serve`. Raises Refused; its field may have a name of the layers below."""

    async def build_request(self, exchange: Exchange, caller: Caller, request: R) -> EphemeralRequest:
        """Return what a model is asked for a caller. Raises Refused."""
        model = self.request_context.model(request.model, caller.grant)
        limits = await self.request_context.limits(model)
        turn_request = await self.request_context.run_in_thread(
            exchange, lambda: self.turn_request(request, limits)
        )
        return self.request_context.for_caller(caller, turn_request, model, self.names(request))

    async def serve(self, exchange: Exchange, caller: Caller, request: R, body_lease: ExitStack) -> None:
        """Answer a request. Raises Refused, with the client's own names."""
        try:
            await self.answer(exchange, caller, request, body_lease)
        except BadParams as refused:
            raise with_client_field(refused, self.names(request)) from None


class SingleReplyEndpoint(ModelEndpoint[R]):
    """Answers each request with a reply. A client that leaves stops its turn."""

    @abstractmethod
    async def send_reply(self, exchange: Exchange, request: R, reply: EphemeralReply) -> None:
        """Send a reply up to its end, of any kind. Raises Refused while nothing of it was sent."""

    async def answer(self, exchange: Exchange, caller: Caller, request: R, body_lease: ExitStack) -> None:
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
