"""`GET /v1/realtime`: the handshake, and the life of a session from there."""

from __future__ import annotations

from contextlib import nullcontext

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
from connections.native.handler import Asked, FrameHandler
from connections.openai.problems import invalid
from connections.openai.reception import Reception, client_id_of
from connections.openai.sockets import OpenAiSocketDoor
from connections.realtime.asking import Asking
from connections.realtime.coding import Coding
from connections.realtime.handler import RealtimeHandler
from connections.realtime.handshake import Arrival, arrival
from connections.realtime.items import Items
from connections.realtime.sound.hearing import Hearing
from connections.realtime.sound.microphone import Microphone
from connections.realtime.sound.wishes import Offer, SoundSettings
from connections.realtime.telling import Said, Telling
from connections.spoken.desk import SpokenDesk
from connections.wire.errors import BadParams, Close, CloseCode
from connections.wire.facts import Limits
from connections.wire.features import AUDIO, TOOLS
from connections.wire.frames import AuthRefresh
from connections.wire.scopes import KeyScope
from sessions.errors import NotFound, Refused
from sessions.service import Sessions

PATH = "/v1/realtime"
PAGE = 200
"""Messages of the history that one who comes back is told: as many as a page may have."""


class Guest(msgspec.Struct, frozen=True, kw_only=True):
    """Who came in, and what they may have."""

    asked: Arrival
    identity: Identity
    caller: Caller
    limits: Limits
    model: str


class RealtimeDoor(OpenAiSocketDoor[Guest]):
    """Serves Realtime clients: connections like those of the native socket in all but their words."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        reception: Reception,
        access: AccessControl,
        presence: Presence,
        limiters: Limiters,
        spoken: SpokenDesk | None = None,
    ) -> None:
        """`spoken`: where conversations are spoken; None: sessions are text."""
        super().__init__(Door.REALTIME, access=access, limiters=limiters)
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
        if asked.known:
            identity.grant.check(KeyScope.READ)
        model = self._reception.model(asked.model, identity.grant)
        limits = await self._reception.limits(model)
        name = _client_id(asked, identity, bearer(authorization) or asked.key)
        caller = caller_of(identity, name, websocket.scope)
        return Guest(asked=asked, identity=identity, caller=caller, limits=limits, model=model.name)

    def subprotocol(self, guest: Guest) -> str | None:
        """The one that its client offers, which has its key."""
        return guest.asked.subprotocol

    async def serve(self, socket: Socket, guest: Guest) -> None:
        """Serves one session. Raises Close, Disconnected."""
        items, place = Items(), guest.asked.conversation_id
        asking = Asking(
            items,
            conversation_id=place,
            model=guest.model,
            limits=guest.limits,
            names_model=guest.asked.model is not None,
            sound=None if self._spoken is None else SoundSettings.of(offer_of(self._spoken)),
        )
        telling = Telling(items, asking, after=guest.asked.after)
        coding = Coding(telling, conversation_id=place)
        connection = Connection(
            Lines(socket),
            caller=guest.caller,
            outbox=Outbox(max_bytes=OUTBOX_BYTES),
            encode=coding.encode,
            tally=self.tally,
            features=frozenset({TOOLS} if self._spoken is None else {TOOLS, AUDIO}),
        )
        microphone = None
        if self._spoken is not None:
            microphone = Microphone(
                self._spoken,
                connection,
                asking=asking,
                hearing=Hearing(items, asking),
                replies=telling.spoken,
            )
        inner = self._frames(guest.limits, microphone)
        handler = RealtimeHandler(
            asking=asking, telling=telling, inner=inner, sessions=self._sessions, microphone=microphone
        )
        async with self._presence.of(connection):
            connection.push(Said(events=(asking.created(),)))
            if guest.asked.known:
                await self._show_history(connection, place)
            with self.access.inside(guest.identity, connection):
                async with nullcontext() if microphone is None else microphone.running(inner):
                    await connection.serve(handler, coding.decode)

    def _frames(self, limits: Limits, microphone: Microphone | None) -> Handler[Asked]:
        """What answers the frames that a client's events become."""
        return RateLimiter(FrameHandler(self._sessions, limits, _no_refresh, microphone), self.limiters)

    async def _show_history(self, connection: Connection, conversation_id: str) -> None:
        """Tells what is there, and attaches the connection. Raises Close where that can't be had."""
        try:
            self.limiters.take_read(connection.caller.subject)
            shown = await self._sessions.history(connection.owner, connection, conversation_id, limit=PAGE)
        except NotFound:
            return  # it will be made by its first message
        except Refused as refused:
            raise Close(CloseCode.OVERLOAD, f"{refused} Reconnect.") from refused
        connection.publish(shown.page)


def _client_id(asked: Arrival, identity: Identity, token: str | None) -> str:
    """Who comes. Of those who name no client, each conversation is one: a key has as many sessions as it likes."""
    if asked.client_id is not None:
        return asked.client_id
    return f"{client_id_of(identity, token)}/{asked.conversation_id}"


def offer_of(desk: SpokenDesk) -> Offer:
    """What a desk has."""
    return Offer(voices=desk.voices, languages=desk.ear.languages)


async def _no_refresh(_: AuthRefresh) -> None:
    raise TypeError("Realtime clients have no word for this.")


def realtime_routes(door: RealtimeDoor) -> list[BaseRoute]:
    """The route below `/v1`."""
    return [WebSocketRoute(PATH, door.accept)]
