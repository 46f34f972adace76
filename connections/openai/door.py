"""Doors over HTTP for chats: who asks, whether the key may, what the body says, and that nobody is served who has left."""

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
    """Answers requests, or says no in its protocol's words. A client that goes away ends what was begun for it."""

    door: ClassVar[Door]
    counts: ClassVar[Counts] = Counts.MESSAGE
    """As what each request counts."""

    def __init__(self, reception: Reception) -> None:
        self.reception = reception

    @abstractmethod
    def read(self, body: bytes) -> R:
        """The request in a body. Raises Refused."""

    @abstractmethod
    async def serve(self, exchange: Exchange, caller: Caller, request: R, place: ExitStack) -> None:
        """Answers a request while its client is there. `place`: of a large body, until little of it is kept. Raises Refused."""

    def token(self, request: Request) -> str | None:  # noqa: ARG002 - most have it in no other place
        """A token that is in no `Authorization` header."""
        return None

    def needs(self, request: Request) -> KeyScope:  # noqa: ARG002 - most have a model answer
        """What a key has to be for."""
        return KeyScope.CHAT

    def refusal(self, refused: Refused) -> Response:
        """What whoever is refused is answered."""
        return problem_of(refused).response()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        exchange = Exchange(scope, receive, send)
        refused = await guarded(self._serve(exchange))
        if refused is not None and not exchange.begun:
            self.reception.tell(refused, self.door)
            await exchange.answer(self.refusal(refused))

    async def _serve(self, exchange: Exchange) -> None:
        """Raises Refused."""
        with suppress(ClientDisconnect):
            caller = await self.reception.caller(exchange.request, self.token(exchange.request))
            caller.grant.check(self.needs(exchange.request))
            self.reception.take(caller, counts=self.counts)
            with ExitStack() as place:
                request = await self.reception.read(exchange, caller, place, self.read)
                work = self.serve(exchange, caller, request, place)
                await self.reception.while_good(exchange, caller, work)
