"""`/v1/ai-sdk/chat` as a WebSocket: several requests on one socket, each with its own answer."""

from __future__ import annotations

import msgspec
from starlette.responses import Response
from starlette.websockets import WebSocket

from connections.aisdk.answering import Answering
from connections.aisdk.frames import AbortFrame, Asks, Refused, ResumeFrame, SendFrame, token_of
from connections.aisdk.host import FEATURES, Host, guest_of, named_client
from connections.aisdk.lanes import Lanes, decode
from connections.aisdk.problems import Problem, answer_of, code_of
from connections.aisdk.telling import Telling
from connections.authentication.authenticator import bearer
from connections.authentication.identity import Identity
from connections.authentication.standing import Standing
from connections.gate.client_address import client_of
from connections.http.refusals import Door
from connections.line.connection import Connection
from connections.line.lines import Lines
from connections.line.outbox import Outbox
from connections.line.requests import Slow
from connections.line.socket import Socket
from connections.line.socket_door import OUTBOX_BYTES, SocketDoor
from connections.wire.errors import BadFrame, BadParams, Close, CloseCode, Unauthenticated
from sessions import errors

GRACE_S = 20
"""How long a reply waits for a client that lost its socket, by default: a reload takes less. A stop is explicit."""

_encode = msgspec.json.Encoder().encode


class First(Lines):
    """A socket whose first message has been read."""

    def __init__(self, socket: Socket, message: str | bytes) -> None:
        super().__init__(socket)
        self._first: str | bytes | None = message

    async def receive(self) -> str | bytes:
        """Return the next message. Raises Disconnected."""
        if (first := self._first) is None:
            return await super().receive()
        self._first = None
        return first


class Guest(msgspec.Struct, frozen=True):
    """A client before it is identified. `client_id`: from the URL."""

    websocket: WebSocket
    client_id: str | None


class ChatSocketDoor(SocketDoor[Guest]):
    """Serves sockets: connections like native ones, with other frames."""

    def __init__(self, host: Host) -> None:
        super().__init__(Door.AI_SDK, access=host.guests.access, limiters=host.limiters)
        self._host = host

    async def receive(self, websocket: WebSocket) -> Guest | Response:
        """Accept any well-formed URL: the first request may identify the client."""
        try:
            return Guest(websocket, named_client(websocket.query_params))
        except BadParams as why:
            self.tally.told(code_of(why))
            return answer_of(why)

    async def serve(self, socket: Socket, guest: Guest) -> None:
        """Serve one socket. Raises Close, Disconnected."""
        with self.limiters.waiting_room.place(client_of(guest.websocket.scope)):
            message = await self.first(socket, "request")
            identity, asked = await self._let_in(guest.websocket, socket, message)
        await self._serve(guest, First(socket, message), identity, asked)

    async def _let_in(
        self, websocket: WebSocket, socket: Socket, message: str | bytes
    ) -> tuple[Identity, SendFrame | ResumeFrame]:
        """Identify the client by the handshake or the first request, and return both. Raises Close."""
        request_id = ""
        try:
            asked = _first_of(decode(message))
            request_id = asked.request_id
            shown = websocket.headers.get("authorization") or token_of(asked.headers)
            identity = await self._host.guests.identity(shown, websocket.query_params.get("ticket"))
        except (BadFrame, Unauthenticated, errors.Refused) as why:
            self._tell(socket, request_id, why)
            raise Close(_code_behind(why), str(why)) from None
        return identity, asked

    def _tell(self, socket: Socket, request_id: str, why: Problem) -> None:
        self.tally.told(code_of(why))
        if socket.is_writable:
            socket.write(_encode(Refused(request_id=request_id, error_text=str(why))))

    async def _serve(
        self, guest: Guest, transport: First, identity: Identity, asked: SendFrame | ResumeFrame
    ) -> None:
        lanes = Lanes()
        connection = Connection(
            transport,
            caller=guest_of(identity, guest.client_id, asked.id, guest.websocket.scope),
            outbox=Outbox(max_bytes=OUTBOX_BYTES),
            features=FEATURES,
            tally=self.tally,
            encode=lanes.encode,
        )
        answering = await self._answering()
        only = None if guest.client_id is not None or identity.is_person else asked.id
        async with self._host.presence.of(connection):
            with self.access.inside(identity, connection) as standing:
                tokens = _Tokens(standing, token_of(asked.headers))
                handler = SocketHandler(answering, lanes, tokens, only=only)
                await connection.serve(handler, decode)

    async def _answering(self) -> Answering:
        """Make what carries out requests. Raises Close."""
        try:
            return await self._host.answering(grace_s=GRACE_S)
        except errors.EngineDown as error:
            raise Close(CloseCode.OVERLOAD, f"{error} Reconnect.") from error


class _Tokens:
    """The tokens of a socket's requests: a new one must belong to the same principal."""

    def __init__(self, standing: Standing, shown: str | None) -> None:
        self._standing = standing
        self._shown = shown

    def is_new(self, shown: str | None) -> bool:
        """Return whether a request has another token than the last one."""
        return shown is not None and shown != self._shown

    async def take(self, shown: str | None, *, ref: str) -> bool:
        """Take a token; return whether it is valid. Raises Refused."""
        self._shown = shown
        return await self._standing.refresh(bearer(shown) or "", ref=ref)


class SocketHandler:
    """Answers one socket's frames. `only`: its one chat, if nothing else identifies the owner."""

    def __init__(self, answering: Answering, lanes: Lanes, tokens: _Tokens, *, only: str | None) -> None:
        self._answering = answering
        self._lanes = lanes
        self._tokens = tokens
        self._only = only

    def handle(self, connection: Connection, frame: Asks) -> Slow | None:
        """Decide at once; return work that waits for the store. Raises BadFrame, BadParams, Refused."""
        if isinstance(frame, AbortFrame):
            return self._abort(connection, frame)
        if self._only not in (None, frame.id):
            why = "is another chat than the socket began with. Name a `client_id` in its URL to have several."
            raise BadParams(why, field="id")
        is_resumed = isinstance(frame, ResumeFrame)
        telling = self._lanes.open(frame.request_id, frame.id, is_resumed=is_resumed)
        if self._tokens.is_new(shown := token_of(frame.headers)):
            return self._with_token(connection, telling, frame, shown)
        return self._begin(connection, telling, frame)

    def _begin(self, connection: Connection, telling: Telling, frame: SendFrame | ResumeFrame) -> Slow | None:
        if isinstance(frame, ResumeFrame):
            return self._answering.resume(connection, telling, frame.id)
        return self._answering.begin(connection, telling, frame.request())

    async def _with_token(
        self, connection: Connection, telling: Telling, frame: SendFrame | ResumeFrame, shown: str | None
    ) -> None:
        """Begin once the token was checked, unless the request was aborted meanwhile."""
        if not await self._tokens.take(shown, ref=frame.request_id) or telling.is_stopped:
            return
        if (slow := self._begin(connection, telling, frame)) is not None:
            await slow

    def _abort(self, connection: Connection, frame: AbortFrame) -> Slow | None:
        """Stop a reply, unless it was resumed and is not sent yet: front ends withdraw such requests by themselves."""
        lane = self._lanes.drop(frame.request_id)
        if lane is None or (lane.is_resumed and not lane.telling.is_told_of):
            return None
        return self._answering.stop(connection, lane.telling, lane.chat_id)


def _first_of(asked: Asks) -> SendFrame | ResumeFrame:
    """Return the first frame if a socket may begin with it. Raises BadFrame."""
    if isinstance(asked, AbortFrame):
        raise BadFrame("The first frame must be a send or a resume.", ref=asked.ref)
    return asked


def _code_behind(why: Problem) -> CloseCode:
    match why:
        case Unauthenticated():
            return CloseCode.UNAUTHENTICATED
        case BadFrame():
            return CloseCode.POLICY
        case _:
            return CloseCode.OVERLOAD
