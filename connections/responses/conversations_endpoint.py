"""`/v1/conversations`: conversations are created, described, read item by item, extended and deleted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import ClassVar

import msgspec
from starlette.requests import Request

from connections.api.endpoint import HttpEndpoint
from connections.api.errors import invalid
from connections.api.fields import decode_request
from connections.api.request_context import RequestContext
from connections.http.exchange import Exchange
from connections.http.json_responses import json_response
from connections.http.refusal_counters import EndpointName
from connections.limits.caller import Caller
from connections.protocol.codec import FrameCost
from connections.protocol.errors import field_message
from connections.protocol.scopes import KeyScope
from connections.responses.output import wire
from connections.responses.requests.items import messages_of
from connections.responses.requests.models import ConversationFields
from connections.responses.requests.parser import check_metadata
from connections.responses.stored.conversation_store import (
    ConversationStore,
    StoredConversation,
    group_into_turns,
    item_not_found,
)
from connections.responses.stored.notes import ItemWithImages
from connections.responses.stored.response_store import ResponseStore
from connections.responses.stored_response_endpoint import SCOPES, Items, item_page, load_images
from engine.messages import Message
from sessions.records import MessageRecord
from sessions.store.redis.pool import on_behalf_of
from sessions.turn.tool_calls import as_written

MAX_ADDED_ITEMS = 20
"""Items that one request may add, as at OpenAI's. Each exchange of them is a turn of its own."""
_decode = msgspec.json.Decoder(ConversationFields).decode

ConversationHandler = Callable[
    ["ConversationsEndpoint", Exchange, Caller, ConversationFields], Awaitable[None]
]


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
        await exchange.answer(json_response(_resource(found)))

    async def show(self, exchange: Exchange, caller: Caller, _: ConversationFields) -> None:
        """Answer with a conversation. Raises Refused."""
        await exchange.answer(json_response(_resource(await self._found(exchange, caller))))

    async def update(self, exchange: Exchange, caller: Caller, request: ConversationFields) -> None:
        """Replace a conversation's metadata. Raises Refused."""
        found = await self._found(exchange, caller)
        if request.metadata is None:
            raise invalid("metadata", field_message("metadata", "is missing."))
        await self._admit(caller, 1)
        await exchange.answer(
            json_response(_resource(await self._conversations.update(caller, found, request.metadata)))
        )

    async def delete(self, exchange: Exchange, caller: Caller, _: ConversationFields) -> None:
        """Delete a conversation. Raises Refused."""
        found = await self._found(exchange, caller)
        await self._conversations.delete(caller.owner, found.conversation_id)
        await exchange.answer(json_response(wire.ConversationDeleted(id=found.conversation_id)))

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
        await exchange.answer(json_response(_resource(found)))

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
    ) -> list[wire.InputItem]:
        shown = partial(self._response_store.images, caller.owner, found.conversation_id)
        return await load_images(items, shown)


def _resource(found: StoredConversation) -> wire.Conversation:
    description = found.description
    return wire.Conversation(
        id=found.conversation_id, created_at=description.created_at, metadata=description.metadata
    )
