"""`/v1/responses`, `/v1/responses/{id}` and `/v1/conversations`: a client that leaves a response stops its turn."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import ClassVar, Literal

import msgspec
from starlette.requests import Request
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp

from connections.api.endpoint import IGNORED_HEADER, HttpEndpoint, RequestContext
from connections.api.errors import Problem, invalid, problem_of
from connections.api.fields import decode_request
from connections.api.responses import schema
from connections.api.responses.creator import ResponseCreator, StartedResponse
from connections.api.responses.encoder import (
    ResponsesEncoder,
    encode_sse,
    events_after,
    problem_at_end,
    usage_of,
)
from connections.api.responses.notes import ItemWithImages, input_items, resource_of, with_images
from connections.api.responses.parser import (
    ConversationFields,
    Creation,
    check_metadata,
    encode_opaque,
    messages_of,
    parse_response_request,
)
from connections.api.responses.store import (
    ConversationStore,
    ResponseStore,
    StoredConversation,
    StoredResponse,
    group_into_turns,
    item_not_found,
)
from connections.api.responses.websocket import ResponsesWebSocketEndpoint
from connections.authentication.caller import Caller
from connections.http.exchange import Exchange
from connections.http.json_responses import forbidden_origin, json_response
from connections.http.refusal_counters import EndpointName, RefusalCounters
from connections.middleware.origins import AllowedOrigins, CorsMiddleware
from connections.protocol.errors import field_message
from connections.protocol.scopes import KeyScope
from engine.messages import Message, ToolCall
from engine.reply_spec import ReplySpec
from engine.vision.image import Image
from sessions.errors import Conflict, Refused
from sessions.limits.rates import FrameCost
from sessions.limits.slots import on_behalf_of
from sessions.records import MessageRecord
from sessions.running.ephemeral import EphemeralRequest, TextPiece
from sessions.turn.tool_calls import as_written

SSE_DONE = b"data: [DONE]\n\n"
_SUMMARY_PROMPT = (
    "Write a summary of the conversation above for an assistant that goes on with it and can't read it: "
    "what was asked, what is known, what was decided, and what is still to be done. Write the summary alone."
)
SCOPES = {"POST": KeyScope.CHAT, "DELETE": KeyScope.MANAGE}
DEFAULT_ITEMS = 20
MAX_ITEMS = 100
PAGE_IMAGE_BYTES = 8 * 1024 * 1024
"""Bytes of a page's images; the page ends with the item that exceeds them."""
_HAS_FOLLOWERS = "The conversation went on from this response: delete what follows it first."
ImageLoader = Callable[[Sequence[Image]], Awaitable[Sequence[Image]]]
"""Returns images with their bytes, as far as they are stored."""
StoredResponseHandler = Callable[
    ["StoredResponseEndpoint", Exchange, Caller, StoredResponse], Awaitable[None]
]
MAX_ADDED_ITEMS = 20
"""Items that one request may add, as at OpenAI's. Each exchange of them is a turn of its own."""
_decode = msgspec.json.Decoder(ConversationFields).decode
ConversationHandler = Callable[
    ["ConversationsEndpoint", Exchange, Caller, ConversationFields], Awaitable[None]
]
PATH = "/v1/responses"
CONVERSATIONS = "/v1/conversations"


class ResponseRequestEndpoint(HttpEndpoint[Creation]):
    """Answers requests with the body of a request for a response."""

    endpoint: ClassVar[EndpointName] = EndpointName.RESPONSES

    def __init__(self, creator: ResponseCreator, request_context: RequestContext) -> None:
        super().__init__(request_context)
        self.creator = creator

    def read(self, body: bytes) -> Creation:
        """Return the request in a body. Raises Problem, TooManyValues."""
        return parse_response_request(body)


class ResponsesEndpoint(ResponseRequestEndpoint):
    """Answers requests for responses."""

    async def serve(
        self, exchange: Exchange, caller: Caller, request: Creation, body_lease: ExitStack
    ) -> None:
        """Answer one. Raises Refused."""
        started = await self.creator.create(caller, request, exchange=exchange)
        body_lease.close()
        try:
            if request.background and not request.stream:
                await exchange.answer(json_response(started.encoder.response))
            else:
                await (stream if request.stream else _send_complete)(exchange, started)
        finally:
            started.abandon()


def _headers(started: StartedResponse) -> dict[str, str]:
    return {IGNORED_HEADER: ", ".join(started.answer.ignored)} if started.answer.ignored else {}


async def stream(exchange: Exchange, started: StartedResponse, *, after: int | None = None) -> None:
    """Send a response as events. `after`: the number of the last one that its reader had."""
    answer, encoder = started.answer, started.encoder
    answer.cut_off = exchange.cut_off
    await exchange.begin_events(started.request_id, _headers(started))
    await exchange.write(encode_sse(events_after(encoder.begin(), after)))
    try:
        async for piece in answer:
            if events := events_after(encoder.piece(piece), after):
                await exchange.write(encode_sse(events))
        last = encoder.end(answer.ended, answer.model, int(time.time()))
    except Refused as refused:  # its conversation was deleted
        last = encoder.fail(problem_of(refused))
    await exchange.write(encode_sse(events_after(last, after)) + SSE_DONE, more=False)


async def _send_complete(exchange: Exchange, started: StartedResponse) -> None:
    """Send the whole reply. Raises Problem if it has no regular end."""
    answer, encoder = started.answer, started.encoder
    encoder.begin()
    async for piece in answer:
        encoder.piece(piece)
    if (problem := problem_at_end(answer.ended)) is not None:
        raise problem
    encoder.end(answer.ended, answer.model, int(time.time()))
    headers = {"X-Request-Id": started.request_id, **_headers(started)}
    await exchange.answer(json_response(encoder.response, headers=headers))


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """The length of an input, with all that the model reads around it."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class CompactionItem(msgspec.Struct, frozen=True, kw_only=True, tag="compaction"):
    """A summary. `encrypted_content`: for the client to send back unchanged."""

    id: str
    encrypted_content: str


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """A replacement for an input."""

    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: tuple[CompactionItem, ...]
    usage: schema.Usage


class InputTokensEndpoint(ResponseRequestEndpoint):
    """Counts tokens. It begins no turn, so it is a read."""

    counts: ClassVar[FrameCost] = FrameCost.READ

    async def serve(
        self, exchange: Exchange, caller: Caller, request: Creation, body_lease: ExitStack
    ) -> None:
        """Answer one. Raises Refused."""
        ask = await self.creator.ask(caller, request, exchange)
        tokens = await self.creator.sessions.ephemeral.count(caller.owner, ask)
        body_lease.close()
        await exchange.answer(json_response(Counted(input_tokens=tokens)))


class CompactionEndpoint(ResponseRequestEndpoint):
    """Has the model write a summary, in a turn like others: counted, filtered, and stopped if its client leaves."""

    async def serve(
        self, exchange: Exchange, caller: Caller, request: Creation, body_lease: ExitStack
    ) -> None:
        """Answer one. Raises Refused."""
        ask = summary_request(await self.creator.ask(caller, request, exchange), request.instructions)
        await self.request_context.count(caller)
        reply = await self.creator.sessions.ephemeral.answer(caller.owner, ask)
        body_lease.close()
        try:
            summary = "".join([piece.text async for piece in reply if isinstance(piece, TextPiece)])
        finally:
            reply.cancel()
        if (problem := problem_at_end(reply.ended)) is not None:
            raise problem
        if not summary.strip():
            raise Problem(503, "The model wrote no summary; try again.", code="empty_summary")
        name = reply.turn_id.removeprefix("turn_")
        item = CompactionItem(id=f"cmp_{name}", encrypted_content=encode_opaque(summary.strip()))
        compaction = Compaction(
            id=f"resp_{name}",
            created_at=int(time.time()),
            output=(item,),
            usage=usage_of(reply.ended.usage),
        )
        await exchange.answer(json_response(compaction))


def summary_request(ask: EphemeralRequest, instructions: str | None) -> EphemeralRequest:
    """Return what is asked for a summary of an ask. `instructions`: its client's instructions for the summary."""
    messages_to_summarize = ask.messages[1:] if instructions else ask.messages
    prompt = f"{_SUMMARY_PROMPT}\n\n{instructions}" if instructions else _SUMMARY_PROMPT
    return msgspec.structs.replace(
        ask,
        messages=(*map(_without_tools, messages_to_summarize), Message("user", prompt)),
        spec=ReplySpec(reasoning="off"),
    )


def _without_tools(message: Message) -> Message:
    """Return a message for a model that is offered no tools."""
    if message.role == "tool":
        return Message("user", f"Result of a call: {message.content}")
    calls = "".join(f"\nCalled {_call_text(call)}." for call in message.calls)
    return Message(message.role, f"{message.content}{calls}".strip()) if calls else message


def _call_text(call: ToolCall) -> str:
    return f"{call.name} with {call.arguments}"


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """A response was deleted."""

    id: str
    object: Literal["response.deleted"] = "response.deleted"
    deleted: bool = True


class Items(msgspec.Struct, frozen=True, kw_only=True):
    """A page of items."""

    object: Literal["list"] = "list"
    data: Sequence[schema.InputItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class StoredResponseEndpoint(HttpEndpoint[None]):
    """Answers requests about one response, each for its owner only. `handler`: the requested act."""

    endpoint: ClassVar[EndpointName] = EndpointName.RESPONSES
    counts: ClassVar[FrameCost] = FrameCost.READ

    def __init__(
        self, response_store: ResponseStore, request_context: RequestContext, handler: StoredResponseHandler
    ) -> None:
        super().__init__(request_context)
        self._response_store = response_store
        self._handler = handler
        self._reads_path = handler is StoredResponseEndpoint.input_items

    def required_scope(self, request: Request) -> KeyScope:
        """Return the scope for the method: to stop a response takes `chat`, to delete one `manage`."""
        return SCOPES.get(request.method, KeyScope.READ)

    def read(self, body: bytes) -> None:
        """Return nothing: the URL has all."""

    async def serve(
        self,
        exchange: Exchange,
        caller: Caller,
        request: None,  # noqa: ARG002 - the URL has all
        body_lease: ExitStack,
    ) -> None:
        """Find the response, and do the act. Raises Refused."""
        body_lease.close()
        response_id = exchange.request.path_params["response_id"]
        with on_behalf_of(caller.group or caller.client.client_id):
            kept = await self._response_store.find(caller.owner, response_id, with_path=self._reads_path)
            if kept is None:
                why = f'There is no response "{response_id[:160]}": it was not kept, or not for you.'
                raise Problem(404, why, code="not_found", param="response_id")
            await self._handler(self, exchange, caller, kept)

    async def retrieve_or_delete(self, exchange: Exchange, caller: Caller, kept: StoredResponse) -> None:
        """Show or delete it, by the request's method. Raises Refused."""
        do = self.delete if exchange.request.method == "DELETE" else self.show
        await do(exchange, caller, kept)

    async def show(self, exchange: Exchange, caller: Caller, kept: StoredResponse) -> None:
        """Answer with the response in its current state, or as it is written. Raises Refused."""
        query = exchange.request.query_params
        if query.get("stream") != "true":
            await exchange.answer(json_response(_resource(kept)))
            return
        after = _number(exchange.request, "starting_after")
        if not kept.note.response.background:
            why = "Only responses that were created with `background` can be followed."
            raise invalid("stream", why)
        stored = await self._response_store.follow(caller.owner, kept)
        encoder = ResponsesEncoder(kept.note.response, name=kept.ref.name, calls=kept.note.calls)
        started = StartedResponse(stored, encoder, kept.ref.turn_id, _nothing, _nothing)
        try:
            await stream(exchange, started, after=after)
        finally:
            self._response_store.forget(stored)

    async def cancel(self, exchange: Exchange, caller: Caller, kept: StoredResponse) -> None:
        """Stop the response; an ended one stays as it is. Raises Refused."""
        await self._response_store.cancel(caller.owner, kept)
        now = await self._response_store.find(caller.owner, kept.ref.response_id) or kept
        await exchange.answer(json_response(_resource(now)))

    async def delete(self, exchange: Exchange, caller: Caller, kept: StoredResponse) -> None:
        """Delete the response; with the last one its conversation, unless a client named it. Raises Refused."""
        if not kept.has_ended:
            raise Problem(409, "The response is being written: cancel it first.", code="conflict")
        try:
            await self._response_store.delete(caller.owner, kept)
        except Conflict:
            raise Problem(409, _HAS_FOLLOWERS, code="conflict", param="response_id") from None
        await exchange.answer(json_response(Deleted(id=kept.ref.response_id)))

    async def input_items(self, exchange: Exchange, caller: Caller, kept: StoredResponse) -> None:
        """Answer with the response's input, newest first by default. Raises Refused."""
        items = input_items(kept.path, kept.turns, kept.note, kept.ref.name)
        shown = partial(self._response_store.images, caller.owner, kept.ref.conversation_id)
        await exchange.answer(json_response(await item_page(items, exchange.request, shown)))


async def item_page(items: list[ItemWithImages], request: Request, shown: ImageLoader) -> Items:
    """Return the page of items that a request asks for, newest first by default. Raises Problem, StoreDown."""
    query = request.query_params
    if query.get("order") != "asc":
        items.reverse()
    if (after := query.get("after")) is not None:
        ids = [item.id for item, _ in items]
        if after not in ids:
            raise invalid("after", field_message("after", "names none of these items."))
        items = items[ids.index(after) + 1 :]
    limit = _number(request, "limit")
    limit = DEFAULT_ITEMS if limit is None else limit
    if not 1 <= limit <= MAX_ITEMS:
        raise invalid("limit", field_message("limit", f"must be from 1 to {MAX_ITEMS}."))
    page = await load_images(items[:limit], shown)
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return Items(data=page, first_id=first, last_id=last, has_more=len(items) > len(page))


async def load_images(items: Sequence[ItemWithImages], shown: ImageLoader) -> list[schema.InputItem]:
    """Return items with the bytes of their images; a page ends before it has too many. Raises StoreDown."""
    page: list[schema.InputItem] = []
    size = 0
    for item, images in items:
        known = await shown(images)
        size += sum(len(image.data) for image in known)
        if page and size > PAGE_IMAGE_BYTES:
            break
        page.append(with_images(item, known))
    return page


def _resource(kept: StoredResponse) -> schema.Response:
    return resource_of(kept.turns, kept.note, kept.ref.name, waits=kept.waits)


def _number(request: Request, field: str) -> int | None:
    """Return a whole number in the query. Raises Problem."""
    text = request.query_params.get(field)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 12):  # noqa: PLR2004 - digits of any number meant
        raise invalid(field, field_message(field, "must be a whole number."))
    return int(text)


def _nothing() -> None:
    """Do nothing: a reader that follows a response does not affect it."""


class ConversationsEndpoint(HttpEndpoint[ConversationFields]):
    """Answers requests about an owner's conversations. `handlers`: the requested act, by the request's method."""

    endpoint: ClassVar[EndpointName] = EndpointName.RESPONSES
    counts: ClassVar[FrameCost] = FrameCost.READ

    def __init__(
        self,
        response_store: ResponseStore,
        request_context: RequestContext,
        handlers: dict[str, ConversationHandler],
    ) -> None:
        super().__init__(request_context)
        self._response_store = response_store
        self._conversations = ConversationStore(response_store)
        self._handlers = handlers

    def required_scope(self, request: Request) -> KeyScope:
        """Return the scope for the method: to create or extend takes `chat`, to delete `manage`."""
        return SCOPES.get(request.method, KeyScope.READ)

    def read(self, body: bytes) -> ConversationFields:
        """Return the request in a body, which may be empty. Raises Problem, TooManyValues."""
        request = decode_request(body, _decode) if body else ConversationFields()
        check_metadata(request.metadata or {})
        if len(request.items or ()) > MAX_ADDED_ITEMS:
            raise invalid("items", field_message("items", f"may have at most {MAX_ADDED_ITEMS} items."))
        return request

    async def serve(
        self,
        exchange: Exchange,
        caller: Caller,
        request: ConversationFields,
        body_lease: ExitStack,  # noqa: ARG002 - held until the items are stored
    ) -> None:
        """Do the act. Raises Refused."""
        handler = self._handlers["GET" if exchange.request.method == "HEAD" else exchange.request.method]
        with on_behalf_of(caller.group or caller.client.client_id):
            await handler(self, exchange, caller, request)

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

    async def update(self, exchange: Exchange, caller: Caller, request: ConversationFields) -> None:
        """Replace a conversation's metadata. Raises Refused."""
        found = await self._found(exchange, caller)
        if request.metadata is None:
            raise invalid("metadata", field_message("metadata", "is missing."))
        await self._admit(caller, 1)
        await exchange.answer(
            json_response(
                _conversation_resource(await self._conversations.update(caller, found, request.metadata))
            )
        )

    async def delete(self, exchange: Exchange, caller: Caller, _: ConversationFields) -> None:
        """Delete a conversation. Raises Refused."""
        found = await self._found(exchange, caller)
        await self._conversations.delete(caller.owner, found.conversation_id)
        await exchange.answer(json_response(schema.ConversationDeleted(id=found.conversation_id)))

    async def list_items(self, exchange: Exchange, caller: Caller, _: ConversationFields) -> None:
        """Answer with items, newest first by default. Raises Refused."""
        found = await self._found(exchange, caller, with_path=True)
        shown = partial(self._response_store.images, caller.owner, found.conversation_id)
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
        new = await self._shown(caller, now, [item for item in now.items if item[0].id not in before])
        first, last = (new[0].id, new[-1].id) if new else (None, None)
        await exchange.answer(json_response(Items(data=new, first_id=first, last_id=last, has_more=False)))

    async def show_item(self, exchange: Exchange, caller: Caller, _: ConversationFields) -> None:
        """Answer with one item. Raises Refused."""
        found = await self._found(exchange, caller, with_path=True)
        item_id = exchange.request.path_params["item_id"]
        items = await self._shown(caller, found, [item for item in found.items if item[0].id == item_id])
        if not items:
            raise item_not_found(item_id)
        await exchange.answer(json_response(items[0]))

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
        """Count what is stored as messages. Raises RateLimited."""
        self.request_context.take(caller, turns)
        await self.request_context.count(caller, turns)

    async def _shown(
        self, caller: Caller, found: StoredConversation, items: list[ItemWithImages]
    ) -> list[schema.InputItem]:
        shown = partial(self._response_store.images, caller.owner, found.conversation_id)
        return await load_images(items, shown)


def _conversation_resource(found: StoredConversation) -> schema.Conversation:
    description = found.description
    return schema.Conversation(
        id=found.conversation_id, created_at=description.created_at, metadata=description.metadata
    )


def responses_routes(
    request_context: RequestContext,
    socket: ResponsesWebSocketEndpoint,
    origins: AllowedOrigins,
    refusals: RefusalCounters,
) -> list[BaseRoute]:
    """Return the routes below `/v1/responses` and `/v1/conversations`."""
    creator = socket.creator

    def with_cors(endpoint: ASGIApp, method: str) -> CorsMiddleware:
        return CorsMiddleware(endpoint, origins, refusals, method=method, refusal=forbidden_origin)

    def kept(handler: StoredResponseHandler, method: str) -> CorsMiddleware:
        return with_cors(StoredResponseEndpoint(creator.response_store, request_context, handler), method)

    def conversations(path: str, **handlers: ConversationHandler) -> Route:
        methods = list(handlers)
        endpoint = ConversationsEndpoint(creator.response_store, request_context, handlers)
        return Route(
            CONVERSATIONS + path, with_cors(endpoint, ", ".join(methods)), methods=[*methods, "OPTIONS"]
        )

    handler = ConversationsEndpoint
    item = "/{conversation_id}/items/{item_id}"
    one = f"{PATH}/{{response_id}}"
    count = InputTokensEndpoint(creator, request_context)
    compact = CompactionEndpoint(creator, request_context)
    return [
        WebSocketRoute(PATH, socket.accept),
        Route(f"{PATH}/input_tokens", with_cors(count, "POST"), methods=["POST", "OPTIONS"]),
        Route(f"{PATH}/compact", with_cors(compact, "POST"), methods=["POST", "OPTIONS"]),
        Route(
            one,
            kept(StoredResponseEndpoint.retrieve_or_delete, "GET, DELETE"),
            methods=["GET", "DELETE", "OPTIONS"],
        ),
        Route(f"{one}/cancel", kept(StoredResponseEndpoint.cancel, "POST"), methods=["POST", "OPTIONS"]),
        Route(
            f"{one}/input_items", kept(StoredResponseEndpoint.input_items, "GET"), methods=["GET", "OPTIONS"]
        ),
        Route(
            PATH, with_cors(ResponsesEndpoint(creator, request_context), "POST"), methods=["POST", "OPTIONS"]
        ),
        conversations("", POST=handler.create),
        conversations("/{conversation_id}", GET=handler.show, POST=handler.update, DELETE=handler.delete),
        conversations("/{conversation_id}/items", GET=handler.list_items, POST=handler.add_items),
        conversations(item, GET=handler.show_item, DELETE=handler.delete_item),
    ]
