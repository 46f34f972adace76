"""The common part of doors for sessions over a socket: the client of a handshake, and what answers its frames."""

from __future__ import annotations

from typing import ClassVar

import msgspec
from starlette.websockets import WebSocket

from connections.authentication.access import AccessControl
from connections.authentication.authenticator import bearer
from connections.authentication.identity import Identity
from connections.http.refusals import Door
from connections.limits.caller import Caller, caller_of, client_id_of
from connections.limits.limiters import Limiters
from connections.line.connection import Handler
from connections.line.presence import Presence
from connections.line.rate_limiting import RateLimiter
from connections.native.handler import Asked, FrameHandler
from connections.openai.problems import invalid
from connections.openai.reception import Reception
from connections.openai.sockets import OpenAiSocketDoor
from connections.realtime.handshake import Arrival, arrival
from connections.spoken.desk import SpokenDesk
from connections.spoken.line import SpokenLine
from connections.wire.errors import BadParams
from connections.wire.facts import Limits
from connections.wire.scopes import Grant, KeyScope
from engine.served_models import ServedModel
from sessions.service import Sessions

_NO_TRANSCRIPTIONS = "Transcription sessions are at /v1/realtime, of a server whose operator enabled recognition (MIDSTREAM_SPEECH)."


class Guest(msgspec.Struct, frozen=True, kw_only=True):
    """The client of a session, and its rights."""

    asked: Arrival
    identity: Identity
    caller: Caller
    limits: Limits
    model: ServedModel


class SessionDoor(OpenAiSocketDoor[Guest]):
    """Serves connections like native ones, with other frames."""

    KIND: ClassVar[Door]
    """The door under which its refusals are counted."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        reception: Reception,
        access: AccessControl,
        presence: Presence,
        limiters: Limiters,
        spoken: SpokenDesk | None,
    ) -> None:
        """`spoken`: the part for sound; None: this server has none."""
        super().__init__(self.KIND, access=access, limiters=limiters)
        self.sessions = sessions
        self.reception = reception
        self.presence = presence
        self.spoken = spoken

    @property
    def transcribes(self) -> bool:
        """Whether a session may be of transcriptions alone."""
        return False

    async def guest(self, websocket: WebSocket) -> Guest:
        """Return the client and its request. Raises Refused."""
        try:
            asked = arrival(websocket.query_params, websocket.scope.get("subprotocols", ()))
        except BadParams as error:
            raise invalid(error.field, str(error)) from None
        authorization = websocket.headers.get("authorization")
        identity = await self.reception.identity(authorization, asked.key)
        identity.grant.check(KeyScope.CHAT)
        if asked.transcribes and not self.transcribes:
            raise invalid("intent", _NO_TRANSCRIPTIONS, code="unsupported_parameter")
        model = self.model_of(asked, identity.grant)
        limits = await self.reception.limits(model)
        name = _client_id(asked, identity, bearer(authorization) or asked.key)
        caller = caller_of(identity, name, websocket.scope)
        return Guest(asked=asked, identity=identity, caller=caller, limits=limits, model=model)

    def model_of(self, asked: Arrival, grant: Grant) -> ServedModel:
        """Return the model of a session: the named one, or the default. Raises Refused."""
        return self.reception.model(asked.model, grant)

    def subprotocol(self, guest: Guest) -> str | None:
        """Return the subprotocol that the client offers with its key."""
        return guest.asked.subprotocol

    def frames(self, limits: Limits, spoken: SpokenLine | None = None) -> Handler[Asked]:
        """Return what answers the frames of a client's events."""
        return RateLimiter(FrameHandler(self.sessions, limits, spoken=spoken), self.limiters)


def _client_id(asked: Arrival, identity: Identity, token: str | None) -> str:
    """Return the client's id. Without a name each session has its own, so a key may have any number of sessions."""
    if asked.client_id is not None:
        return asked.client_id
    return f"{client_id_of(identity, token)}/{asked.conversation_id}"
