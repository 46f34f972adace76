"""`GET /v1/realtime`: the handshake, and the life of a session after it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import ClassVar

import msgspec
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from connections.api.endpoint import ApiWebSocketEndpoint, RequestContext
from connections.api.errors import invalid
from connections.api.realtime.client_events import TRANSCRIPTION
from connections.api.realtime.encoder import RealtimeCodec, RealtimeEventEncoder, RealtimeFrame
from connections.api.realtime.handler import RealtimeHandler
from connections.api.realtime.items import Items
from connections.api.realtime.session import AudioCapabilities, AudioConfig, RealtimeSession
from connections.api.realtime.voice import RealtimeVoiceConnection, UtteranceTracker
from connections.authentication.access import AccessControl, bearer
from connections.authentication.caller import Caller, caller_of, client_id_of
from connections.authentication.identity import Identity
from connections.connection import Connection, Handler, RateLimiter
from connections.http.inputs import optional_id
from connections.http.refusal_counters import EndpointName
from connections.large_messages import LargeMessageLease
from connections.limiters import Limiters
from connections.manager import ConnectionLifecycle
from connections.native.handler import ClientMessage, FrameHandler
from connections.outbox import Outbox
from connections.protocol.base import AUDIO, TOOLS
from connections.protocol.errors import BadParams, Close, CloseCode
from connections.protocol.scopes import Grant, KeyScope
from connections.protocol.server_info import Limits
from connections.voice.connection import VoiceConnection, VoiceService
from connections.websocket_endpoint import MultilineTransport, WebSocketTransport
from engine.served_models import ServedModel
from sessions.errors import NotFound, Refused
from sessions.limits.bounds import OUTBOX_BYTES
from sessions.service import Sessions

PATH = "/v1/realtime"
PAGE = 200
"""Messages of the history for a client that reconnects: as many as a page may have."""
_NO_TRANSCRIPTION_SESSIONS = "Transcription sessions are at /v1/realtime, of a server whose operator enabled recognition (MIDSTREAM_SPEECH)."
SUBPROTOCOL = "realtime"
_KEY = "openai-insecure-api-key."
"""Begins the subprotocol with a browser's key: browsers can't set headers."""
_UNSUPPORTED_FIELDS = {
    "call_id": "is of telephone calls, which this server does not take.",
}
_NO_HISTORY = "names a part of a conversation, and a transcription session has none: leave it out."


class HandshakeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`model`: None: the default; `has_conversation`: the client named its conversation; `after`: the last item that it has.

    `transcribes`: the session only transcribes.
    """

    model: str | None
    conversation_id: str
    has_conversation: bool
    client_id: str | None
    after: str | None
    key: str | None
    subprotocol: str | None
    transcribes: bool = False


def parse_handshake(query: Mapping[str, str], subprotocols: Sequence[str]) -> HandshakeRequest:
    """Return what a client requests. Raises BadParams."""
    for field, why in _UNSUPPORTED_FIELDS.items():
        if field in query:
            raise BadParams(why, field=field)
    if (intent := query.get("intent")) not in (None, TRANSCRIPTION):
        raise BadParams(f"must be {TRANSCRIPTION}, or left out.", field="intent")
    for field in ("conversation_id", "after"):
        if intent is not None and field in query:
            raise BadParams(_NO_HISTORY, field=field)
    conversation_id = optional_id(query, "conversation_id")
    return HandshakeRequest(
        model=query.get("model"),
        conversation_id=conversation_id or f"conv_{secrets.token_hex(12)}",
        has_conversation=conversation_id is not None,
        client_id=optional_id(query, "client_id"),
        after=query.get("after"),
        key=next((one.removeprefix(_KEY) for one in subprotocols if one.startswith(_KEY)), None),
        subprotocol=SUBPROTOCOL if SUBPROTOCOL in subprotocols else None,
        transcribes=intent is not None,
    )


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


class RealtimeEndpoint(SessionEndpoint):
    """Serves Realtime clients: connections like native ones, with other frames."""

    KIND = EndpointName.REALTIME

    async def handshake_info(self, websocket: WebSocket) -> SessionContext:
        """Return the client and its request; a client that names a conversation gets its history. Raises Refused."""
        handshake_info = await super().handshake_info(websocket)
        if handshake_info.request.has_conversation:
            handshake_info.identity.grant.check(KeyScope.READ)
        return handshake_info

    @property
    def transcribes(self) -> bool:
        """Whether a session may be of transcriptions alone: if there is a recognizer."""
        return self.spoken is not None

    def model_of(self, request: HandshakeRequest, grant: Grant) -> ServedModel:
        """Return the model of a session; for transcriptions, which name a recognizer, the default. Raises Refused."""
        return self.request_context.model(None if request.transcribes else request.model, grant)

    async def serve(self, socket: WebSocketTransport, handshake_info: SessionContext) -> None:
        """Serve one session. Raises Close, Disconnected."""
        socket.accept_large_messages(LargeMessageLease(self.limiters.bodies, handshake_info.caller.subject))
        items, conversation_id = Items(), handshake_info.request.conversation_id
        session = RealtimeSession(
            items,
            conversation_id=conversation_id,
            model=handshake_info.model.name,
            limits=handshake_info.limits,
            names_model=handshake_info.request.model is not None,
            sound=None if self.spoken is None else AudioConfig.of(capabilities_of(self.spoken)),
        )
        if handshake_info.request.transcribes:
            session.transcribe()
        encoder = RealtimeEventEncoder(items, session, after=handshake_info.request.after)
        codec = RealtimeCodec(encoder, conversation_id=conversation_id)
        connection = Connection(
            MultilineTransport(socket),
            caller=handshake_info.caller,
            outbox=Outbox(max_bytes=OUTBOX_BYTES),
            encode=codec.encode,
            tally=self.tally,
            features=frozenset({TOOLS} if self.spoken is None else {TOOLS, AUDIO}),
        )
        voice_connection = None
        if self.spoken is not None:
            voice_connection = RealtimeVoiceConnection(
                self.spoken,
                connection,
                session=session,
                hearing=UtteranceTracker(items, session),
                replies=encoder.spoken,
            )
        inner = self.frames(handshake_info.limits, voice_connection)
        handler = RealtimeHandler(
            session=session,
            encoder=encoder,
            inner=inner,
            sessions=self.sessions,
            take_read=self.limiters.take_read,
            voice_connection=voice_connection,
        )
        async with self.lifecycle.of(connection):
            connection.push(RealtimeFrame(events=(session.created(),)))
            if handshake_info.request.has_conversation:
                await self._show_history(connection, conversation_id)
            with self.access.watch(handshake_info.identity, connection):
                async with nullcontext() if voice_connection is None else voice_connection.running(inner):
                    await connection.serve(handler, codec.decode)

    async def _show_history(self, connection: Connection, conversation_id: str) -> None:
        """Send the history, and attach the connection. Raises Close if that is impossible."""
        try:
            self.limiters.take_read(connection.caller.subject)
            shown = await self.sessions.history(connection.owner, connection, conversation_id, limit=PAGE)
        except NotFound:
            return  # its first message will create it
        except Refused as refused:
            raise Close(CloseCode.OVERLOAD, f"{refused} Reconnect.") from refused
        connection.publish(shown.page)


def capabilities_of(voice_service: VoiceService) -> AudioCapabilities:
    """Return what a voice service offers."""
    return AudioCapabilities(voices=voice_service.voices, languages=voice_service.ear.languages)


def realtime_routes(endpoint: RealtimeEndpoint) -> list[BaseRoute]:
    """Return the route below `/v1`."""
    return [WebSocketRoute(PATH, endpoint.accept)]
