"""Doors whose requests have one reply each, in a protocol of their own: who asks, what they may have, the turn and its end."""

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
from connections.openai.reception import Reception, asked_by
from connections.replies.streaming import Reply
from connections.wire.facts import Limits
from sessions.errors import BadParams
from sessions.running.ephemeral import Ask
from sessions.running.ephemeral_reply import EphemeralReply
from sessions.service import Sessions


class NamesModel(Protocol):
    """A request."""

    @property
    def model(self) -> str | None:
        """The model that is asked; None: the default."""


R = TypeVar("R", bound=NamesModel)


class AskingDoor(HttpDoor[R]):
    """Asks a model for whoever comes."""

    def __init__(self, sessions: Sessions, reception: Reception) -> None:
        super().__init__(reception)
        self.sessions = sessions

    @abstractmethod
    def ask(self, request: R, limits: Limits) -> Ask:
        """What the model is asked. Raises Refused."""

    @abstractmethod
    def names(self, request: R) -> Mapping[str, str]:
        """What the client calls the fields that the floors below have other names for."""

    @abstractmethod
    async def answer(self, exchange: Exchange, caller: Caller, request: R, place: ExitStack) -> None:
        """Answers a request; `place` as in `serve`. Raises Refused, whose field may have the name of the floors below."""

    async def asked(self, caller: Caller, request: R) -> Ask:
        """What a model is asked for a caller. Raises Refused."""
        model = self.reception.model(request.model, caller.grant)
        return asked_by(caller, self.ask(request, await self.reception.limits(model)), model.name)

    async def serve(self, exchange: Exchange, caller: Caller, request: R, place: ExitStack) -> None:
        """Answers a request. Raises Refused, with the client's own names."""
        try:
            await self.answer(exchange, caller, request, place)
        except BadParams as refused:
            raise renamed(refused, self.names(request)) from None


class OneReplyDoor(AskingDoor[R]):
    """Answers requests with a reply each. A client that goes away stops its turn."""

    @abstractmethod
    async def tell(self, exchange: Exchange, request: R, reply: EphemeralReply) -> None:
        """Tells a reply to its end, however it ends. Raises Refused as long as nothing of it was told."""

    async def answer(self, exchange: Exchange, caller: Caller, request: R, place: ExitStack) -> None:
        """Has a turn write the reply. Raises Refused."""
        ask = await self.asked(caller, request)
        await self.reception.count(caller)
        reply = await self.sessions.answer(caller.owner, ask)
        place.close()
        try:
            await self.tell(exchange, request, reply)
        finally:
            reply.cancel()


def ignored(reply: Reply[object]) -> dict[str, str]:
    """The header that names what was passed over, where anything was."""
    return {IGNORED: ", ".join(reply.ignored)} if reply.ignored else {}
