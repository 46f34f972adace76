"""`GET /v1/realtime/translations`: the handshake, and the life of a session after it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from starlette.routing import BaseRoute, WebSocketRoute

from connections.connection import Connection
from connections.http.refusal_counters import EndpointName
from connections.outbox import Outbox
from connections.protocol import codec
from connections.protocol.base import INTERPRET
from connections.protocol.frames import Frame
from connections.protocol.scopes import Grant
from connections.realtime.handshake import HandshakeRequest
from connections.realtime.session_endpoint import SessionContext, SessionEndpoint
from connections.translations.event_encoder import TranslationEventEncoder, TranslationFrame
from connections.translations.events import AnyClientEvent
from connections.translations.handler import TranslationsHandler
from connections.translations.session import TranslationSession
from connections.translations.speech_output import SpeechOutput
from connections.websocket_endpoint import OUTBOX_BYTES, MultilineTransport, WebSocketTransport
from engine.served_models import ServedModel

_decoder: msgspec.json.Decoder[AnyClientEvent] = msgspec.json.Decoder(AnyClientEvent)
_encode = msgspec.json.Encoder().encode


def decode(message: str | bytes) -> AnyClientEvent:
    """Return one client event. Raises BadFrame, which names the wrong field."""
    return codec.read(_decoder, message)


class TranslationCodec:
    """The coding of one session."""

    def __init__(self, encoder: TranslationEventEncoder) -> None:
        self._encoder = encoder
        self._event_ids = f"event_{secrets.token_hex(8)}"
        self._sent_count = 0

    def encode(self, frame: Frame) -> bytes:
        """Return the lines of a frame: none, one or several. JSON contains no line breaks."""
        return b"\n".join(self._line(event) for event in self._encoder.encode(frame))

    def _line(self, event: msgspec.Struct) -> bytes:
        self._sent_count += 1
        return _encode(msgspec.structs.replace(event, event_id=f"{self._event_ids}_{self._sent_count}"))


PATH = "/v1/realtime/translations"
NO_EXPIRY = 253_402_300_799
"""The end of the year 9999: a session ends with its client's token, and has no end of its own."""


class TranslationEndpoint(SessionEndpoint):
    """Serves clients of translation sessions: connections like native ones, with other frames."""

    KIND = EndpointName.TRANSLATIONS

    def model_of(self, request: HandshakeRequest, grant: Grant) -> ServedModel:
        """Return the named model; else the first that only translates, else the default. Raises Refused."""
        if request.model is None:
            for model in self.request_context.models(grant):
                facts = model.engine.facts
                has_languages = facts is not None and facts.languages is not None and facts.languages.targets
                if has_languages and not model.engine.status.state.is_final:
                    return model
        return super().model_of(request, grant)

    async def serve(self, socket: WebSocketTransport, handshake_info: SessionContext) -> None:
        """Serve one session. Raises Close, Disconnected."""
        session = TranslationSession(
            conversation_id=handshake_info.request.conversation_id,
            model=handshake_info.model.name,
            facts=lambda: handshake_info.model.engine.facts,
            expires_at=NO_EXPIRY
            if handshake_info.identity.expires_at is None
            else int(handshake_info.identity.expires_at),
            voices=() if self.spoken is None else self.spoken.voices,
        )
        encoder = TranslationEventEncoder()
        connection = Connection(
            MultilineTransport(socket),
            caller=handshake_info.caller,
            outbox=Outbox(max_bytes=OUTBOX_BYTES),
            encode=TranslationCodec(encoder).encode,
            tally=self.tally,
            features=frozenset({INTERPRET}),
        )
        encoder.lost = connection.shut
        voice = None if self.spoken is None else self.spoken.voice
        speech_output = None if voice is None else SpeechOutput(voice, connection)
        encoder.on_translation = None if speech_output is None else speech_output.feed
        handler = TranslationsHandler(
            session=session,
            encoder=encoder,
            inner=self.frames(handshake_info.limits),
            sessions=self.sessions,
            limiters=self.limiters,
            voice_service=self.spoken,
            speech_output=speech_output,
        )
        async with self.lifecycle.of(connection):
            connection.push(TranslationFrame(events=(session.created(),)))
            with self.access.watch(handshake_info.identity, connection):
                async with _speaking(speech_output):
                    await connection.serve(handler, decode)


@asynccontextmanager
async def _speaking(speech_output: SpeechOutput | None) -> AsyncIterator[None]:
    """Speak while the context lasts."""
    async with asyncio.TaskGroup() as tasks:
        task = None if speech_output is None else tasks.create_task(speech_output.run())
        try:
            yield
        finally:
            if task is not None:
                task.cancel()


def translations_routes(endpoint: TranslationEndpoint) -> list[BaseRoute]:
    """Return the route below `/v1`."""
    return [WebSocketRoute(PATH, endpoint.accept)]
