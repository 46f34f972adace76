"""`/v1/ai-sdk/chat` as a WebSocket: several requests on one socket, each with its own answer."""

from __future__ import annotations

import msgspec
from starlette.responses import Response
from starlette.websockets import WebSocket

from connections.aisdk.chat_handler import ChatHandler
from connections.aisdk.chunk_encoder import ChunkEncoder
from connections.aisdk.frames import AbortFrame, ClientFrame, Refused, ResumeFrame, SendFrame, token_of
from connections.aisdk.problems import Problem, code_of, error_response
from connections.aisdk.service import FEATURES, ChatService, chat_caller, named_client
from connections.aisdk.socket_streams import SocketStreams, decode
from connections.authentication.access import bearer
from connections.authentication.identity import Identity
from connections.authentication.session_validity import SessionValidity
from connections.connection import Connection, PendingWork
from connections.http.refusal_counters import EndpointName
from connections.middleware.client_address import client_address_of
from connections.outbox import Outbox
from connections.protocol.errors import BadFrame, BadParams, Close, CloseCode, Unauthenticated
from connections.websocket_endpoint import (
    OUTBOX_BYTES,
    MultilineTransport,
    WebSocketEndpoint,
    WebSocketTransport,
)
from sessions import errors

GRACE_S = 20
"""How long a reply waits for a client that lost its socket, by default: a reload takes less. A stop is explicit."""

_encode = msgspec.json.Encoder().encode


class FirstMessageReplay(MultilineTransport):
    """A socket whose first message has been read."""

    def __init__(self, socket: WebSocketTransport, message: str | bytes) -> None:
        super().__init__(socket)
        self._first: str | bytes | None = message

    async def receive(self) -> str | bytes:
        """Return the next message. Raises Disconnected."""
        if (first := self._first) is None:
            return await super().receive()
        self._first = None
        return first


class ChatHandshake(msgspec.Struct, frozen=True):
    """A client before it is identified. `client_id`: from the URL."""

    websocket: WebSocket
    client_id: str | None


class ChatSocketEndpoint(WebSocketEndpoint[ChatHandshake]):
    """Serves sockets: connections like native ones, with other frames."""

    def __init__(self, service: ChatService) -> None:
        super().__init__(EndpointName.AI_SDK, access=service.authenticator.access, limiters=service.limiters)
        self._service = service

    async def receive(self, websocket: WebSocket) -> ChatHandshake | Response:
        """Accept any well-formed URL: the first request may identify the client."""
        try:
            return ChatHandshake(websocket, named_client(websocket.query_params))
        except BadParams as why:
            self.tally.sent(code_of(why))
            return error_response(why)

    async def serve(self, socket: WebSocketTransport, handshake_info: ChatHandshake) -> None:
        """Serve one socket. Raises Close, Disconnected."""
        with self.limiters.handshake_limit.slot(client_address_of(handshake_info.websocket.scope)):
            message = await self.first(socket, "request")
            identity, opening = await self._authenticate(handshake_info.websocket, socket, message)
        await self._serve(handshake_info, FirstMessageReplay(socket, message), identity, opening)

    async def _authenticate(
        self, websocket: WebSocket, socket: WebSocketTransport, message: str | bytes
    ) -> tuple[Identity, SendFrame | ResumeFrame]:
        """Identify the client by the handshake or the first request, and return both. Raises Close."""
        request_id = ""
        try:
            opening = _opening_frame(decode(message))
            request_id = opening.request_id
            shown = websocket.headers.get("authorization") or token_of(opening.headers)
            identity = await self._service.authenticator.identity(shown, websocket.query_params.get("ticket"))
        except (BadFrame, Unauthenticated, errors.Refused) as why:
            self._send_error(socket, request_id, why)
            raise Close(_close_code(why), str(why)) from None
        return identity, opening

    def _send_error(self, socket: WebSocketTransport, request_id: str, why: Problem) -> None:
        self.tally.sent(code_of(why))
        if socket.is_writable():
            socket.write(_encode(Refused(request_id=request_id, error_text=str(why))))

    async def _serve(
        self,
        handshake_info: ChatHandshake,
        transport: FirstMessageReplay,
        identity: Identity,
        opening: SendFrame | ResumeFrame,
    ) -> None:
        streams = SocketStreams()
        connection = Connection(
            transport,
            caller=chat_caller(
                identity, handshake_info.client_id, opening.id, handshake_info.websocket.scope
            ),
            outbox=Outbox(max_bytes=OUTBOX_BYTES),
            features=FEATURES,
            tally=self.tally,
            encode=streams.encode,
        )
        chat_handler = await self._chat_handler()
        only_chat_id = None if handshake_info.client_id is not None or identity.is_person else opening.id
        async with self._service.lifecycle.of(connection):
            with self.access.watch(identity, connection) as validity:
                tokens = _TokenRefresher(validity, token_of(opening.headers))
                handler = SocketHandler(chat_handler, streams, tokens, only_chat_id=only_chat_id)
                await connection.serve(handler, decode)

    async def _chat_handler(self) -> ChatHandler:
        """Make what carries out requests. Raises Close."""
        try:
            return await self._service.chat_handler(grace_s=GRACE_S)
        except errors.EngineDown as error:
            raise Close(CloseCode.OVERLOAD, f"{error} Reconnect.") from error


class _TokenRefresher:
    """The tokens of a socket's requests: a new one must belong to the same principal."""

    def __init__(self, validity: SessionValidity, shown: str | None) -> None:
        self._validity = validity
        self._token = shown

    def is_new(self, shown: str | None) -> bool:
        """Return whether a request has another token than the last one."""
        return shown is not None and shown != self._token

    async def take(self, shown: str | None, *, ref: str) -> bool:
        """Take a token; return whether it is valid. Raises Refused."""
        self._token = shown
        return await self._validity.refresh(bearer(shown) or "", ref=ref)


class SocketHandler:
    """Answers one socket's frames. `only_chat_id`: its one chat, if nothing else identifies the owner."""

    def __init__(
        self,
        chat_handler: ChatHandler,
        streams: SocketStreams,
        tokens: _TokenRefresher,
        *,
        only_chat_id: str | None,
    ) -> None:
        self._chat_handler = chat_handler
        self._streams = streams
        self._tokens = tokens
        self._only_chat_id = only_chat_id

    def handle(self, connection: Connection, frame: ClientFrame) -> PendingWork | None:
        """Decide at once; return work that waits for the store. Raises BadFrame, BadParams, Refused."""
        if isinstance(frame, AbortFrame):
            return self._abort(connection, frame)
        if self._only_chat_id not in (None, frame.id):
            why = "is another chat than the socket began with. Name a `client_id` in its URL to have several."
            raise BadParams(why, field="id")
        is_resumed = isinstance(frame, ResumeFrame)
        encoder = self._streams.open(frame.request_id, frame.id, is_resumed=is_resumed)
        if self._tokens.is_new(shown := token_of(frame.headers)):
            return self._begin_with_token(connection, encoder, frame, shown)
        return self._begin(connection, encoder, frame)

    def _begin(
        self, connection: Connection, encoder: ChunkEncoder, frame: SendFrame | ResumeFrame
    ) -> PendingWork | None:
        if isinstance(frame, ResumeFrame):
            return self._chat_handler.resume(connection, encoder, frame.id)
        return self._chat_handler.begin(connection, encoder, frame.request())

    async def _begin_with_token(
        self, connection: Connection, encoder: ChunkEncoder, frame: SendFrame | ResumeFrame, shown: str | None
    ) -> None:
        """Begin once the token was checked, unless the request was aborted meanwhile."""
        if not await self._tokens.take(shown, ref=frame.request_id) or encoder.is_stopped:
            return
        if (slow := self._begin(connection, encoder, frame)) is not None:
            await slow

    def _abort(self, connection: Connection, frame: AbortFrame) -> PendingWork | None:
        """Stop a reply, unless it was resumed and is not sent yet: front ends withdraw such requests by themselves."""
        stream = self._streams.drop(frame.request_id)
        if stream is None or (stream.is_resumed and not stream.encoder.has_started):
            return None
        return self._chat_handler.stop(connection, stream.encoder, stream.chat_id)


def _opening_frame(opening: ClientFrame) -> SendFrame | ResumeFrame:
    """Return the first frame if a socket may begin with it. Raises BadFrame."""
    if isinstance(opening, AbortFrame):
        raise BadFrame("The first frame must be a send or a resume.", ref=opening.ref)
    return opening


def _close_code(why: Problem) -> CloseCode:
    match why:
        case Unauthenticated():
            return CloseCode.UNAUTHENTICATED
        case BadFrame():
            return CloseCode.POLICY
        case _:
            return CloseCode.OVERLOAD
