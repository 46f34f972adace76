"""The common part of endpoints for sessions over a socket: the client of a handshake, and what answers its frames."""

from __future__ import annotations

from typing import ClassVar

import msgspec
from starlette.websockets import WebSocket

from connections.api.endpoint import ApiWebSocketEndpoint
from connections.api.errors import invalid
from connections.api.request_context import RequestContext
from connections.authentication.access import AccessControl, bearer
from connections.authentication.identity import Identity
from connections.connection import Handler, RateLimiter
from connections.http.refusal_counters import EndpointName
from connections.limits.caller import Caller, caller_of, client_id_of
from connections.limits.limiters import Limiters
from connections.manager import ConnectionLifecycle
from connections.native.handler import ClientMessage, FrameHandler
from connections.protocol.errors import BadParams
from connections.protocol.scopes import Grant, KeyScope
from connections.protocol.server_info import Limits
from connections.realtime.handshake import HandshakeRequest, parse_handshake
from connections.voice.connection import VoiceConnection
from connections.voice.service import VoiceService
from engine.served_models import ServedModel
from sessions.service import Sessions

_NO_TRANSCRIPTION_SESSIONS = "Transcription sessions are at /v1/realtime, of a server whose operator enabled recognition (MIDSTREAM_SPEECH)."


class SessionContext(msgspec.Struct, frozen=True, kw_only=True):
    """The client of a session, and its rights."""

    request: HandshakeRequest
    identity: Identity
    caller: Caller
    limits: Limits
    model: ServedModel


class SessionEndpoint(ApiWebSocketEndpoint[SessionContext]):
    """Serves connections like native ones, with other frames."""

    KIND: ClassVar[EndpointName]
    """The endpoint under which its refusals are counted."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        request_context: RequestContext,
        access: AccessControl,
        lifecycle: ConnectionLifecycle,
        limiters: Limiters,
        spoken: VoiceService | None,
    ) -> None:
        """`spoken`: the part for sound; None: this server has none."""
        super().__init__(self.KIND, access=access, limiters=limiters)
        self.sessions = sessions
        self.request_context = request_context
        self.lifecycle = lifecycle
        self.spoken = spoken

    @property
    def transcribes(self) -> bool:
        """Whether a session may be of transcriptions alone."""
        return False

    async def handshake_info(self, websocket: WebSocket) -> SessionContext:
        """Return the client and its request. Raises Refused."""
        try:
            request = parse_handshake(websocket.query_params, websocket.scope.get("subprotocols", ()))
        except BadParams as error:
            raise invalid(error.field, str(error)) from None
        authorization = websocket.headers.get("authorization")
        identity = await self.request_context.identity(authorization, request.key)
        identity.grant.check(KeyScope.CHAT)
        if request.transcribes and not self.transcribes:
            raise invalid("intent", _NO_TRANSCRIPTION_SESSIONS, code="unsupported_parameter")
        model = self.model_of(request, identity.grant)
        limits = await self.request_context.limits(model)
        name = _client_id(request, identity, bearer(authorization) or request.key)
        caller = caller_of(identity, name, websocket.scope)
        return SessionContext(request=request, identity=identity, caller=caller, limits=limits, model=model)

    def model_of(self, request: HandshakeRequest, grant: Grant) -> ServedModel:
        """Return the model of a session: the named one, or the default. Raises Refused."""
        return self.request_context.model(request.model, grant)

    def subprotocol(self, handshake_info: SessionContext) -> str | None:
        """Return the subprotocol that the client offers with its key."""
        return handshake_info.request.subprotocol

    def frames(self, limits: Limits, spoken: VoiceConnection | None = None) -> Handler[ClientMessage]:
        """Return what answers the frames of a client's events."""
        return RateLimiter(FrameHandler(self.sessions, limits, spoken=spoken), self.limiters)


def _client_id(request: HandshakeRequest, identity: Identity, token: str | None) -> str:
    """Return the client's id. Without a name each session has its own, so a key may have any number of sessions."""
    if request.client_id is not None:
        return request.client_id
    return f"{client_id_of(identity, token)}/{request.conversation_id}"
