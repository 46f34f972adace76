"""Doors with one reply a request, in protocols of their own: the client and its rights, the turn and its end."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Protocol, TypeVar

from connections.http.exchange import Exchange
from connections.limits.caller import Caller
from connections.openai.answering import IGNORED
from connections.openai.door import HttpDoor
from connections.openai.problems import renamed
from connections.openai.reception import Reception
from connections.replies.streaming import Reply
from connections.wire.facts import Limits
from sessions.errors import BadParams
from sessions.running.ephemeral import Ask
from sessions.running.ephemeral_reply import EphemeralReply
from sessions.service import Sessions


class NamesModel(Protocol):
    """A request with a model's name."""

    @property
    def model(self) -> str | None:
        """The requested model; None: the default."""


R = TypeVar("R", bound=NamesModel)


class AskingDoor(HttpDoor[R]):
    """Asks a model for any client."""

    def __init__(self, sessions: Sessions, reception: Reception) -> None:
        super().__init__(reception)
        self.sessions = sessions

    @abstractmethod
    def ask(self, request: R, limits: Limits) -> Ask:
        """Return what the model is asked. Raises Refused."""

    @abstractmethod
    def names(self, request: R) -> Mapping[str, str]:
        """Return the client's names of fields that the floors below name otherwise."""

    @abstractmethod
    async def answer(self, exchange: Exchange, caller: Caller, request: R, place: ExitStack) -> None:
        """Answer a request; `place` as in `serve`. Raises Refused; its field may have a name of the floors below."""

    async def asked(self, exchange: Exchange, caller: Caller, request: R) -> Ask:
        """Return what a model is asked for a caller. Raises Refused."""
        model = self.reception.model(request.model, caller.grant)
        limits = await self.reception.limits(model)
        ask = await self.reception.apart(exchange, lambda: self.ask(request, limits))
        return self.reception.asked_by(caller, ask, model, self.names(request))

    async def serve(self, exchange: Exchange, caller: Caller, request: R, place: ExitStack) -> None:
        """Answer a request. Raises Refused, with the client's own names."""
        try:
            await self.answer(exchange, caller, request, place)
        except BadParams as refused:
            raise renamed(refused, self.names(request)) from None


class OneReplyDoor(AskingDoor[R]):
    """Answers each request with a reply. A client that leaves stops its turn."""

    @abstractmethod
    async def tell(self, exchange: Exchange, request: R, reply: EphemeralReply) -> None:
        """Send a reply up to its end, of any kind. Raises Refused while nothing of it was sent."""

    async def answer(self, exchange: Exchange, caller: Caller, request: R, place: ExitStack) -> None:
        """Have a turn write the reply. Raises Refused."""
        ask = await self.asked(exchange, caller, request)
        await self.reception.count(caller)
        reply = await self.sessions.answer(caller.owner, ask)
        place.close()
        try:
            await self.tell(exchange, request, reply)
        finally:
            reply.cancel()


def ignored(reply: Reply[object]) -> dict[str, str]:
    """Return the header with the ignored fields, if there are any."""
    return {IGNORED: ", ".join(reply.ignored)} if reply.ignored else {}
