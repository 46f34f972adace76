"""`GET /v1/realtime`: the handshake, and the life of a session after it."""

from __future__ import annotations

from contextlib import nullcontext

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from connections.connection import Connection
from connections.http.refusal_counters import EndpointName
from connections.large_messages import LargeMessageLease
from connections.outbox import Outbox
from connections.protocol.base import AUDIO, TOOLS
from connections.protocol.errors import Close, CloseCode
from connections.protocol.scopes import Grant, KeyScope
from connections.realtime.audio.audio_config import AudioCapabilities, AudioConfig
from connections.realtime.audio.utterances import UtteranceTracker
from connections.realtime.audio.voice_connection import RealtimeVoiceConnection
from connections.realtime.codec import RealtimeCodec
from connections.realtime.event_encoder import RealtimeEventEncoder, RealtimeFrame
from connections.realtime.handler import RealtimeHandler
from connections.realtime.handshake import HandshakeRequest
from connections.realtime.items import Items
from connections.realtime.session import RealtimeSession
from connections.realtime.session_endpoint import SessionContext, SessionEndpoint
from connections.voice.service import VoiceService
from connections.websocket_endpoint import OUTBOX_BYTES, MultilineTransport, WebSocketTransport
from engine.served_models import ServedModel
from sessions.errors import NotFound, Refused

PATH = "/v1/realtime"
PAGE = 200
"""Messages of the history for a client that reconnects: as many as a page may have."""


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
