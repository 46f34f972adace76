"""`/v1/responses`, over HTTP and as a WebSocket, and `/v1/conversations`. A client that leaves a response stops its turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from functools import partial
from typing import Any, ClassVar, Self, TypeVar, assert_never

import msgspec
from starlette.requests import Request
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from connections.api.endpoint import (
    ApiWebSocketEndpoint,
    HttpEndpoint,
    PageRoutes,
    RequestContext,
    ignored_header,
)
from connections.api.requests import Problem, decode_request, invalid, invalid_field, problem_of
from connections.api.responses import schema
from connections.api.responses.creator import ResponseCreator, StartedResponse
from connections.api.responses.encoder import (
    ItemWithImages,
    encode_lines,
    encode_sse,
    output_messages,
    problem_at_end,
    with_images,
)
from connections.api.responses.parser import (
    ConversationFields,
    Creation,
    check_metadata,
    messages_of,
    parse_response_request,
)
from connections.api.responses.schema import Deleted, Items
from connections.api.responses.store import (
    ConversationStore,
    ResponseStore,
    StoredConversation,
    StoredResponse,
    group_into_turns,
)
from connections.authentication.access import TICKET, AccessControl, bearer
from connections.authentication.caller import Caller, caller_of, client_id_of
from connections.connection import Connection, Disconnected, Transport
from connections.http import (
    SSE_DONE,
    EndpointName,
    Exchange,
    Refusal,
    json_response,
    type_of,
)
from connections.limiters import EndpointCounters, Limiters
from connections.manager import ConnectionLifecycle
from connections.protocol import codec
from connections.protocol.base import KeyScope, ServerFrame
from connections.protocol.errors import Close, CloseCode
from connections.protocol.frames import Error, Frame
from connections.websocket_endpoint import MultilineTransport, WebSocketTransport
from engine.messages import Message
from engine.vision.image import Image
from sessions.conversation.conversation import refusal_of
from sessions.errors import Conflict, Refused
from sessions.limits.rates import FrameCost, RateLimited
from sessions.limits.slots import on_behalf_of
from sessions.records import MessageRecord
from sessions.turn.tool_calls import as_written

SCOPES = {"POST": KeyScope.CHAT, "DELETE": KeyScope.MANAGE}
DEFAULT_ITEMS = 20
MAX_ITEMS = 100
PAGE_IMAGE_BYTES = 8 * 1024 * 1024
"""Bytes of a page's images; the page ends before the item that exceeds them."""
_HAS_FOLLOWERS = "The conversation continues after this response: delete what follows it first."
ImageLoader = Callable[[Sequence[Image]], Awaitable[Sequence[Image]]]
"""Returns images with their bytes, as far as they are stored."""
MAX_ADDED_ITEMS = 20
"""Items that one request may add, as at OpenAI. Each exchange among them becomes a turn."""
_decode = msgspec.json.Decoder(ConversationFields).decode
F = TypeVar("F")
PATH = "/v1/responses"
CONVERSATIONS = "/v1/conversations"
_SLOW_READER = Close(CloseCode.OVERLOAD, "The reader is too slow; reconnect.")
PendingWork = Coroutine[Any, Any, None]
_CANCELS = ("midstream:response.cancel", "response.cancel")
MAX_UNSTORED_BYTES = 1024 * 1024
"""Bytes of the unstored conversation that a socket's client may continue."""


class ResponsesEndpoint(HttpEndpoint[Creation]):
    """Answers requests for responses."""

    endpoint: ClassVar[EndpointName] = EndpointName.RESPONSES

    def __init__(self, creator: ResponseCreator, request_context: RequestContext) -> None:
        super().__init__(request_context)
        self._creator = creator

    read = staticmethod(parse_response_request)

    async def serve(
        self, exchange: Exchange, caller: Caller, request: Creation, body_lease: ExitStack
    ) -> None:
        """Answer a request. Raises Refused."""
        started = await self._creator.create(caller, request, exchange=exchange)
        body_lease.close()
        try:
            await (_send_stream if request.stream else _send_complete)(exchange, started)
        finally:
            started.abandon()


async def _send_stream(exchange: Exchange, started: StartedResponse) -> None:
    answer, encoder = started.answer, started.encoder
    answer.cut_off = exchange.cut_off
    await exchange.begin_events(started.request_id, ignored_header(started.answer))
    await exchange.write(encode_sse(encoder.begin()))
    try:
        async for piece in answer:
            if events := encoder.piece(piece):
                await exchange.write(encode_sse(events))
        last = encoder.end(answer.ended, answer.model, int(time.time()))
    except Refused as refused:  # its conversation was deleted
        last = encoder.fail(problem_of(refused))
    await exchange.write(encode_sse(last) + SSE_DONE, more=False)


async def _send_complete(exchange: Exchange, started: StartedResponse) -> None:
    """Send the whole reply. Raises Problem if it has no regular end."""
    answer, encoder = started.answer, started.encoder
    encoder.begin()
    async for piece in answer:
        encoder.piece(piece)
    if (problem := problem_at_end(answer.ended)) is not None:
        raise problem
    encoder.end(answer.ended, answer.model, int(time.time()))
    headers = {"X-Request-Id": started.request_id, **ignored_header(started.answer)}
    await exchange.answer(json_response(encoder.response, headers=headers))


class StoredEndpoint(HttpEndpoint[F]):
    """Answers requests about what is stored, each for its owner only."""

    endpoint: ClassVar[EndpointName] = EndpointName.RESPONSES
    counts: ClassVar[FrameCost] = FrameCost.READ

    def __init__(self, response_store: ResponseStore, request_context: RequestContext) -> None:
        super().__init__(request_context)
        self.response_store = response_store
        self.acts: Mapping[str, Callable[[Exchange, Caller, F], Awaitable[None]]] = {}

    def serving(self, acts: Mapping[str, Callable[[Exchange, Caller, F], Awaitable[None]]]) -> Self:
        """Return an endpoint for one path. `acts`: what it does, by the request's method."""
        served = copy(self)
        served.acts = acts
        return served

    def required_scope(self, request: Request) -> KeyScope:
        """Return the scope for the method: to create, extend or stop takes `chat`, to delete `manage`."""
        return SCOPES.get(request.method, KeyScope.READ)

    async def serve(self, exchange: Exchange, caller: Caller, request: F, body_lease: ExitStack) -> None:
        """Do the act. Raises Refused."""
        if request is None:
            body_lease.close()  # with a body, the lease lasts until its content is stored
        act = self.acts["GET" if exchange.request.method == "HEAD" else exchange.request.method]
        with on_behalf_of(caller.store_group):
            await act(exchange, caller, request)


class StoredResponseEndpoint(StoredEndpoint[None]):
    """Answers requests about one response."""

    def read(self, body: bytes) -> None:
        """Return nothing: the URL has all."""

    async def show(self, exchange: Exchange, caller: Caller, _: None) -> None:
        """Answer with the response in its current state. Raises Refused."""
        if exchange.request.query_params.get("stream") == "true":
            raise invalid("stream", "A response can't be streamed again.", code="unsupported_parameter")
        kept = await self._found(exchange, caller)
        await exchange.answer(json_response(kept.resource))

    async def delete(self, exchange: Exchange, caller: Caller, _: None) -> None:
        """Delete the response; after the last its conversation, unless a client named it. Raises Refused."""
        kept = await self._found(exchange, caller)
        if not kept.has_ended:
            raise Problem(409, "The response is still running: stop it first.", code="conflict")
        try:
            await self.response_store.delete(caller.owner, kept)
        except Conflict:
            raise Problem(409, _HAS_FOLLOWERS, code="conflict", param="response_id") from None
        await exchange.answer(json_response(Deleted(id=kept.ref.response_id)))

    async def input_items(self, exchange: Exchange, caller: Caller, _: None) -> None:
        """Answer with the response's input, newest first by default. Raises Refused."""
        kept = await self._found(exchange, caller, with_path=True)
        shown = partial(self.response_store.images, caller.owner, kept.ref.conversation_id)
        await exchange.answer(json_response(await item_page(kept.input_items, exchange.request, shown)))

    async def _found(self, exchange: Exchange, caller: Caller, *, with_path: bool = False) -> StoredResponse:
        """Raises Refused."""
        response_id = exchange.request.path_params["response_id"]
        if kept := await self.response_store.find(caller.owner, response_id, with_path=with_path):
            return kept
        why = f'Response not found: "{response_id[:160]}". It was not stored, or belongs to another client.'
        raise Problem(404, why, code="not_found", param="response_id")


async def item_page(items: list[ItemWithImages], request: Request, shown: ImageLoader) -> Items:
    """Return the page of items that a request asks for, newest first by default. Raises Problem, StoreDown."""
    query = request.query_params
    if query.get("order") != "asc":
        items.reverse()
    if (after := query.get("after")) is not None:
        ids = [item.id for item, _ in items]
        if after not in ids:
            raise invalid_field("after", "is not the ID of one of these items.")
        items = items[ids.index(after) + 1 :]
    text = query.get("limit", str(DEFAULT_ITEMS))
    limit = int(text) if text.isascii() and text.isdecimal() and len(text) < 5 else 0  # noqa: PLR2004 - digits
    if not 1 <= limit <= MAX_ITEMS:
        raise invalid_field("limit", f"must be a whole number from 1 to {MAX_ITEMS}.")
    page = await load_images(items[:limit], shown)
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return Items(data=page, first_id=first, last_id=last, has_more=len(items) > len(page))


async def load_images(items: Sequence[ItemWithImages], shown: ImageLoader) -> list[schema.InputItem]:
    """Return items with their images' bytes; a page ends before it has too many bytes. Raises StoreDown."""
    page: list[schema.InputItem] = []
    size = 0
    for item, images in items:
        known = await shown(images)
        size += sum(len(image.data) for image in known)
        if page and size > PAGE_IMAGE_BYTES:
            break
        page.append(with_images(item, known))
    return page


class ConversationsEndpoint(StoredEndpoint[ConversationFields]):
    """Answers requests about an owner's conversations."""

    def read(self, body: bytes) -> ConversationFields:
        """Return the request in a body, which may be empty. Raises Problem, TooManyValues."""
        request = decode_request(body, _decode) if body else ConversationFields()
        check_metadata(request.metadata or {})
        if len(request.items or ()) > MAX_ADDED_ITEMS:
            raise invalid_field("items", f"may have at most {MAX_ADDED_ITEMS} items.")
        return request

    @property
    def _conversations(self) -> ConversationStore:
        return ConversationStore(self.response_store)

    async def create(self, exchange: Exchange, caller: Caller, request: ConversationFields) -> None:
        """Create a conversation, with items or without. Raises Refused."""
        steps = list(
            group_into_turns(await self._messages(exchange, caller, request) if request.items else ())
        )
        await self._admit(caller, max(1, len(steps)))
        found = await self._conversations.create(caller, request.metadata or {})
        try:
            await self._conversations.add(caller, found, steps)
        except BaseException:
            await self._conversations.delete(caller.owner, found.conversation_id)
            raise
        await exchange.answer(json_response(_conversation_resource(found)))

    async def show(self, exchange: Exchange, caller: Caller, _: ConversationFields) -> None:
        """Answer with a conversation. Raises Refused."""
        await exchange.answer(json_response(_conversation_resource(await self._found(exchange, caller))))

    async def delete(self, exchange: Exchange, caller: Caller, _: ConversationFields) -> None:
        """Delete a conversation. Raises Refused."""
        found = await self._found(exchange, caller)
        await self._conversations.delete(caller.owner, found.conversation_id)
        await exchange.answer(json_response(schema.ConversationDeleted(id=found.conversation_id)))

    async def list_items(self, exchange: Exchange, caller: Caller, _: ConversationFields) -> None:
        """Answer with items, newest first by default. Raises Refused."""
        found = await self._found(exchange, caller, with_path=True)
        shown = partial(self.response_store.images, caller.owner, found.conversation_id)
        await exchange.answer(json_response(await item_page(found.items, exchange.request, shown)))

    async def add_items(self, exchange: Exchange, caller: Caller, request: ConversationFields) -> None:
        """Add items, and answer with them. Raises Refused."""
        found = await self._found(exchange, caller, with_path=True)
        before = {item.id for item, _ in found.items}
        steps = list(
            group_into_turns(await self._messages(exchange, caller, request, found.path), found.path)
        )
        await self._admit(caller, len(steps))
        await self._conversations.add(caller, found, steps)
        now = await self._found(exchange, caller, with_path=True)
        shown = partial(self.response_store.images, caller.owner, found.conversation_id)
        new = await load_images([item for item in now.items if item[0].id not in before], shown)
        first, last = (new[0].id, new[-1].id) if new else (None, None)
        await exchange.answer(json_response(Items(data=new, first_id=first, last_id=last, has_more=False)))

    async def delete_item(self, exchange: Exchange, caller: Caller, _: ConversationFields) -> None:
        """Delete the last item, and answer with its conversation. Raises Refused."""
        found = await self._found(exchange, caller, with_path=True)
        await self._conversations.delete_item(caller, found, exchange.request.path_params["item_id"])
        await exchange.answer(json_response(_conversation_resource(found)))

    async def _found(
        self, exchange: Exchange, caller: Caller, *, with_path: bool = False
    ) -> StoredConversation:
        conversation_id = exchange.request.path_params["conversation_id"]
        return await self._conversations.find(caller.owner, conversation_id, with_path=with_path)

    async def _messages(
        self,
        exchange: Exchange,
        caller: Caller,
        request: ConversationFields,
        path: tuple[MessageRecord, ...] = (),
    ) -> tuple[Message, ...]:
        """Return the items of a request as messages. `path`: the messages before them. Raises Refused."""
        limits = await self.request_context.limits(self.request_context.model(None, caller.grant))
        calls = tuple(as_written(call) for record in path for call in record.calls)
        before = [Message("assistant", "", calls=calls)] if calls else []
        return await self.request_context.run_in_thread(
            exchange, lambda: messages_of(request.items or [], limits, before, field="items")
        )

    async def _admit(self, caller: Caller, turns: int) -> None:
        """Count stored turns as messages. Raises RateLimited."""
        self.request_context.take(caller, turns)
        await self.request_context.count(caller, turns)


def _conversation_resource(found: StoredConversation) -> schema.Conversation:
    description = found.description
    return schema.Conversation(
        id=found.conversation_id, created_at=description.created_at, metadata=description.metadata
    )


def responses_routes(
    request_context: RequestContext,
    socket: ResponsesWebSocketEndpoint,
    pages: PageRoutes,
) -> list[BaseRoute]:
    """Return the routes below `/v1/responses` and `/v1/conversations`."""
    creator = socket.creator

    route = pages.route

    def stored(
        path: str, endpoint: StoredEndpoint[F], **acts: Callable[[Exchange, Caller, F], Awaitable[None]]
    ) -> Route:
        return route(path, endpoint.serving(acts), ", ".join(acts))

    kept = StoredResponseEndpoint(creator.response_store, request_context)
    talk = ConversationsEndpoint(creator.response_store, request_context)
    response, one = f"{PATH}/{{response_id}}", f"{CONVERSATIONS}/{{conversation_id}}"
    items = f"{one}/items"
    return [
        WebSocketRoute(PATH, socket.handle),
        stored(response, kept, GET=kept.show, DELETE=kept.delete),
        stored(f"{response}/input_items", kept, GET=kept.input_items),
        route(PATH, ResponsesEndpoint(creator, request_context), "POST"),
        stored(CONVERSATIONS, talk, POST=talk.create),
        stored(one, talk, GET=talk.show, DELETE=talk.delete),
        stored(items, talk, GET=talk.list_items, POST=talk.add_items),
        stored(f"{items}/{{item_id}}", talk, DELETE=talk.delete_item),
    ]


class ResponsesWebSocketEndpoint(ApiWebSocketEndpoint[Caller]):
    """Serves sockets: one response after another. `creator` begins them."""

    def __init__(
        self,
        *,
        creator: ResponseCreator,
        request_context: RequestContext,
        access: AccessControl,
        lifecycle: ConnectionLifecycle,
        limiters: Limiters,
    ) -> None:
        super().__init__(EndpointName.RESPONSES, access=access, limiters=limiters)
        self.creator = creator
        self._request_context = request_context
        self._lifecycle = lifecycle

    async def handshake_info(self, websocket: WebSocket) -> Caller:
        """Return the client, by a key, a JWT, or a browser's ticket. Raises Refused."""
        authorization, ticket = websocket.headers.get("authorization"), websocket.query_params.get("ticket")
        token = ticket if ticket is not None and ticket.startswith(TICKET) else None
        identity = await self._request_context.identity(authorization, token)
        identity.grant.check(KeyScope.CHAT)
        name = client_id_of(identity, bearer(authorization), websocket.scope)
        return caller_of(identity, name, websocket.scope)

    async def serve(self, socket: WebSocketTransport, handshake_info: Caller) -> None:
        """Serve one socket. Raises Close, Disconnected."""
        connection = Connection(
            MultilineTransport(socket),
            caller=handshake_info,
            encode=encode,
            tally=self.tally,
        )
        handler = ResponsesSocketHandler(
            creator=self.creator, request_context=self._request_context, tally=self.tally, transport=socket
        )
        async with self._lifecycle.registered(connection):
            with self.access.watch(handshake_info.identity, connection):
                await connection.serve(handler, decode)


class ResponseEvents(ServerFrame, frozen=True, kw_only=True, tag="responses"):
    """Events of this endpoint, in order with all other frames."""

    events: tuple[schema.StreamEvent, ...]


def encode(frame: Frame) -> bytes:
    """Return the lines of a frame: none, one or several."""
    match frame:
        case ResponseEvents():
            return encode_lines(frame.events)
        case Error():
            why = Problem(400, frame.message, code=frame.code, retry_after_ms=frame.retry_after_ms)
            return encode_lines([_error(why)])
        case _:
            return b""


class ResponsesSocketHandler:
    """Handles one socket's messages."""

    def __init__(
        self,
        *,
        creator: ResponseCreator,
        request_context: RequestContext,
        tally: EndpointCounters,
        transport: Transport,
    ) -> None:
        self._creator = creator
        self._request_context = request_context
        self._tally = tally
        self._transport = transport
        self._active: ActiveResponse | None = None
        self._unstored = UnstoredResponse()

    def handle(self, connection: Connection, event: ClientEvent) -> PendingWork | None:
        """Decide at once; return work that takes time."""
        try:
            return self._dispatch(connection, event)
        except Refused as refused:
            self._refuse(connection, refused)
            return None

    def _dispatch(self, connection: Connection, event: ClientEvent) -> PendingWork | None:
        """Handle a message. Raises Refused."""
        match event:
            case InvalidMessage():
                raise event.refused
            case CancelResponse():
                self._stop(event.response_id)
                return None
            case CreateResponse():
                self._request_context.take(connection.caller)
                if self._active is not None:
                    why = "A response is being written on this connection. Send the next request when it has ended."
                    raise invalid(None, why, code="response_in_progress")
                self._active = ActiveResponse()
                return self._run(connection, event.request, self._active)
            case _:
                assert_never(event)

    def _stop(self, response_id: str | None) -> None:
        """End the running response. Raises Problem if there is none, or it has another id."""
        if self._active is None or response_id not in (None, self._active.response_id):
            why = "No running response on this connection has this ID."
            raise Problem(404, why, code="response_not_found", param="response_id")
        self._active.end()

    async def _run(self, connection: Connection, request: Creation, active: ActiveResponse) -> None:
        try:
            refused = await refusal_of(self._respond(connection, request, active))
        finally:
            self._active = None
        if refused is not None:
            self._unstored.forget(request.previous_response_id)
            self._refuse(connection, refused)

    async def _respond(self, connection: Connection, request: Creation, active: ActiveResponse) -> None:
        """Write one response, while its client is there. Raises Refused."""
        before = self._unstored.get(request.previous_response_id)
        started = await self._creator.create(connection.caller, request, before=before)
        try:
            active.begin(started.encoder.response.id, started.stop)
            await self._send_response(connection, started)
        except Disconnected:
            return
        finally:
            started.abandon()
        response = started.encoder.response
        if response.status == "failed":
            self._unstored.forget(request.previous_response_id)
        elif not response.store:
            self._unstored.put(response.id, (*started.read, *output_messages(response.output)))

    async def _send_response(self, connection: Connection, started: StartedResponse) -> None:
        """Send a response, as fast as its client reads. Raises Disconnected."""
        answer, encoder = started.answer, started.encoder
        answer.cut_off = lambda: connection.shut(_SLOW_READER)
        connection.push(ResponseEvents(events=tuple(encoder.begin())))
        async for piece in answer:
            if sent := encoder.piece(piece):
                connection.push(ResponseEvents(events=tuple(sent)))
                while connection.waiting_bytes:  # what comes meanwhile is merged
                    await self._transport.writable()
                    await asyncio.sleep(0)
        last = encoder.end(answer.ended, answer.model, int(time.time()))
        connection.push(ResponseEvents(events=tuple(last)))

    def _refuse(self, connection: Connection, refused: Refused) -> None:
        self._tally.sent(refused.code)
        connection.push(ResponseEvents(events=(_error(problem_of(refused)),)))
        if isinstance(refused, RateLimited):
            self._transport.charge()


def _error(problem: Problem) -> schema.ErrorEvent:
    sent = Refusal(
        type=type_of(problem.status),
        code=problem.code,
        message=str(problem),
        param=problem.param,
    )
    return schema.ErrorEvent(
        status=problem.status,
        code=sent.code,
        message=sent.message,
        param=sent.param,
        error=sent,
    )


class _ClientMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The root of a client's messages."""

    @property
    def ref(self) -> None:
        """Errors don't say which message they are about."""


class CreateResponse(_ClientMessage, frozen=True, kw_only=True):
    """Asks for a response."""

    request: Creation


class CancelResponse(_ClientMessage, frozen=True, kw_only=True):
    """Stops the response that is being written. `response_id`: only if it has this id."""

    response_id: str | None


class InvalidMessage(_ClientMessage, frozen=True, kw_only=True):
    """A JSON message that is not a valid request."""

    refused: Refused


ClientEvent = CreateResponse | CancelResponse | InvalidMessage


class _EventHeader(msgspec.Struct, frozen=True):
    type: str
    stream_id: str | None = None
    response_id: str | None = None


_head = msgspec.json.Decoder(_EventHeader)


def decode(message: str | bytes) -> ClientEvent:
    """Return one message. Raises BadFrame if it is none."""
    head = codec.read(_head, message)
    if head.stream_id is not None:
        why = "A connection has one response at a time: leave `stream_id` out."
        return InvalidMessage(refused=invalid("stream_id", why, code="unsupported_parameter"))
    if head.type in _CANCELS:
        return CancelResponse(response_id=head.response_id)
    if head.type != "response.create" or isinstance(message, bytes):
        why = f"Unknown event type. Supported: response.create and {_CANCELS[0]}."
        return InvalidMessage(refused=invalid("type", why, code="unsupported_event"))
    try:
        return CreateResponse(request=parse_response_request(message.encode()))
    except Refused as why_not:
        return InvalidMessage(refused=why_not)


class UnstoredResponse:
    """The newest unstored response with all messages up to its end: kept only here, while the socket is open."""

    def __init__(self) -> None:
        self._kept: tuple[str, tuple[Message, ...]] | None = None

    def get(self, response_id: str | None) -> tuple[Message, ...] | None:
        """Return the response's messages; None if it is not here."""
        return self._kept[1] if self._kept is not None and self._kept[0] == response_id else None

    def put(self, response_id: str, messages: tuple[Message, ...]) -> None:
        """Keep a response in place of the one before, unless it is too long."""
        fits = len(msgspec.json.encode(messages)) <= MAX_UNSTORED_BYTES
        self._kept = (response_id, messages) if fits else None

    def forget(self, response_id: str | None) -> None:
        """Forget a response."""
        if self.get(response_id) is not None:
            self._kept = None


class ActiveResponse:
    """The response that is being written, or is about to begin."""

    def __init__(self) -> None:
        self.response_id: str | None = None
        self._stop: Callable[[], None] | None = None
        self._is_stopped = False

    def begin(self, response_id: str, stop: Callable[[], None]) -> None:
        """Note that the response begins. `stop`: ends it; called at once if `end` was called before."""
        self.response_id, self._stop = response_id, stop
        if self._is_stopped:
            stop()

    def end(self) -> None:
        """End the response, also one that is about to begin."""
        self._is_stopped = True
        if self._stop is not None:
            self._stop()
