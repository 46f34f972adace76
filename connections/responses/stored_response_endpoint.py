"""`/v1/responses/{id}`: stored responses can be read, followed, stopped or deleted, and their inputs listed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import ClassVar, Literal

import msgspec
from starlette.requests import Request

from connections.http.exchange import Exchange
from connections.http.json_responses import json_response
from connections.http.refusal_counters import EndpointName
from connections.limits.caller import Caller
from connections.openai.endpoint import HttpEndpoint
from connections.openai.problems import Problem, invalid
from connections.openai.request_context import RequestContext
from connections.protocol.codec import FrameCost
from connections.protocol.errors import field_message
from connections.protocol.scopes import KeyScope
from connections.responses.creator import StartedResponse
from connections.responses.endpoint import stream
from connections.responses.output import wire
from connections.responses.output.encoder import ResponsesEncoder
from connections.responses.stored.notes import ItemWithImages, input_items, resource_of, with_images
from connections.responses.stored.response_store import ResponseStore, StoredResponse
from engine.vision.image import Image
from sessions.errors import Conflict
from sessions.store.redis.pool import on_behalf_of

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


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """A response was deleted."""

    id: str
    object: Literal["response.deleted"] = "response.deleted"
    deleted: bool = True


class Items(msgspec.Struct, frozen=True, kw_only=True):
    """A page of items."""

    object: Literal["list"] = "list"
    data: Sequence[wire.InputItem]
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


async def load_images(items: Sequence[ItemWithImages], shown: ImageLoader) -> list[wire.InputItem]:
    """Return items with the bytes of their images; a page ends before it has too many. Raises StoreDown."""
    page: list[wire.InputItem] = []
    size = 0
    for item, images in items:
        known = await shown(images)
        size += sum(len(image.data) for image in known)
        if page and size > PAGE_IMAGE_BYTES:
            break
        page.append(with_images(item, known))
    return page


def _resource(kept: StoredResponse) -> wire.Response:
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
