"""`/v1/conversations`: conversations are created, described, read item by item, extended and deleted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import ClassVar

import msgspec
from starlette.requests import Request

from connections.http.exchange import Exchange
from connections.http.json_answers import answer
from connections.http.refusals import Door
from connections.limits.caller import Caller
from connections.openai.asking import request_in
from connections.openai.door import HttpDoor
from connections.openai.problems import invalid
from connections.openai.reception import Reception
from connections.responses.answers import wire
from connections.responses.kept.conversations import Conversations, Found, no_item, steps_of
from connections.responses.kept.keeper import Keeper
from connections.responses.kept.notes import ItemWithImages
from connections.responses.kept_door import SCOPES, Items, page_of, with_their_images
from connections.responses.requests.asking import check_metadata
from connections.responses.requests.fields import ConversationFields
from connections.responses.requests.items import messages_of
from connections.wire.scopes import KeyScope
from connections.wire.sentences import worded
from connections.wire.table import Counts
from engine.messages import Message
from sessions.records import MessageRecord
from sessions.store.redis.asker import asking_for
from sessions.turn.calls import as_written

MOST_ADDED = 20
"""Items that one request may add, as at OpenAI's. Each exchange of them is a turn of its own."""
_decode = msgspec.json.Decoder(ConversationFields).decode

Act = Callable[["ConversationsDoor", Exchange, Caller, ConversationFields], Awaitable[None]]


class ConversationsDoor(HttpDoor[ConversationFields]):
    """Answers requests about an owner's conversations. `acts`: the requested act, by the request's method."""

    door: ClassVar[Door] = Door.RESPONSES
    counts: ClassVar[Counts] = Counts.READ

    def __init__(self, keeper: Keeper, reception: Reception, acts: dict[str, Act]) -> None:
        super().__init__(reception)
        self._keeper = keeper
        self._conversations = Conversations(keeper)
        self._acts = acts

    def needs(self, request: Request) -> KeyScope:
        """Return the scope for the method: to create or extend takes `chat`, to delete `manage`."""
        return SCOPES.get(request.method, KeyScope.READ)

    def read(self, body: bytes) -> ConversationFields:
        """Return the request in a body, which may be empty. Raises Problem, TooManyValues."""
        request = request_in(body, _decode) if body else ConversationFields()
        check_metadata(request.metadata or {})
        if len(request.items or ()) > MOST_ADDED:
            raise invalid("items", worded("items", f"may have at most {MOST_ADDED} items."))
        return request

    async def serve(
        self,
        exchange: Exchange,
        caller: Caller,
        request: ConversationFields,
        place: ExitStack,  # noqa: ARG002 - held until the items are stored
    ) -> None:
        """Do the act. Raises Refused."""
        act = self._acts["GET" if exchange.request.method == "HEAD" else exchange.request.method]
        with asking_for(caller.group or caller.client.client_id):
            await act(self, exchange, caller, request)

    async def create(self, exchange: Exchange, caller: Caller, request: ConversationFields) -> None:
        """Create a conversation, with items or without. Raises Refused."""
        steps = list(steps_of(await self._messages(exchange, caller, request) if request.items else ()))
        await self._admit(caller, max(1, len(steps)))
        found = await self._conversations.create(caller, request.metadata or {})
        try:
            await self._conversations.add(caller, found, steps)
        except BaseException:
            await self._conversations.delete(caller.owner, found.conversation_id)
            raise
        await exchange.answer(answer(_resource(found)))

    async def show(self, exchange: Exchange, caller: Caller, _: ConversationFields) -> None:
        """Answer with a conversation. Raises Refused."""
        await exchange.answer(answer(_resource(await self._found(exchange, caller))))

    async def update(self, exchange: Exchange, caller: Caller, request: ConversationFields) -> None:
        """Replace a conversation's metadata. Raises Refused."""
        found = await self._found(exchange, caller)
        if request.metadata is None:
            raise invalid("metadata", worded("metadata", "is missing."))
        await self._admit(caller, 1)
        await exchange.answer(
            answer(_resource(await self._conversations.update(caller, found, request.metadata)))
        )

    async def delete(self, exchange: Exchange, caller: Caller, _: ConversationFields) -> None:
        """Delete a conversation. Raises Refused."""
        found = await self._found(exchange, caller)
        await self._conversations.delete(caller.owner, found.conversation_id)
        await exchange.answer(answer(wire.ConversationDeleted(id=found.conversation_id)))

    async def list_items(self, exchange: Exchange, caller: Caller, _: ConversationFields) -> None:
        """Answer with items, newest first by default. Raises Refused."""
        found = await self._found(exchange, caller, with_path=True)
        shown = partial(self._keeper.images, caller.owner, found.conversation_id)
        await exchange.answer(answer(await page_of(found.items, exchange.request, shown)))

    async def add_items(self, exchange: Exchange, caller: Caller, request: ConversationFields) -> None:
        """Add items, and answer with them. Raises Refused."""
        found = await self._found(exchange, caller, with_path=True)
        before = {item.id for item, _ in found.items}
        steps = list(steps_of(await self._messages(exchange, caller, request, found.path), found.path))
        await self._admit(caller, len(steps))
        await self._conversations.add(caller, found, steps)
        now = await self._found(exchange, caller, with_path=True)
        new = await self._shown(caller, now, [item for item in now.items if item[0].id not in before])
        first, last = (new[0].id, new[-1].id) if new else (None, None)
        await exchange.answer(answer(Items(data=new, first_id=first, last_id=last, has_more=False)))

    async def show_item(self, exchange: Exchange, caller: Caller, _: ConversationFields) -> None:
        """Answer with one item. Raises Refused."""
        found = await self._found(exchange, caller, with_path=True)
        item_id = exchange.request.path_params["item_id"]
        items = await self._shown(caller, found, [item for item in found.items if item[0].id == item_id])
        if not items:
            raise no_item(item_id)
        await exchange.answer(answer(items[0]))

    async def delete_item(self, exchange: Exchange, caller: Caller, _: ConversationFields) -> None:
        """Delete the last item, and answer with its conversation. Raises Refused."""
        found = await self._found(exchange, caller, with_path=True)
        await self._conversations.delete_item(caller, found, exchange.request.path_params["item_id"])
        await exchange.answer(answer(_resource(found)))

    async def _found(self, exchange: Exchange, caller: Caller, *, with_path: bool = False) -> Found:
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
        limits = await self.reception.limits(self.reception.model(None, caller.grant))
        calls = tuple(as_written(call) for record in path for call in record.calls)
        before = [Message("assistant", "", calls=calls)] if calls else []
        return await self.reception.apart(
            exchange, lambda: messages_of(request.items or [], limits, before, field="items")
        )

    async def _admit(self, caller: Caller, turns: int) -> None:
        """Count what is stored as messages. Raises RateLimited."""
        self.reception.take(caller, turns)
        await self.reception.count(caller, turns)

    async def _shown(self, caller: Caller, found: Found, items: list[ItemWithImages]) -> list[wire.InputItem]:
        shown = partial(self._keeper.images, caller.owner, found.conversation_id)
        return await with_their_images(items, shown)


def _resource(found: Found) -> wire.Conversation:
    description = found.description
    return wire.Conversation(
        id=found.conversation_id, created_at=description.created_at, metadata=description.metadata
    )
