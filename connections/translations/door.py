"""`GET /v1/realtime/translations`: the handshake, and the life of a session from there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from connections.authentication.access import AccessControl
from connections.authentication.authenticator import bearer
from connections.authentication.identity import Identity
from connections.http.refusals import Door
from connections.limits.caller import Caller, caller_of
from connections.limits.limiters import Limiters
from connections.line.connection import Connection, Handler
from connections.line.lines import Lines
from connections.line.outbox import Outbox
from connections.line.presence import Presence
from connections.line.rate_limiting import RateLimiter
from connections.line.socket import Socket
from connections.line.socket_door import OUTBOX_BYTES
from connections.native.handler import FrameHandler
from connections.openai.problems import invalid
from connections.openai.reception import Reception, client_id_of
from connections.openai.sockets import OpenAiSocketDoor
from connections.realtime.handshake import Arrival, arrival
from connections.spoken.desk import SpokenDesk
from connections.translations.coding import Coding, decode
from connections.translations.handler import TranslationsHandler
from connections.translations.session import TranslationSession
from connections.translations.speaking import Speaking
from connections.translations.telling import Said, Telling
from connections.wire.errors import BadParams
from connections.wire.facts import Limits
from connections.wire.features import INTERPRET
from connections.wire.frames import AuthRefresh, Request
from connections.wire.scopes import Grant, KeyScope
from engine.served_models import ServedModel
from sessions.service import Sessions

PATH = "/v1/realtime/translations"
NEVER = 253_402_300_799
"""The end of the year 9999: a session ends with what its client came by, and has no end of its own."""


class Guest(msgspec.Struct, frozen=True, kw_only=True):
    """Who came in, and what they may have."""

    asked: Arrival
    identity: Identity
    caller: Caller
    limits: Limits
    model: ServedModel


class TranslationsDoor(OpenAiSocketDoor[Guest]):
    """Serves clients of translation sessions: connections like those of the native socket in all but their words."""

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
        """`spoken`: where sound is heard and made; None: this server does neither."""
        super().__init__(Door.TRANSLATIONS, access=access, limiters=limiters)
        self._sessions = sessions
        self._reception = reception
        self._presence = presence
        self._spoken = spoken

    async def guest(self, websocket: WebSocket) -> Guest:
        """Who comes, and for what. Raises Refused."""
        try:
            asked = arrival(websocket.query_params, websocket.scope.get("subprotocols", ()))
        except BadParams as error:
            raise invalid(error.field, str(error)) from None
        authorization = websocket.headers.get("authorization")
        identity = await self._reception.identity(authorization, asked.key)
        identity.grant.check(KeyScope.CHAT)
        model = self._model(asked.model, identity.grant)
        limits = await self._reception.limits(model)
        name = _client_id(asked, identity, bearer(authorization) or asked.key)
        caller = caller_of(identity, name, websocket.scope)
        return Guest(asked=asked, identity=identity, caller=caller, limits=limits, model=model)

    def _model(self, name: str | None, grant: Grant) -> ServedModel:
        """The model that a client names; else the first that translates and does nothing else, else the first."""
        if name is None:
            for model in self._reception.models(grant):
                facts = model.engine.facts
                has_languages = facts is not None and facts.languages is not None and facts.languages.targets
                if has_languages and not model.engine.status.state.is_final:
                    return model
        return self._reception.model(name, grant)

    def subprotocol(self, guest: Guest) -> str | None:
        """The one that its client offers, which has its key."""
        return guest.asked.subprotocol

    async def serve(self, socket: Socket, guest: Guest) -> None:
        """Serves one session. Raises Close, Disconnected."""
        session = TranslationSession(
            conversation_id=guest.asked.conversation_id,
            model=guest.model.name,
            facts=lambda: guest.model.engine.facts,
            expires_at=NEVER if guest.identity.expires_at is None else int(guest.identity.expires_at),
            voices=() if self._spoken is None else self._spoken.voices,
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
        voice = None if self._spoken is None else self._spoken.voice
        speaking = None if voice is None else Speaking(voice, connection)
        telling.hears = None if speaking is None else speaking.hear
        handler = TranslationsHandler(
            session=session,
            telling=telling,
            inner=self._frames(guest.limits),
            sessions=self._sessions,
            limiters=self.limiters,
            desk=self._spoken,
            speaking=speaking,
        )
        async with self._presence.of(connection):
            connection.push(Said(events=(session.created(),)))
            with self.access.inside(guest.identity, connection):
                async with _speaking(speaking):
                    await connection.serve(handler, decode)

    def _frames(self, limits: Limits) -> Handler[Request]:
        """What answers the frames that a client's events become."""
        return RateLimiter(FrameHandler(self._sessions, limits, _no_refresh), self.limiters)


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


def _client_id(asked: Arrival, identity: Identity, token: str | None) -> str:
    """Who comes. Of those who name no client, each session is one: a key has as many sessions as it likes."""
    if asked.client_id is not None:
        return asked.client_id
    return f"{client_id_of(identity, token)}/{asked.conversation_id}"


async def _no_refresh(_: AuthRefresh) -> None:
    raise TypeError("Clients of translation sessions have no word for this.")


def translations_routes(door: TranslationsDoor) -> list[BaseRoute]:
    """The route below `/v1`."""
    return [WebSocketRoute(PATH, door.accept)]
