"""`GET /v1/realtime`: the handshake, and the life of a session after it."""

from __future__ import annotations

from contextlib import nullcontext

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from connections.http.refusals import Door
from connections.line.connection import Connection
from connections.line.larger import Larger
from connections.line.lines import Lines
from connections.line.outbox import Outbox
from connections.line.socket import Socket
from connections.line.socket_door import OUTBOX_BYTES
from connections.realtime.asking import Asking
from connections.realtime.coding import Coding
from connections.realtime.handler import RealtimeHandler
from connections.realtime.handshake import Arrival
from connections.realtime.items import Items
from connections.realtime.session_door import Guest, SessionDoor
from connections.realtime.sound.hearing import Hearing
from connections.realtime.sound.microphone import Microphone
from connections.realtime.sound.wishes import Offer, SoundSettings
from connections.realtime.telling import Said, Telling
from connections.spoken.desk import SpokenDesk
from connections.wire.errors import Close, CloseCode
from connections.wire.features import AUDIO, TOOLS
from connections.wire.scopes import Grant, KeyScope
from engine.served_models import ServedModel
from sessions.errors import NotFound, Refused

PATH = "/v1/realtime"
PAGE = 200
"""Messages of the history for a client that comes back: as many as a page may have."""


class RealtimeDoor(SessionDoor):
    """Serves Realtime clients: connections like native ones, with other frames."""

    KIND = Door.REALTIME

    async def guest(self, websocket: WebSocket) -> Guest:
        """Return the client and its request; a client that names a conversation gets its history. Raises Refused."""
        guest = await super().guest(websocket)
        if guest.asked.known:
            guest.identity.grant.check(KeyScope.READ)
        return guest

    @property
    def transcribes(self) -> bool:
        """Whether a session may be of transcriptions alone: if there is a recognizer."""
        return self.spoken is not None

    def model_of(self, asked: Arrival, grant: Grant) -> ServedModel:
        """Return the model of a session; for transcriptions, which name a recognizer, the default. Raises Refused."""
        return self.reception.model(None if asked.transcribes else asked.model, grant)

    async def serve(self, socket: Socket, guest: Guest) -> None:
        """Serve one session. Raises Close, Disconnected."""
        socket.take_larger(Larger(self.limiters.bodies, guest.caller.subject))
        items, place = Items(), guest.asked.conversation_id
        asking = Asking(
            items,
            conversation_id=place,
            model=guest.model.name,
            limits=guest.limits,
            names_model=guest.asked.model is not None,
            sound=None if self.spoken is None else SoundSettings.of(offer_of(self.spoken)),
        )
        if guest.asked.transcribes:
            asking.transcribe()
        telling = Telling(items, asking, after=guest.asked.after)
        coding = Coding(telling, conversation_id=place)
        connection = Connection(
            Lines(socket),
            caller=guest.caller,
            outbox=Outbox(max_bytes=OUTBOX_BYTES),
            encode=coding.encode,
            tally=self.tally,
            features=frozenset({TOOLS} if self.spoken is None else {TOOLS, AUDIO}),
        )
        microphone = None
        if self.spoken is not None:
            microphone = Microphone(
                self.spoken,
                connection,
                asking=asking,
                hearing=Hearing(items, asking),
                replies=telling.spoken,
            )
        inner = self.frames(guest.limits, microphone)
        handler = RealtimeHandler(
            asking=asking,
            telling=telling,
            inner=inner,
            sessions=self.sessions,
            take_read=self.limiters.take_read,
            microphone=microphone,
        )
        async with self.presence.of(connection):
            connection.push(Said(events=(asking.created(),)))
            if guest.asked.known:
                await self._show_history(connection, place)
            with self.access.inside(guest.identity, connection):
                async with nullcontext() if microphone is None else microphone.running(inner):
                    await connection.serve(handler, coding.decode)

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


def offer_of(desk: SpokenDesk) -> Offer:
    """Return what a desk offers."""
    return Offer(voices=desk.voices, languages=desk.ear.languages)


def realtime_routes(door: RealtimeDoor) -> list[BaseRoute]:
    """Return the route below `/v1`."""
    return [WebSocketRoute(PATH, door.accept)]
