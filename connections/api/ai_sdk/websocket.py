"""`/v1/ai-sdk/chat` as a WebSocket: several requests on one socket, a stream for each, with its own answer."""

from __future__ import annotations

import msgspec
from starlette.responses import Response
from starlette.websockets import WebSocket

from connections.api.ai_sdk.encoder import Chunk, ChunkEncoder, StreamEnd
from connections.api.ai_sdk.requests import (
    AbortFrame,
    ChunkFrame,
    ClientFrame,
    EndFrame,
    NoActiveFrame,
    Refused,
    ResumeFrame,
    SendFrame,
    ServerChatFrame,
    StartFrame,
    token_of,
)
from connections.api.ai_sdk.service import (
    FEATURES,
    ChatHandler,
    ChatService,
    Problem,
    chat_caller,
    error_response,
)
from connections.api.endpoint import identity_or_ticket
from connections.authentication.access import bearer
from connections.authentication.identity import Identity
from connections.authentication.session_validity import SessionValidity
from connections.connection import Connection, PendingWork
from connections.http.inputs import optional_id
from connections.http.json_responses import error_code_of
from connections.http.refusal_counters import EndpointName
from connections.middleware.client_address import client_address_of
from connections.outbox import Outbox
from connections.protocol import codec
from connections.protocol.errors import BadFrame, BadParams, Close, CloseCode, Unauthenticated
from connections.protocol.frames import Error, Frame, ServerFrame
from connections.websocket_endpoint import MultilineTransport, WebSocketEndpoint, WebSocketTransport
from sessions import errors
from sessions.conversation.history_page import HistoryPage
from sessions.errors import Overloaded
from sessions.events import Event
from sessions.limits.bounds import OUTBOX_BYTES

GRACE_S = 20
"""How long a reply waits for a client that lost its socket, by default: a reload takes less. A stop is explicit."""
_encode = msgspec.json.Encoder().encode
MAX_STREAMS = 16
"""Messages that one socket may receive at a time."""
_decoder: msgspec.json.Decoder[ClientFrame] = msgspec.json.Decoder(ClientFrame)


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
        super().__init__(EndpointName.AI_SDK, access=service.access, limiters=service.limiters)
        self._service = service

    async def receive(self, websocket: WebSocket) -> ChatHandshake | Response:
        """Accept any well-formed URL: the first request may identify the client."""
        try:
            return ChatHandshake(websocket, optional_id(websocket.query_params, "client_id"))
        except BadParams as why:
            self.tally.sent(error_code_of(why))
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
            identity = await identity_or_ticket(self.access, shown, websocket.query_params.get("ticket"))
        except (BadFrame, Unauthenticated, errors.Refused) as why:
            self._send_error(socket, request_id, why)
            raise Close(_close_code(why), str(why)) from None
        return identity, opening

    def _send_error(self, socket: WebSocketTransport, request_id: str, why: Problem) -> None:
        self.tally.sent(error_code_of(why))
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


def decode(message: str | bytes) -> ClientFrame:
    """Return one frame. Raises BadFrame, which names the wrong field."""
    return codec.read(_decoder, message)


class SocketStream:
    """One request. `is_resumed`: it asked for a message that was being written."""

    def __init__(self, request_id: str, chat_id: str, *, is_resumed: bool) -> None:
        self.chat_id = chat_id
        self.is_resumed = is_resumed
        self.encoder = ChunkEncoder(ref=request_id)
        self._request_id = request_id
        self._sequence = -1
        self._before = b'{"type":"chunk","requestId":%b,"sequence":' % _encode(request_id)

    def delta(self, frame: Frame) -> bytes | None:
        """Return the line of a frame that only extends the open part; None: use `frames`."""
        if (chunk := self.encoder.delta(frame)) is None:
            return None
        self._sequence += 1
        return b'%b%d,"chunk":%b}' % (self._before, self._sequence, chunk)

    def frames(self, chunks: list[Chunk]) -> list[ServerChatFrame]:
        """Return the frames of chunks, with the end after the last one."""
        if self.encoder.end is StreamEnd.NOTHING:
            return [NoActiveFrame(request_id=self._request_id)]
        sent: list[ServerChatFrame] = []
        for chunk in chunks:
            if self._sequence < 0:
                sent.append(StartFrame(request_id=self._request_id))
            self._sequence += 1
            sent.append(ChunkFrame(request_id=self._request_id, sequence=self._sequence, chunk=chunk))  # type: ignore[arg-type]  # each chunk is one of them
        return [*sent, EndFrame(request_id=self._request_id)] if self.encoder.is_over else sent


class SocketStreams:
    """All streams of one socket."""

    def __init__(self) -> None:
        self._streams: dict[str, SocketStream] = {}

    def open(self, request_id: str, chat_id: str, *, is_resumed: bool) -> ChunkEncoder:
        """Open a stream. Raises BadParams, Overloaded."""
        if request_id in self._streams:
            raise BadParams("was used before, by a request that has not ended.", field="requestId")
        if len(self._streams) >= MAX_STREAMS:
            raise Overloaded(f"A socket has at most {MAX_STREAMS} replies at a time.")
        stream = self._streams[request_id] = SocketStream(request_id, chat_id, is_resumed=is_resumed)
        return stream.encoder

    def drop(self, request_id: str) -> SocketStream | None:
        """Send no more of a request; return its stream, if there is one."""
        return self._streams.pop(request_id, None)

    def encode(self, frame: Frame) -> bytes:
        """Return the lines of a frame: none, one or several. JSON contains no line breaks."""
        if isinstance(frame, Error):
            return b"\n".join(map(_encode, self._refused(frame)))
        sent: list[bytes] = []
        for request_id, stream in list(self._streams.items()):
            if not _is_for(frame, request_id, stream):
                continue
            if (line := stream.delta(frame)) is not None:
                sent.append(line)
                continue
            sent += map(_encode, stream.frames(stream.encoder.encode(frame)))
            if stream.encoder.is_over:
                del self._streams[request_id]
        return b"\n".join(sent)

    def _refused(self, error: Error) -> list[ServerChatFrame]:
        stream = self._streams.pop(error.ref or "", None)
        if stream is not None and stream.encoder.has_started:
            return stream.frames(stream.encoder.fail(error.message))
        if error.code == "not_found" and stream is not None and stream.is_resumed:
            return [NoActiveFrame(request_id=error.ref or "")]
        return [Refused(request_id=error.ref or "", error_text=error.message)]


def _is_for(frame: Frame, request_id: str, stream: SocketStream) -> bool:
    if isinstance(frame, HistoryPage | ServerFrame):
        return frame.ref == request_id
    return isinstance(frame, Event) and frame.conversation_id == stream.chat_id
