"""Begins a response, whichever way it was asked for: the turn that writes it, and who tells of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec

from connections.limits.caller import Caller
from connections.openai.problems import renamed
from connections.openai.reception import Reception
from connections.responses.asking import ask_of, fields_of, seals_thoughts, shows_logprobs
from connections.responses.fields import Creation
from connections.responses.resource import asked_for
from connections.responses.telling import Telling
from engine.messages import Message
from sessions.errors import BadParams
from sessions.events import Cause, Done
from sessions.running.waiting_pieces import Piece
from sessions.service import Sessions


class Answer(Protocol):
    """A reply that is being written. Iterate it for its pieces; `ended` is its end then."""

    cut_off: Callable[[], None]

    @property
    def turn_id(self) -> str:
        """The turn's name."""

    @property
    def model(self) -> str:
        """Which one answers."""

    @property
    def ignored(self) -> tuple[str, ...]:
        """Fields that this one can't follow and that the operator lets it pass over."""

    @property
    def ended(self) -> Done:
        """The end."""

    def __aiter__(self) -> Answer: ...

    async def __anext__(self) -> Piece: ...


class Begun(msgspec.Struct, frozen=True):
    """A response that is being written. `stop` ends it, for its client; `leave`: its reader is gone.

    `read`: the messages that its model reads, without instructions.
    """

    answer: Answer
    telling: Telling
    stop: Callable[[], None]
    leave: Callable[[], None]
    read: tuple[Message, ...]


class Creator:
    """Begins responses."""

    def __init__(self, sessions: Sessions, reception: Reception) -> None:
        self._sessions = sessions
        self._reception = reception

    async def create(
        self,
        caller: Caller,
        request: Creation,
        *,
        before: Sequence[Message] = (),
        stream_id: str | msgspec.UnsetType = msgspec.UNSET,
    ) -> Begun:
        """Begins a response that is kept nowhere. `before`: the messages that its input follows. Raises Refused."""
        model = self._reception.model(request.model)
        ask = ask_of(request, await self._reception.limits(model), before)
        await self._reception.count(caller)
        ask = msgspec.structs.replace(
            ask, client_id=caller.client.client_id, group=caller.group, model=model.name
        )
        try:
            reply = await self._sessions.answer(caller.owner, ask)
        except BadParams as refused:
            raise renamed(refused, fields_of()) from None
        name = reply.turn_id.removeprefix("turn_")
        response = asked_for(request, response_id=f"resp_{name}", model=reply.model, created=int(time.time()))
        telling = Telling(
            response,
            name=name,
            logprobs=shows_logprobs(request),
            seals=seals_thoughts(request),
            stream_id=stream_id,
        )
        read = ask.messages[1:] if request.instructions else ask.messages
        return Begun(reply, telling, partial(reply.cancel, Cause.CLIENT), reply.cancel, read)
