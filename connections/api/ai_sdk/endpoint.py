"""`/v1/ai-sdk/chat`: a message is a streamed answer, and a chat is a stored conversation.

A client that leaves detaches, as at every endpoint: `on_disconnect` says whether its reply continues.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any, assert_never

import msgspec
from msgspec import Meta
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from connections.api.ai_sdk.encoder import (
    CallsAnswered,
    Chunk,
    ChunkEncoder,
    StreamEnd,
    encode,
    is_running,
    latest_replies,
    ui_messages,
)
from connections.api.ai_sdk.requests import (
    NewMessage,
    Regeneration,
    ToolAnswers,
    UIChatRequest,
    action_of,
    chat_request,
    edit_id,
)
from connections.api.endpoint import EventTransport, PageRoutes, RequestContext, identity_or_ticket
from connections.api.replies import newest_messages
from connections.authentication.access import AccessControl
from connections.authentication.api_keys import Identity
from connections.authentication.caller import Caller, caller_of
from connections.connection import Connection, Handler, PendingWork, RateLimiter
from connections.http import (
    SSE_DONE,
    EndpointName,
    Exchange,
    error_code_of,
    forbidden_origin_message,
    json_response,
    optional_id,
    parse_id,
    refusal_response,
    sse,
)
from connections.limiters import Limiters
from connections.manager import ConnectionLifecycle
from connections.native.handler import FrameHandler
from connections.protocol import frames
from connections.protocol.base import EVERYTHING, REASONING, TOOLS, KeyScope
from connections.protocol.errors import BadParams, Close, CloseCode, validation_problem
from connections.protocol.frames import Frame, History, Request, ToolDecision
from sessions.conversation.conversation import refusal_of
from sessions.errors import NotFound, Refused
from sessions.limits.slots import on_behalf_of
from sessions.service import Sessions
from sessions.turn.turn import Cancel

FEATURES = frozenset({REASONING, TOOLS})
"""What chats support besides text."""
PAGE = 200
"""Messages of the history that are read: as many as a page may have."""
MESSAGES_IMAGE_BYTES = 8 * 1024 * 1024
"""Bytes of the images in a history, the newest first; further ones are left out."""
ANONYMOUS_PREFIX = "/ai-sdk/"
"""Begins the client ids of clients without a name. No client of a native socket has such an id: those have no slash."""
PROTOCOL = {"x-vercel-ai-ui-message-stream": "v1"}
"""The header by which clients know the protocol."""
PATH = "/v1/ai-sdk/chat"
CODE_HEADER = "X-Midstream-Code"
"""The header for the code of a refusal."""
_STATUS = {
    "invalid_value": 400,
    "filtered": 400,
    "model_not_found": 404,
    "busy": 409,
    "conflict": 409,
    "content_too_long": 413,
    "context_overflow": 413,
    "request_too_large": 413,
    "unsupported_content_encoding": 415,
    "queue_full": 429,
}
Problem = Refused | Close


class ChatStopped(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The outcome of a stop. `turn_id`: null if nothing ran; `already`: it had ended, or its end was decided."""

    turn_id: str | None
    already: bool


class ChatEndpoint:
    """Answers requests about chats."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        request_context: RequestContext,
        access: AccessControl,
        lifecycle: ConnectionLifecycle,
        limiters: Limiters,
    ) -> None:
        self._sessions = sessions
        self._request_context = request_context
        self._access = access
        self._lifecycle = lifecycle
        self._limiters = limiters
        self._tally = limiters.tally(EndpointName.AI_SDK)

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
            request = await self._request_context.read(exchange, reader, body_lease, chat_request)
            caller = chat_caller(identity, client_id, request.id, exchange.request.scope)

            async def begin(turn: ChatTurn) -> None:
                await turn.begin(request)
                body_lease.close()

            await self._stream(exchange, caller, request.id, begin)

    async def _resume(self, exchange: Exchange) -> None:
        """Send the message that is being written, from its start."""
        chat_id, caller = await self._caller_of_path(exchange)
        try:
            await self._stream(exchange, caller, chat_id, lambda turn: turn.resume(chat_id))
        except NotFound:  # the chat has no message yet
            await exchange.answer(Response(status_code=204))

    async def _stop(self, exchange: Exchange) -> None:
        """End the current message, at what its reader saw."""
        chat_id, caller = await self._caller_of_path(exchange)
        caller.grant.check(KeyScope.CHAT)
        self._limiters.take_read(caller.subject)
        owner = caller.owner
        cancel = Cancel(conversation_id=chat_id, seen_off=_seen_off(exchange))
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
        return await identity_or_ticket(self._access, authorization, query.get("ticket")), client_id

    async def _caller_of_path(self, exchange: Exchange) -> tuple[str, Caller]:
        """Return the path's chat id, and the caller. Raises Refused."""
        chat_id = parse_id("id", exchange.request.path_params["chat_id"])
        identity, client_id = await self._identify(exchange)
        return chat_id, chat_caller(identity, client_id, chat_id, exchange.request.scope)

    async def _stream(
        self, exchange: Exchange, caller: Caller, chat_id: str, begin: Callable[[ChatTurn], PendingWork]
    ) -> None:
        """Stream an answer. Raises Close, Refused before its first byte."""
        encoder = ChunkEncoder()
        transport = MessageTransport(exchange, encoder)
        view = Connection(
            transport,
            caller=caller,
            features=FEATURES,
            tally=self._tally,
            encode=transport.encode,
        )
        limits = await self._request_context.limits(self._request_context.model(None, EVERYTHING))
        turn = ChatTurn(
            view,
            encoder,
            sessions=self._sessions,
            inner=RateLimiter(FrameHandler(self._sessions, limits), self._limiters),
        )
        async with self._lifecycle.registered(view):
            await begin(turn)
            if encoder.end is StreamEnd.NOTHING:
                await exchange.answer(Response(status_code=204))
                return
            with self._access.watch(caller.identity, view):
                await transport.begin(view.connection_id, PROTOCOL)
                await view.run(partial(_live, view, transport))
            if encoder.end is StreamEnd.WAITING_FOR_CLIENT:
                # its client leaves in order to answer; that cancels no call
                self._sessions.keep_calls(view.owner, chat_id, encoder.turn_id or "", kept=True)


class ChatTurn:
    """Begins or continues the message that answers one request. `inner`: answers native frames."""

    def __init__(
        self,
        connection: Connection,
        encoder: ChunkEncoder,
        *,
        sessions: Sessions,
        inner: Handler[Request],
    ) -> None:
        self._connection = connection
        self._encoder = encoder
        self._sessions = sessions
        self._inner = inner

    async def begin(self, request: UIChatRequest) -> None:
        """Begin or continue a message. Raises Refused."""
        turn = request.turn()
        match action := action_of(request):
            case NewMessage(is_edit=False):
                await self._send(action, turn)
            case NewMessage():
                await self._edit(action, turn)
            case Regeneration():
                await self._regenerate(action, turn)
            case ToolAnswers():
                await self._answer_calls(action, request)
            case _:
                assert_never(action)

    async def resume(self, chat_id: str) -> None:
        """Send the message that is being written. Raises Refused."""
        await self._handle(History(conversation_id=chat_id, limit=PAGE))

    async def _handle(self, frame: Request) -> None:
        if (slow := self._inner.handle(self._connection, frame)) is not None:
            await slow

    async def _send(self, message: NewMessage, turn: dict[str, Any]) -> None:
        await self._store_images(message)
        self._encoder.client_msg_id = message.message_id
        await self._handle(
            frames.Send(
                client_msg_id=message.message_id,
                content=message.content,
                attachments=message.attachments,
                **turn,
            )
        )

    async def _store_images(self, message: NewMessage) -> None:
        connection = self._connection
        await self._sessions.images.keep(connection.owner, *message.images, group=connection.caller.group)

    async def _edit(self, message: NewMessage, turn: dict[str, Any]) -> None:
        await self._store_images(message)
        found = await self._sessions.exchange(
            self._connection.owner, turn["conversation_id"], message.message_id
        )
        if found is None:  # the first request was refused
            await self._send(message, turn)
            return
        self._encoder.client_msg_id = edit_id(message)
        await self._handle(
            frames.Edit(
                client_msg_id=self._encoder.client_msg_id,
                message_id=found.message_id,
                content=message.content,
                attachments=message.attachments,
                **turn,
            )
        )

    async def _regenerate(self, regeneration: Regeneration, turn: dict[str, Any]) -> None:
        conversation_id, owner, found = turn["conversation_id"], self._connection.owner, None
        for name in filter(None, (regeneration.reply_id, regeneration.question.message_id)):
            found = found or await self._sessions.exchange(owner, conversation_id, name)
        if found is None:
            await self._send(regeneration.question, turn)
            return
        self._encoder.client_msg_id = secrets.token_hex(16)
        await self._handle(
            frames.Regenerate(client_msg_id=self._encoder.client_msg_id, message_id=found.reply_id, **turn)
        )

    async def _answer_calls(self, tool_answers: ToolAnswers, request: UIChatRequest) -> None:
        """Answer calls of the last reply. Raises BadParams; NotFound for other calls."""
        if not tool_answers.answers:
            raise BadParams("ends with a reply none of whose calls is answered.", field="messages")
        connection, encoder = self._connection, self._encoder
        shown = await self._sessions.history(connection.owner, connection, request.id, limit=PAGE)
        chain = latest_replies(shown.page.messages)
        call_ids = [{call.call_id for call in message.calls or ()} for message in chain]
        submitted = {answer.call_id for answer in tool_answers.answers}
        place = next((n for n in range(len(chain) - 1, -1, -1) if call_ids[n] & submitted), None)
        if place is None:
            raise NotFound("The answered calls do not belong to the chat's last reply; reload the chat.")
        encoder.continue_from(tool_answers.message_id, reply := chain[place])
        keeps_calls = request.on_disconnect == "continue"
        self._sessions.keep_calls(connection.owner, request.id, reply.turn_id, kept=keeps_calls)
        following_replies = tuple(chain[place + 1 :])
        # a client repeats its earlier answers each time
        open_calls = {call.call_id: call for call in reply.calls or () if not call.state.is_settled}
        answers = [
            answer
            for answer in tool_answers.answers
            if answer.call_id in open_calls and not following_replies
        ]
        if KeyScope.READ not in connection.caller.grant.scopes:
            following_replies = ()
        for answer in answers:  # a change of one call must not end the message while others are answered
            is_allowed = isinstance(answer, ToolDecision) and answer.decision == "allow"
            if not is_allowed or open_calls[answer.call_id].where == "server":  # else the client runs it now
                encoder.answered(answer.call_id)
        for answer in answers:
            await self._handle(msgspec.structs.replace(answer, conversation_id=request.id))
        connection.push(CallsAnswered(has_new_answers=bool(answers), following_replies=following_replies))


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
        return self._events(self._encoder.encode(frame))

    def _events(self, chunks: list[Chunk]) -> bytes:
        events = b"".join(sse(encode(chunk)) for chunk in chunks)
        if self._encoder.end is None or self._over.is_set():
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


def chat_caller(identity: Identity, client_id: str | None, chat_id: str, scope: Scope) -> Caller:
    """Return a chat's caller."""
    return caller_of(identity, client_id or f"{ANONYMOUS_PREFIX}{chat_id}", scope)


def _seen_off(exchange: Exchange) -> int | None:
    """Return how many characters of the reply the reader saw, if the URL says so. Raises BadParams."""
    try:
        seen_off: int | None = msgspec.convert(
            exchange.request.query_params.get("seen_off"), Annotated[int, Meta(ge=0)] | None, strict=False
        )
    except msgspec.ValidationError as error:
        raise BadParams(validation_problem(error).why, field="seen_off") from None
    return seen_off


def error_response(why: Problem) -> Response:
    """Return the answer to a refused request: a sentence, with its code in a header."""
    code, shown = error_code_of(why), refusal_response(why)
    kept = {
        name: shown.headers[name] for name in ("www-authenticate", "retry-after") if name in shown.headers
    }
    status = _STATUS.get(code, shown.status_code)
    if status < 429:  # noqa: PLR2004 - only temporary refusals are worth another try
        kept.pop("retry-after", None)
    headers = {"Cache-Control": "no-store", CODE_HEADER: code, **kept}
    return Response(str(why), status, headers, media_type="text/plain")


def foreign_origin_response(origin: str | None) -> Response:
    """Return the answer to a page of an origin that is not allowed."""
    headers = {"Cache-Control": "no-store", CODE_HEADER: "forbidden"}
    return Response(forbidden_origin_message(origin), 403, headers, media_type="text/plain")
