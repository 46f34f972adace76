"""`/v1/ai-sdk/chat`: a message is a streamed answer, or a stream of a WebSocket; a chat is a stored conversation.

A client that leaves detaches, as at every endpoint: `on_disconnect` says whether its reply continues.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from connections.api.ai_sdk.encoder import (
    Chunk,
    ChunkEncoder,
    StreamEnd,
    encode,
    is_running,
    latest_replies,
    ui_messages,
)
from connections.api.ai_sdk.requests import (
    FEATURES,
    PAGE,
    AbortFrame,
    ChatHandler,
    ChatService,
    ChunkFrame,
    ClientFrame,
    EndFrame,
    ErrorFrame,
    NoActiveFrame,
    Problem,
    ResumeFrame,
    SendFrame,
    ServerChatFrame,
    StartFrame,
    chat_caller,
    chat_request,
    error_response,
    foreign_origin_response,
    token_of,
)
from connections.api.endpoint import EventTransport, PageRoutes, identity_or_ticket
from connections.api.replies import newest_messages
from connections.authentication.access import SessionValidity, bearer
from connections.authentication.api_keys import Identity
from connections.authentication.caller import Caller
from connections.connection import Connection, PendingWork
from connections.http import (
    SSE_DONE,
    EndpointName,
    Exchange,
    error_code_of,
    json_response,
    optional_id,
    parse_id,
    sse,
)
from connections.middleware import client_address_of
from connections.protocol import codec
from connections.protocol.base import KeyScope, ServerFrame
from connections.protocol.errors import BadFrame, BadParams, Close, CloseCode, Unauthenticated
from connections.protocol.frames import Error, Frame
from connections.websocket_endpoint import MultilineTransport, WebSocketEndpoint, WebSocketTransport
from sessions.conversation.conversation import refusal_of
from sessions.conversation.history_page import HistoryPage
from sessions.errors import EngineDown, NotFound, Overloaded, Refused
from sessions.events import Event
from sessions.limits.slots import on_behalf_of
from sessions.turn.turn import Cancel

MESSAGES_IMAGE_BYTES = 8 * 1024 * 1024
"""Bytes of the images in a history, the newest first; further ones are left out."""
StartStream = Callable[[ChatHandler, Connection, ChunkEncoder], PendingWork | None]
PROTOCOL = {"x-vercel-ai-ui-message-stream": "v1"}
"""The header by which clients know the protocol."""
PATH = "/v1/ai-sdk/chat"
GRACE_S = 20
"""How long a reply waits for a client that lost its socket, by default: a reload takes less. A stop is explicit."""
MAX_STREAMS = 16
"""Messages that one socket may receive at a time."""
_decoder: msgspec.json.Decoder[ClientFrame] = msgspec.json.Decoder(ClientFrame)


class ChatStopped(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The outcome of a stop. `turn_id`: null if nothing ran; `already`: it had ended, or its end was decided."""

    turn_id: str | None
    already: bool


class ChatEndpoint:
    """Answers requests about chats."""

    def __init__(self, service: ChatService) -> None:
        self._service = service
        self._sessions = service.sessions
        self._limiters = service.limiters
        self._tally = service.limiters.tally(EndpointName.AI_SDK)

    def routes(self, pages: PageRoutes) -> list[BaseRoute]:
        """Return the routes below `/v1`."""

        def route(path: str, serve: Callable[[Exchange], PendingWork], method: str) -> BaseRoute:
            async def app(scope: Scope, receive: Receive, send: Send) -> None:
                await self._guard(Exchange(scope, receive, send), serve)

            return pages.route(PATH + path, app, method, refusal=foreign_origin_response)

        return [
            route("", self._send, "POST"),
            route("/{chat_id}/stream", self._resume, "GET"),
            route("/{chat_id}/stop", self._stop, "POST"),
            route("/{chat_id}/messages", self._messages, "GET"),
        ]

    async def _guard(self, exchange: Exchange, serve: Callable[[Exchange], PendingWork]) -> None:
        if exchange.request.method == "HEAD":
            await exchange.answer(Response(status_code=405, headers={"Allow": "GET, OPTIONS"}))
            return
        if (failed := await refusal_of(self._serve(exchange, serve))) is not None:
            await self._refuse(exchange, failed)

    async def _serve(self, exchange: Exchange, serve: Callable[[Exchange], PendingWork]) -> None:
        """Serve a request. Raises Refused."""
        try:
            await serve(exchange)
        except Close as why:
            await self._refuse(exchange, why)
        except ClientDisconnect:
            return

    async def _refuse(self, exchange: Exchange, why: Problem) -> None:
        if not exchange.begun:
            self._tally.sent(error_code_of(why))
            await exchange.answer(error_response(why))

    async def _send(self, exchange: Exchange) -> None:
        """Take a message, or outcomes of calls."""
        identity, client_id = await self._identify(exchange)
        reader = chat_caller(identity, client_id, "", exchange.request.scope)
        reader.grant.check(KeyScope.CHAT)
        self._limiters.take_read(reader.subject)
        with ExitStack() as body_lease:
            request = await self._service.request_context.read(exchange, reader, body_lease, chat_request)
            caller = chat_caller(identity, client_id, request.id, exchange.request.scope)
            await self._stream(
                exchange,
                caller,
                request.id,
                lambda handler, view, encoder: handler.begin(view, encoder, request),
                body_lease.close,
            )

    async def _resume(self, exchange: Exchange) -> None:
        """Send the message that is being written, from its start."""
        chat_id, caller = await self._caller_of_path(exchange)
        try:
            await self._stream(
                exchange,
                caller,
                chat_id,
                lambda handler, view, encoder: handler.resume(view, encoder, chat_id),
            )
        except NotFound:  # the chat has no message yet
            await exchange.answer(Response(status_code=204))

    async def _stop(self, exchange: Exchange) -> None:
        """End the current message."""
        chat_id, caller = await self._caller_of_path(exchange)
        caller.grant.check(KeyScope.CHAT)
        self._limiters.take_read(caller.subject)
        owner, cancel = caller.owner, Cancel(conversation_id=chat_id)
        met = self._sessions.turns.cancel(owner, cancel)
        if met is None or met.is_part or met.is_forwarded:
            with on_behalf_of(caller.store_group):
                elsewhere = await self._sessions.cancel_elsewhere(owner, cancel)
            met = met or elsewhere
        await exchange.answer(json_response(ChatStopped(turn_id=met.turn_id, already=met.already)))

    async def _messages(self, exchange: Exchange) -> None:
        """Send the stored messages of a chat, without the one that is being written."""
        chat_id, caller = await self._caller_of_path(exchange)
        caller.grant.check(KeyScope.READ)
        self._limiters.take_read(caller.subject)
        with on_behalf_of(caller.store_group):
            messages = await newest_messages(self._sessions, caller.owner, chat_id, PAGE)
        chain = latest_replies(messages)
        kept = messages[: len(messages) - len(chain)] if is_running(chain) else messages
        shown = [one.id for message in kept if message.attachments for one in message.attachments]
        images = await self._sessions.images.newest(
            caller.owner, chat_id, reversed(shown), most=MESSAGES_IMAGE_BYTES
        )
        await exchange.answer(json_response(ui_messages(kept, images)))

    async def _identify(self, exchange: Exchange) -> tuple[Identity, str | None]:
        """Return the identity, and the client id in the URL. Raises Refused."""
        query = exchange.request.query_params
        client_id = optional_id(query, "client_id")
        authorization = exchange.request.headers.get("authorization")
        return await identity_or_ticket(self._service.access, authorization, query.get("ticket")), client_id

    async def _caller_of_path(self, exchange: Exchange) -> tuple[str, Caller]:
        """Return the path's chat id, and the caller. Raises Refused."""
        chat_id = parse_id("id", exchange.request.path_params["chat_id"])
        identity, client_id = await self._identify(exchange)
        return chat_id, chat_caller(identity, client_id, chat_id, exchange.request.scope)

    async def _stream(
        self,
        exchange: Exchange,
        caller: Caller,
        chat_id: str,
        begin: StartStream,
        begun: Callable[[], None] = lambda: None,
    ) -> None:
        """Stream an answer. Raises Close, Refused before its first byte."""
        encoder = ChunkEncoder(ref=secrets.token_hex(16))
        transport = MessageTransport(exchange, encoder)
        view = Connection(
            transport,
            caller=caller,
            features=FEATURES,
            tally=self._tally,
            encode=transport.encode,
        )
        # A reply does not wait for a client that left.
        chat_handler = await self._service.chat_handler(grace_s=0)
        async with self._service.lifecycle.registered(view):
            if (slow := begin(chat_handler, view, encoder)) is not None:
                await slow
            begun()
            if encoder.end is StreamEnd.NOTHING:
                await exchange.answer(Response(status_code=204))
                return
            with self._service.access.watch(caller.identity, view):
                await transport.begin(view.connection_id, PROTOCOL)
                await view.run(partial(_live, view, transport))
            if (
                encoder.end is StreamEnd.WAITING_FOR_CLIENT
            ):  # its client leaves in order to answer; that cancels no call
                self._sessions.keep_calls(view.owner, chat_id, encoder.turn_id or "", kept=True)


async def _live(view: Connection, transport: MessageTransport, tasks: asyncio.TaskGroup) -> None:
    tasks.create_task(transport.send())
    tasks.create_task(_end(view, transport))
    await transport.receive()


async def _end(view: Connection, transport: MessageTransport) -> None:
    """End the answer once its reader has all of it."""
    await transport.drained()
    view.shut(Close(CloseCode.BYE, "The message is complete."))


class MessageTransport(EventTransport):
    """The events of one message. An answer that ends before its message says why."""

    def __init__(self, exchange: Exchange, encoder: ChunkEncoder) -> None:
        super().__init__(exchange, b"")
        self._over = asyncio.Event()
        self._encoder = encoder

    def encode(self, frame: Frame) -> bytes:
        """Return the events of a frame."""
        if (chunk := self._encoder.delta(frame)) is not None:
            return sse(chunk)
        return self._events(self._encoder.encode(frame))

    def _events(self, chunks: list[Chunk]) -> bytes:
        events = b"".join(sse(encode(chunk)) for chunk in chunks)
        if not self._encoder.is_over or self._over.is_set():
            return events
        self._over.set()
        return events + SSE_DONE

    async def drained(self) -> None:
        """Wait until the message has ended, and the server has taken what waits."""
        await self._over.wait()
        while self._buffer:
            self._drained.clear()
            await self._drained.wait()

    async def close(self, code: int, reason: str) -> None:
        """End the answer."""
        self.write(self._events(self._encoder.fail(reason)))
        await super().close(code, reason)


def aisdk_routes(endpoint: ChatEndpoint, socket: ChatSocketEndpoint, pages: PageRoutes) -> list[BaseRoute]:
    """Return the routes below `/v1`."""
    return [*endpoint.routes(pages), WebSocketRoute(PATH, socket.handle)]


class ChatHandshake(msgspec.Struct, frozen=True):
    """A client before it is identified. `client_id`: from the URL."""

    websocket: WebSocket
    client_id: str | None


class ChatSocketEndpoint(WebSocketEndpoint[ChatHandshake]):
    """Serves sockets: connections like native ones, with other frames. Each may have several requests, with a stream for each."""

    def __init__(self, service: ChatService) -> None:
        super().__init__(EndpointName.AI_SDK, access=service.access, limiters=service.limiters)
        self._service = service

    async def read_handshake(self, websocket: WebSocket) -> ChatHandshake | Response:
        """Accept any well-formed URL: the first request may identify the client."""
        try:
            return ChatHandshake(websocket, optional_id(websocket.query_params, "client_id"))
        except BadParams as why:
            self.tally.sent(error_code_of(why))
            return error_response(why)

    async def serve(self, socket: WebSocketTransport, handshake_info: ChatHandshake) -> None:
        """Serve one socket. Raises Close, Disconnected."""
        with self.limiters.handshake_limit.slot(client_address_of(handshake_info.websocket.scope)):
            message = await self.first_message(socket, "request")
            identity, opening = await self._authenticate(handshake_info.websocket, socket, message)
        await self._serve(handshake_info, MultilineTransport(socket, first=message), identity, opening)

    async def _authenticate(
        self, websocket: WebSocket, socket: WebSocketTransport, message: str | bytes
    ) -> tuple[Identity, SendFrame | ResumeFrame]:
        """Return the identity by the handshake or the first request, and that request. Raises Close."""
        request_id = ""
        try:
            opening = decode(message)
            if isinstance(opening, AbortFrame):
                raise BadFrame("The first frame must be a send or a resume.", ref=opening.ref)
            request_id = opening.request_id
            shown = websocket.headers.get("authorization") or token_of(opening.headers)
            identity = await identity_or_ticket(self.access, shown, websocket.query_params.get("ticket"))
        except Refused as why:
            self.tally.sent(error_code_of(why))
            if socket.is_writable():
                socket.write(encode(ErrorFrame(request_id=request_id, error_text=str(why))))
            raise Close(_close_code(why), str(why)) from None
        return identity, opening

    async def _serve(
        self,
        handshake_info: ChatHandshake,
        transport: MultilineTransport,
        identity: Identity,
        opening: SendFrame | ResumeFrame,
    ) -> None:
        streams = SocketStreams()
        connection = Connection(
            transport,
            caller=chat_caller(
                identity, handshake_info.client_id, opening.id, handshake_info.websocket.scope
            ),
            features=FEATURES,
            tally=self.tally,
            encode=streams.encode,
        )
        chat_handler = await self._chat_handler()
        only_chat_id = None if handshake_info.client_id is not None or identity.is_person else opening.id
        async with self._service.lifecycle.registered(connection):
            with self.access.watch(identity, connection) as validity:
                token = token_of(opening.headers)
                handler = SocketHandler(
                    chat_handler, streams, validity, token=token, only_chat_id=only_chat_id
                )
                await connection.serve(handler, decode)

    async def _chat_handler(self) -> ChatHandler:
        """Make the handler of requests. Raises Close."""
        try:
            return await self._service.chat_handler(grace_s=GRACE_S)
        except EngineDown as error:
            raise Close(CloseCode.OVERLOAD, f"{error} Reconnect.") from error


class SocketHandler:
    """Answers one socket's frames. `only_chat_id`: its one chat, if nothing else identifies the owner.

    `token`: of the last request; a new one must belong to the same principal, which `validity` checks.
    """

    def __init__(
        self,
        chat_handler: ChatHandler,
        streams: SocketStreams,
        validity: SessionValidity,
        *,
        token: str | None,
        only_chat_id: str | None,
    ) -> None:
        self._chat_handler = chat_handler
        self._streams = streams
        self._validity = validity
        self._token = token
        self._only_chat_id = only_chat_id

    def handle(self, connection: Connection, frame: ClientFrame) -> PendingWork | None:
        """Decide at once; return work that waits for the store. Raises Refused."""
        if isinstance(frame, AbortFrame):
            stream = self._streams.drop(frame.request_id)
            # front ends withdraw by themselves what they resumed, and was not sent yet
            if stream is None or (stream.is_resumed and not stream.encoder.has_started):
                return None
            return self._chat_handler.stop(connection, stream.encoder, stream.chat_id)
        if self._only_chat_id not in (None, frame.id):
            why = "differs from the first chat of this WebSocket. Add `client_id` to its URL to use several."
            raise BadParams(why, field="id")
        is_resumed = isinstance(frame, ResumeFrame)
        encoder = self._streams.open(frame.request_id, frame.id, is_resumed=is_resumed)
        shown = token_of(frame.headers)
        if shown is not None and shown != self._token:
            return self._begin_with_token(connection, encoder, frame, shown)
        return self._begin(connection, encoder, frame)

    def _begin(
        self, connection: Connection, encoder: ChunkEncoder, frame: SendFrame | ResumeFrame
    ) -> PendingWork | None:
        if isinstance(frame, ResumeFrame):
            return self._chat_handler.resume(connection, encoder, frame.id)
        return self._chat_handler.begin(connection, encoder, frame.request())

    async def _begin_with_token(
        self, connection: Connection, encoder: ChunkEncoder, frame: SendFrame | ResumeFrame, shown: str
    ) -> None:
        """Begin once the token was checked, unless the request was aborted meanwhile."""
        self._token = shown
        is_valid = await self._validity.refresh(bearer(shown) or "", ref=frame.request_id)
        if not is_valid or encoder.is_stopped:
            return
        if (slow := self._begin(connection, encoder, frame)) is not None:
            await slow


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
        self._before = b'{"type":"chunk","requestId":%b,"sequence":' % encode(request_id)

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
            raise BadParams("is already used by a running request.", field="requestId")
        if len(self._streams) >= MAX_STREAMS:
            raise Overloaded(f"A socket may have at most {MAX_STREAMS} replies at a time.")
        stream = self._streams[request_id] = SocketStream(request_id, chat_id, is_resumed=is_resumed)
        return stream.encoder

    def drop(self, request_id: str) -> SocketStream | None:
        """Send no more of a request; return its stream, if there is one."""
        return self._streams.pop(request_id, None)

    def encode(self, frame: Frame) -> bytes:
        """Return the lines of a frame: none, one or several. JSON contains no line breaks."""
        if isinstance(frame, Error):
            return b"\n".join(map(encode, self._refused(frame)))
        sent: list[bytes] = []
        for request_id, stream in list(self._streams.items()):
            if not _is_for(frame, request_id, stream):
                continue
            if (line := stream.delta(frame)) is not None:
                sent.append(line)
                continue
            sent += map(encode, stream.frames(stream.encoder.encode(frame)))
            if stream.encoder.is_over:
                del self._streams[request_id]
        return b"\n".join(sent)

    def _refused(self, error: Error) -> list[ServerChatFrame]:
        stream = self._streams.pop(error.ref or "", None)
        if stream is not None and stream.encoder.has_started:
            return stream.frames(stream.encoder.fail(error.message))
        if error.code == "not_found" and stream is not None and stream.is_resumed:
            return [NoActiveFrame(request_id=error.ref or "")]
        return [ErrorFrame(request_id=error.ref or "", error_text=error.message)]


def _is_for(frame: Frame, request_id: str, stream: SocketStream) -> bool:
    if isinstance(frame, HistoryPage | ServerFrame):
        return frame.ref == request_id
    return isinstance(frame, Event) and frame.conversation_id == stream.chat_id
