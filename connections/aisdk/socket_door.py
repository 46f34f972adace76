"""`/v1/ai-sdk/chat` as a WebSocket: many requests on one socket, each of which is told on its own."""

from __future__ import annotations

import asyncio

import msgspec
import structlog
from starlette.websockets import WebSocket

from connections.aisdk.answering import Answering
from connections.aisdk.frames import AbortFrame, Asks, Refused, ResumeFrame, SendFrame, token_of
from connections.aisdk.host import FEATURES, Host, guest_of, named_client
from connections.aisdk.lanes import Lanes, decode
from connections.aisdk.problems import Problem, answer_of, code_of
from connections.authentication.authenticator import bearer
from connections.authentication.identity import Identity
from connections.authentication.standing import Standing
from connections.gate.client_address import client_of
from connections.http.json_answers import foreign_page, too_many_at_once
from connections.http.refusals import Door, Refusal
from connections.limits.bounds import Bound
from connections.line.connection import Connection, Disconnected
from connections.line.lines import Lines
from connections.line.outbox import Outbox
from connections.line.requests import Slow
from connections.native.endpoint import HELLO_S, OUTBOX_BYTES, Socket
from connections.wire.errors import BadFrame, BadParams, Close, CloseCode, Unauthenticated
from sessions import errors

GRACE_S = 20
"""How long a reply waits for a client whose socket is gone, if it does not say: a reload takes less. What is stopped is said so here."""

_log = structlog.get_logger("midstream.connection")
_encode = msgspec.json.Encoder().encode


class First(Lines):
    """A socket whose first message was read before."""

    def __init__(self, socket: Socket, message: str | bytes) -> None:
        super().__init__(socket)
        self._first: str | bytes | None = message
        self._rest = socket.receive
        self.receive = self._receive

    async def _receive(self) -> str | bytes:
        if (first := self._first) is None:
            return await self._rest()
        self._first = None
        return first


class SocketDoor:
    """Serves sockets: connections like those of the native socket in all but their words."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._limiters = host.limiters
        self._tally = host.limiters.tally(Door.AI_SDK)

    async def accept(self, websocket: WebSocket) -> None:
        """Serves one socket from handshake to close."""
        origin, host = websocket.headers.get("origin"), websocket.headers.get("host")
        if not self._host.guests.access.origins.allow(origin, host=host):
            self._limiters.refusals.count(Refusal.ORIGIN)
            await websocket.send_denial_response(foreign_page(origin))
            return
        if self._limiters.no_place_for(client_of(websocket.scope)):
            await websocket.send_denial_response(too_many_at_once())
            return
        try:
            client_id = named_client(websocket.query_params)
        except BadParams as why:
            self._tally.told(code_of(why))
            await websocket.send_denial_response(answer_of(why))
            return
        await websocket.accept()
        await self._live(websocket, client_id)

    async def _live(self, websocket: WebSocket, client_id: str | None) -> None:
        socket = Socket(websocket, self._limiters.turns)
        try:
            with self._limiters.waiting_room.place(client_of(websocket.scope)):
                message = await self._first(socket)
                identity, asked = await self._let_in(websocket, socket, message)
            await self._serve(websocket, First(socket, message), identity, client_id, asked)
        except Close as close:
            await socket.close(close.code, close.reason)
        except Disconnected:
            return
        except Exception:  # noqa: BLE001 - a task's boundary: this connection ends, the others don't notice
            _log.exception("connection failed")
            await socket.close(CloseCode.INTERNAL, "An internal error; reconnect.")

    async def _first(self, socket: Socket) -> str | bytes:
        """The first message. Raises Close, Disconnected."""
        try:
            async with asyncio.timeout(HELLO_S):
                return await socket.receive()
        except TimeoutError:
            self._limiters.bounds.count(Bound.HELLO_TIME)
            raise Close(CloseCode.NO_HELLO, f"No request within {HELLO_S:g} s.") from None

    async def _let_in(
        self, websocket: WebSocket, socket: Socket, message: str | bytes
    ) -> tuple[Identity, SendFrame | ResumeFrame]:
        """Who comes, by the handshake or the first request, and what that is. Raises Close."""
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
        self._tally.told(code_of(why))
        if socket.is_writable:
            socket.write(_encode(Refused(request_id=request_id, error_text=str(why))))

    async def _serve(
        self,
        websocket: WebSocket,
        transport: First,
        identity: Identity,
        client_id: str | None,
        asked: SendFrame | ResumeFrame,
    ) -> None:
        lanes = Lanes()
        connection = Connection(
            transport,
            caller=guest_of(identity, client_id, asked.id, websocket.scope),
            outbox=Outbox(max_bytes=OUTBOX_BYTES),
            features=FEATURES,
            tally=self._tally,
            encode=lanes.encode,
        )
        answering = await self._answering()
        only = None if client_id is not None or identity.is_person else asked.id
        async with self._host.presence.of(connection):
            with self._host.guests.access.inside(identity, connection) as standing:
                tokens = _Tokens(standing, token_of(asked.headers))
                handler = SocketHandler(answering, lanes, tokens, only=only)
                await connection.serve(handler, decode)

    async def _answering(self) -> Answering:
        """What carries requests out. Raises Close."""
        try:
            return await self._host.answering(grace_s=GRACE_S)
        except errors.EngineDown as error:
            raise Close(CloseCode.OVERLOAD, f"{error} Reconnect.") from error


class _Tokens:
    """The token of the requests of one socket: a new one has to be the same principal's."""

    def __init__(self, standing: Standing, shown: str | None) -> None:
        self._standing = standing
        self._shown = shown

    def is_new(self, shown: str | None) -> bool:
        """Whether a request shows another one than the last."""
        return shown is not None and shown != self._shown

    async def take(self, shown: str | None, *, ref: str) -> bool:
        """Takes it; whether it is good. Raises Refused."""
        self._shown = shown
        return await self._standing.refresh(bearer(shown) or "", ref=ref)


class SocketHandler:
    """Answers one socket's frames. `only`: the one chat that it is about, where nothing else says whose it is."""

    def __init__(self, answering: Answering, lanes: Lanes, tokens: _Tokens, *, only: str | None) -> None:
        self._answering = answering
        self._lanes = lanes
        self._tokens = tokens
        self._only = only

    def handle(self, connection: Connection, frame: Asks) -> Slow | None:
        """Decides at once; gives back what waits for the store. Raises BadFrame, BadParams, Refused."""
        if isinstance(frame, AbortFrame):
            return self._abort(connection, frame)
        if self._only not in (None, frame.id):
            why = "is another chat than the socket began with. Name a `client_id` in its URL to have several."
            raise BadParams(why, field="id")
        if self._tokens.is_new(shown := token_of(frame.headers)):
            return self._with_token(connection, frame, shown)
        return self._begin(connection, frame)

    def _begin(self, connection: Connection, frame: SendFrame | ResumeFrame) -> Slow | None:
        is_resumed = isinstance(frame, ResumeFrame)
        telling = self._lanes.open(frame.request_id, frame.id, is_resumed=is_resumed)
        if isinstance(frame, ResumeFrame):
            return self._answering.resume(connection, telling, frame.id)
        return self._answering.begin(connection, telling, frame.request())

    async def _with_token(
        self, connection: Connection, frame: SendFrame | ResumeFrame, shown: str | None
    ) -> None:
        if not await self._tokens.take(shown, ref=frame.request_id):
            return
        if (slow := self._begin(connection, frame)) is not None:
            await slow

    def _abort(self, connection: Connection, frame: AbortFrame) -> Slow | None:
        """A stop, but of what was resumed and is not told so far: front ends take such requests back by themselves."""
        lane = self._lanes.drop(frame.request_id)
        if lane is None or (lane.is_resumed and not lane.telling.is_told_of):
            return None
        return self._answering.stop(connection, lane.telling, lane.chat_id)


def _first_of(asked: Asks) -> SendFrame | ResumeFrame:
    """What a socket may begin with. Raises BadFrame."""
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
