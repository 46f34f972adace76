"""`GET /v1/realtime/translations`: the handshake, and the life of a session after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.routing import BaseRoute, WebSocketRoute

from connections.http.refusals import Door
from connections.line.connection import Connection
from connections.line.lines import Lines
from connections.line.outbox import Outbox
from connections.line.socket import Socket
from connections.line.socket_door import OUTBOX_BYTES
from connections.realtime.handshake import Arrival
from connections.realtime.session_door import Guest, SessionDoor
from connections.translations.coding import Coding, decode
from connections.translations.handler import TranslationsHandler
from connections.translations.session import TranslationSession
from connections.translations.speaking import Speaking
from connections.translations.telling import Said, Telling
from connections.wire.features import INTERPRET
from connections.wire.scopes import Grant
from engine.served_models import ServedModel

PATH = "/v1/realtime/translations"
NEVER = 253_402_300_799
"""The end of the year 9999: a session ends with its client's token, and has no end of its own."""


class TranslationsDoor(SessionDoor):
    """Serves clients of translation sessions: connections like native ones, with other frames."""

    KIND = Door.TRANSLATIONS

    def model_of(self, asked: Arrival, grant: Grant) -> ServedModel:
        """Return the named model; else the first that only translates, else the default. Raises Refused."""
        if asked.model is None:
            for model in self.reception.models(grant):
                facts = model.engine.facts
                has_languages = facts is not None and facts.languages is not None and facts.languages.targets
                if has_languages and not model.engine.status.state.is_final:
                    return model
        return super().model_of(asked, grant)

    async def serve(self, socket: Socket, guest: Guest) -> None:
        """Serve one session. Raises Close, Disconnected."""
        session = TranslationSession(
            conversation_id=guest.asked.conversation_id,
            model=guest.model.name,
            facts=lambda: guest.model.engine.facts,
            expires_at=NEVER if guest.identity.expires_at is None else int(guest.identity.expires_at),
            voices=() if self.spoken is None else self.spoken.voices,
        )
        telling = Telling()
        connection = Connection(
            Lines(socket),
            caller=guest.caller,
            outbox=Outbox(max_bytes=OUTBOX_BYTES),
            encode=Coding(telling).encode,
            tally=self.tally,
            features=frozenset({INTERPRET}),
        )
        telling.lost = connection.shut
        voice = None if self.spoken is None else self.spoken.voice
        speaking = None if voice is None else Speaking(voice, connection)
        telling.hears = None if speaking is None else speaking.hear
        handler = TranslationsHandler(
            session=session,
            telling=telling,
            inner=self.frames(guest.limits),
            sessions=self.sessions,
            limiters=self.limiters,
            desk=self.spoken,
            speaking=speaking,
        )
        async with self.presence.of(connection):
            connection.push(Said(events=(session.created(),)))
            with self.access.inside(guest.identity, connection):
                async with _speaking(speaking):
                    await connection.serve(handler, decode)


@asynccontextmanager
async def _speaking(speaking: Speaking | None) -> AsyncIterator[None]:
    """Speak while the context lasts."""
    async with asyncio.TaskGroup() as tasks:
        task = None if speaking is None else tasks.create_task(speaking.run())
        try:
            yield
        finally:
            if task is not None:
                task.cancel()


def translations_routes(door: TranslationsDoor) -> list[BaseRoute]:
    """Return the route below `/v1`."""
    return [WebSocketRoute(PATH, door.accept)]
