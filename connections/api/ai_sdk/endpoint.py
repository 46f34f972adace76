"""`/v1/ai-sdk/chat` over HTTP: a message is a streamed answer, and a chat is a stored conversation.

A client that leaves detaches, as at every endpoint: `on_disconnect` says whether its reply continues.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from connections.api.ai_sdk.encoder import (
    Chunk,
    ChunkEncoder,
    StreamEnd,
    encode,
    is_running,
    latest_replies,
    ui_messages,
)
from connections.api.ai_sdk.requests import chat_request
from connections.api.ai_sdk.service import (
    FEATURES,
    PAGE,
    ChatHandler,
    ChatService,
    Problem,
    chat_caller,
    error_response,
    foreign_origin_response,
)
from connections.api.ai_sdk.websocket import ChatSocketEndpoint
from connections.api.endpoint import identity_or_ticket
from connections.api.event_transport import EventTransport
from connections.authentication.caller import Caller
from connections.authentication.identity import Identity
from connections.connection import Connection, PendingWork
from connections.http.exchange import Exchange
from connections.http.inputs import optional_id, parse_id
from connections.http.json_responses import error_code_of, json_response
from connections.http.refusal_counters import EndpointName, RefusalCounters
from connections.middleware.origins import AllowedOrigins, CorsMiddleware
from connections.outbox import Outbox
from connections.protocol.errors import BadFrame, BadParams, Close, CloseCode, Unauthenticated
from connections.protocol.frames import Frame
from connections.protocol.scopes import KeyScope
from engine.vision.image import Image
from sessions.conversation.conversation import refusal_of
from sessions.conversation.history_page import ShownMessage
from sessions.errors import NotFound
from sessions.limits.bounds import OUTBOX_BYTES
from sessions.limits.slots import on_behalf_of
from sessions.turn.turn import Cancel, NullSubscriber

MESSAGES_IMAGE_BYTES = 8 * 1024 * 1024
"""Bytes of the images in a history, the newest first; further ones are left out."""
StartStream = Callable[[ChatHandler, Connection, ChunkEncoder], PendingWork | None]
PROTOCOL = {"x-vercel-ai-ui-message-stream": "v1"}
"""The header by which clients know the protocol."""
_DONE = b"data: [DONE]\n\n"
PATH = "/v1/ai-sdk/chat"


class ChatClient(NamedTuple):
    """The client of a request, and how it is counted."""

    identity: Identity
    caller: Caller


class ChatStopped(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The outcome of a stop. `turn_id`: null if nothing ran; `already`: it had ended, or its end was decided."""

    turn_id: str | None
    already: bool


def _noop() -> None:
    pass


class ChatEndpoint:
    """Answers requests about chats."""

    def __init__(self, service: ChatService) -> None:
        self._service = service
        self._sessions = service.sessions
        self._limiters = service.limiters
        self._tally = service.limiters.tally(EndpointName.AI_SDK)

    async def send(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`POST /v1/ai-sdk/chat`: a message, or what came of calls."""
        await self._guard(Exchange(scope, receive, send), self._send)

    async def resume(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`GET …/{chat_id}/stream`: the message that is being written, from its start."""
        await self._guard(Exchange(scope, receive, send), self._resume)

    async def stop(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`POST …/{chat_id}/stop`: ends what is being written."""
        await self._guard(Exchange(scope, receive, send), self._stop)

    async def messages(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`GET …/{chat_id}/messages`: the stored messages of a chat, without the one that is being written."""
        await self._guard(Exchange(scope, receive, send), self._messages)

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
        except (BadFrame, BadParams, Unauthenticated, Close) as why:
            await self._refuse(exchange, why)
        except ClientDisconnect:
            return

    async def _refuse(self, exchange: Exchange, why: Problem) -> None:
        if not exchange.begun:
            self._tally.sent(error_code_of(why))
            await exchange.answer(error_response(why))

    async def _send(self, exchange: Exchange) -> None:
        identity, client_id = await self._identify(exchange)
        reader = chat_caller(identity, client_id, "", exchange.request.scope)
        reader.grant.check(KeyScope.CHAT)
        self._take_read(reader)
        with ExitStack() as body_lease:
            request = await self._service.request_context.read(exchange, reader, body_lease, chat_request)

            def begin(
                chat_handler: ChatHandler, view: Connection, encoder: ChunkEncoder
            ) -> PendingWork | None:
                return chat_handler.begin(view, encoder, request)

            handshake_info = ChatClient(
                identity, chat_caller(identity, client_id, request.id, exchange.request.scope)
            )
            await self._stream(exchange, handshake_info, request.id, begin, body_lease.close)

    async def _resume(self, exchange: Exchange) -> None:
        chat_id, handshake_info = await self._client_of_path(exchange)

        def begin(chat_handler: ChatHandler, view: Connection, encoder: ChunkEncoder) -> PendingWork | None:
            return chat_handler.resume(view, encoder, chat_id)

        try:
            await self._stream(exchange, handshake_info, chat_id, begin)
        except NotFound:  # it has no message yet
            await exchange.answer(Response(status_code=204))

    async def _stop(self, exchange: Exchange) -> None:
        chat_id, handshake_info = await self._client_of_path(exchange)
        handshake_info.caller.grant.check(KeyScope.CHAT)
        self._take_read(handshake_info.caller)
        owner, cancel = handshake_info.caller.owner, Cancel(conversation_id=chat_id)
        met = self._sessions.turns.cancel(owner, cancel)
        if met is None or met.is_part or met.is_forwarded:
            with on_behalf_of(handshake_info.caller.group or handshake_info.caller.client.client_id):
                elsewhere = await self._sessions.cancel_elsewhere(owner, cancel)
            met = met or elsewhere
        await exchange.answer(json_response(ChatStopped(turn_id=met.turn_id, already=met.already)))

    async def _messages(self, exchange: Exchange) -> None:
        chat_id, handshake_info = await self._client_of_path(exchange)
        handshake_info.caller.grant.check(KeyScope.READ)
        self._take_read(handshake_info.caller)
        owner, reader = handshake_info.caller.owner, NullSubscriber()
        try:
            with on_behalf_of(handshake_info.caller.group or handshake_info.caller.client.client_id):
                shown = await self._sessions.history(owner, reader, chat_id, limit=PAGE)
        except NotFound:
            await exchange.answer(json_response([]))
            return
        finally:
            self._sessions.disconnect(reader)
        messages = shown.page.messages
        chain = latest_replies(messages)
        kept = messages[: len(messages) - len(chain)] if is_running(chain) else messages
        images = await self._images(handshake_info.caller, chat_id, kept)
        await exchange.answer(json_response(ui_messages(kept, images)))

    async def _images(
        self, caller: Caller, chat_id: str, messages: Sequence[ShownMessage]
    ) -> dict[str, Image]:
        """Return the newest images of messages, up to a number of bytes. Raises StoreDown."""
        shown = [one.id for message in messages if message.attachments for one in message.attachments]
        images = self._sessions.images
        return await images.newest(caller.owner, chat_id, reversed(shown), most=MESSAGES_IMAGE_BYTES)

    async def _identify(self, exchange: Exchange) -> tuple[Identity, str | None]:
        """Return who asks, and the client that the URL names. Raises BadParams, Unauthenticated, Refused."""
        query = exchange.request.query_params
        client_id = optional_id(query, "client_id")
        authorization = exchange.request.headers.get("authorization")
        return await identity_or_ticket(self._service.access, authorization, query.get("ticket")), client_id

    async def _client_of_path(self, exchange: Exchange) -> tuple[str, ChatClient]:
        """Return the chat of a path, and its client. Raises BadParams, Unauthenticated, Refused."""
        chat_id = parse_id("id", exchange.request.path_params["chat_id"])
        identity, client_id = await self._identify(exchange)
        return chat_id, ChatClient(
            identity, chat_caller(identity, client_id, chat_id, exchange.request.scope)
        )

    def _take_read(self, caller: Caller) -> None:
        """Count a request before anything is read for it. Raises RateLimited."""
        self._limiters.take_read(caller.subject)

    async def _stream(
        self,
        exchange: Exchange,
        handshake_info: ChatClient,
        chat_id: str,
        begin: StartStream,
        begun: Callable[[], None] = _noop,
    ) -> None:
        """Stream an answer. Raises BadFrame, BadParams, Close, Refused before its first byte."""
        encoder = ChunkEncoder(ref=secrets.token_hex(16))
        stream = SseStream(encoder)
        transport = SseTransport(exchange, stream)
        view = Connection(
            transport,
            caller=handshake_info.caller,
            outbox=Outbox(max_bytes=OUTBOX_BYTES),
            features=FEATURES,
            tally=self._tally,
            encode=stream.encode,
        )
        chat_handler = await self._service.chat_handler(
            grace_s=0
        )  # a reply does not wait for a client that left
        async with self._service.lifecycle.of(view):
            if (slow := begin(chat_handler, view, encoder)) is not None:
                await slow
            begun()
            if encoder.end is StreamEnd.NOTHING:
                await exchange.answer(Response(status_code=204))
                return
            with self._service.access.watch(handshake_info.identity, view):
                await transport.begin(view.connection_id, PROTOCOL)
                await view.run(partial(_live, view, transport, stream))
            if (
                encoder.end is StreamEnd.WAITING_FOR_CLIENT
            ):  # its client leaves in order to answer; that cancels no call
                self._sessions.keep_calls(view.owner, chat_id, encoder.turn_id or "", kept=True)


async def _live(
    view: Connection, transport: SseTransport, stream: SseStream, tasks: asyncio.TaskGroup
) -> None:
    tasks.create_task(transport.send())
    tasks.create_task(_end(view, transport, stream))
    await transport.receive()


async def _end(view: Connection, transport: SseTransport, stream: SseStream) -> None:
    """End the answer once its reader has all of it."""
    await stream.over.wait()
    await transport.drained()
    view.shut(Close(CloseCode.BYE, "The message is complete."))


class SseStream:
    """The events of one message. `over`: it has ended."""

    def __init__(self, encoder: ChunkEncoder) -> None:
        self.over = asyncio.Event()
        self._encoder = encoder

    def encode(self, frame: Frame) -> bytes:
        """Return the events of a frame."""
        if (chunk := self._encoder.delta(frame)) is not None:
            return b"data: %b\n\n" % chunk
        return self._events(self._encoder.encode(frame))

    def cut(self, why: str) -> bytes:
        """Return the last events when the server ends a message early."""
        return self._events(self._encoder.fail(why))

    def _events(self, chunks: list[Chunk]) -> bytes:
        events = b"".join(b"data: %b\n\n" % encode(chunk) for chunk in chunks)
        if not self._encoder.is_over or self.over.is_set():
            return events
        self.over.set()
        return events + _DONE


class SseTransport(EventTransport):
    """An answer that says why it ends if its message does not."""

    def __init__(self, exchange: Exchange, stream: SseStream) -> None:
        super().__init__(exchange, b"")
        self._stream = stream

    async def drained(self) -> None:
        """Wait until the server has taken what waits."""
        while self._buffer:
            self._drained.clear()
            await self._drained.wait()

    async def close(self, code: int, reason: str) -> None:
        """End the answer."""
        self.write(self._stream.cut(reason))
        await super().close(code, reason)


def aisdk_routes(
    endpoint: ChatEndpoint, socket: ChatSocketEndpoint, origins: AllowedOrigins, refusals: RefusalCounters
) -> list[BaseRoute]:
    """Return the routes below `/v1`."""

    def route(path: str, answers: ASGIApp, method: str) -> Route:
        shown = CorsMiddleware(answers, origins, refusals, method=method, refusal=foreign_origin_response)
        return Route(f"{PATH}{path}", shown, methods=[method, "OPTIONS"])

    return [
        route("", endpoint.send, "POST"),
        route("/{chat_id}/stream", endpoint.resume, "GET"),
        route("/{chat_id}/stop", endpoint.stop, "POST"),
        route("/{chat_id}/messages", endpoint.messages, "GET"),
        WebSocketRoute(PATH, socket.accept),
    ]
