"""HTTP doors of models: the client, the key's scopes, the body, and the end of work for clients that have left."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
from typing import ClassVar, Generic, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from connections.http.exchange import Exchange
from connections.http.refusals import Door
from connections.limits.caller import Caller
from connections.openai.problems import problem_of
from connections.openai.reception import Reception
from connections.wire.scopes import KeyScope
from connections.wire.table import Counts
from sessions.conversation.guarding import guarded
from sessions.errors import Refused

R = TypeVar("R")


class HttpDoor(ABC, Generic[R]):
    """Answers or refuses requests, in its protocol's terms. A client that leaves ends the work for it."""

    door: ClassVar[Door]
    counts: ClassVar[Counts] = Counts.MESSAGE
    """What each request counts as."""

    def __init__(self, reception: Reception) -> None:
        self.reception = reception

    @abstractmethod
    def read(self, body: bytes) -> R:
        """Return the request in a body. Raises Refused."""

    @abstractmethod
    async def serve(self, exchange: Exchange, caller: Caller, request: R, place: ExitStack) -> None:
        """Answer a request while its client is there. `place`: held while a large body is in memory. Raises Refused."""

    def token(self, request: Request) -> str | None:  # noqa: ARG002 - most have it in no other place
        """Return a token outside the `Authorization` header."""
        return None

    def needs(self, request: Request) -> KeyScope:  # noqa: ARG002 - most have a model answer
        """Return the scope that a key needs."""
        return KeyScope.CHAT

    def refusal(self, refused: Refused) -> Response:
        """Return the answer to a refused request."""
        return problem_of(refused).response()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(scope, receive, send)
        refused = await guarded(self._serve(exchange))
        if refused is not None and not exchange.begun:
            self.reception.tell(refused, self.door)
            await exchange.answer(self.refusal(refused))

    async def _serve(self, exchange: Exchange) -> None:
        """Serve a request. Raises Refused."""
        with suppress(ClientDisconnect):
            caller = await self.reception.caller(exchange.request, self.token(exchange.request))
            caller.grant.check(self.needs(exchange.request))
            self.reception.take(caller, counts=self.counts)
            with ExitStack() as place:
                request = await self.reception.read(exchange, caller, place, self.read)
                work = self.serve(exchange, caller, request, place)
                await self.reception.while_good(exchange, caller, work)
