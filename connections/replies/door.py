"""Doors whose requests have one reply each, in a protocol of their own: who asks, what they may have, the turn and its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import ClassVar, Generic, Protocol, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from connections.http.exchange import Exchange
from connections.http.refusals import Door
from connections.limits.caller import Caller
from connections.openai.answering import IGNORED
from connections.openai.problems import renamed
from connections.openai.reception import Reception
from connections.wire.facts import Limits
from connections.wire.scopes import KeyScope
from sessions.conversation.guarding import guarded
from sessions.errors import BadParams, Refused
from sessions.running.ephemeral import Ask
from sessions.running.ephemeral_reply import EphemeralReply
from sessions.service import Sessions


class NamesModel(Protocol):
    """A request."""

    @property
    def model(self) -> str | None:
        """The model that is asked; None: the default."""


R = TypeVar("R", bound=NamesModel)


class AskingDoor(ABC, Generic[R]):
    """Reads requests, and says no to them in its protocol's words. A client that goes away ends what was begun for it."""

    door: ClassVar[Door]

    def __init__(self, sessions: Sessions, reception: Reception) -> None:
        self.sessions = sessions
        self.reception = reception

    @abstractmethod
    def read(self, body: bytes) -> R:
        """The request in a body. Raises Refused."""

    @abstractmethod
    def ask(self, request: R, limits: Limits) -> Ask:
        """What the model is asked. Raises Refused."""

    @abstractmethod
    def names(self, request: R) -> Mapping[str, str]:
        """What the client calls the fields that the floors below have other names for."""

    @abstractmethod
    def refusal(self, refused: Refused) -> Response:
        """What whoever is refused is answered."""

    @abstractmethod
    async def serve(self, exchange: Exchange, caller: Caller, request: R, place: ExitStack) -> None:
        """Answers a request while its client is there. `place`: of a large body, until little of it is kept. Raises Refused."""

    def token(self, request: Request) -> str | None:  # noqa: ARG002 - most have it in no other place
        """A token that is in no `Authorization` header."""
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        exchange = Exchange(scope, receive, send)
        refused = await guarded(self._serve(exchange))
        if refused is not None and not exchange.begun:
            self.reception.tell(refused, self.door)
            await exchange.answer(self.refusal(refused))

    async def asked(self, caller: Caller, request: R) -> Ask:
        """What a model is asked for a caller. Raises Refused."""
        model = self.reception.model(request.model, caller.grant)
        ask = self.ask(request, await self.reception.limits(model))
        return msgspec.structs.replace(
            ask, client_id=caller.client.client_id, group=caller.group, model=model.name
        )

    async def _serve(self, exchange: Exchange) -> None:
        """Raises Refused."""
        with suppress(ClientDisconnect):
            caller = await self.reception.caller(exchange.request, self.token(exchange.request))
            caller.grant.check(KeyScope.CHAT)
            self.take(caller)
            with ExitStack() as place:
                request = await self.reception.read(exchange, caller, place, self.read)
                await self.reception.while_good(
                    exchange, caller, self._served(exchange, caller, request, place)
                )

    async def _served(self, exchange: Exchange, caller: Caller, request: R, place: ExitStack) -> None:
        try:
            await self.serve(exchange, caller, request, place)
        except BadParams as refused:
            raise renamed(refused, self.names(request)) from None

    def take(self, caller: Caller) -> None:
        """Counts a request, before anything of it is read. Raises RateLimited."""
        self.reception.take(caller)


class OneReplyDoor(AskingDoor[R]):
    """Answers requests with a reply each. A client that goes away stops its turn."""

    @abstractmethod
    async def tell(self, exchange: Exchange, request: R, reply: EphemeralReply) -> None:
        """Tells a reply to its end, however it ends. Raises Refused as long as nothing of it was told."""

    async def serve(self, exchange: Exchange, caller: Caller, request: R, place: ExitStack) -> None:
        """Has a turn write the reply. Raises Refused."""
        ask = await self.asked(caller, request)
        await self.reception.count(caller)
        reply = await self.sessions.answer(caller.owner, ask)
        place.close()
        try:
            await self.tell(exchange, request, reply)
        finally:
            reply.cancel()


def ignored(reply: EphemeralReply, more: Sequence[str] = ()) -> dict[str, str]:
    """The header that names what was passed over, where anything was; `more`: by the door itself."""
    names = (*reply.ignored, *more)
    return {IGNORED: ", ".join(names)} if names else {}
