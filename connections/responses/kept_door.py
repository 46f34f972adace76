"""`/v1/responses/{id}`: stored responses can be read, followed, stopped or deleted, and their inputs listed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import ClassVar, Literal

import msgspec
from starlette.requests import Request

from connections.http.exchange import Exchange
from connections.http.json_answers import answer
from connections.http.refusals import Door
from connections.limits.caller import Caller
from connections.openai.door import HttpDoor
from connections.openai.problems import Problem, invalid
from connections.openai.reception import Reception
from connections.responses.answers import wire
from connections.responses.answers.telling import Telling
from connections.responses.creating import Begun
from connections.responses.door import stream
from connections.responses.kept.keeper import Keeper, Kept
from connections.responses.kept.notes import ItemWithImages, input_items, resource_of, with_images
from connections.wire.scopes import KeyScope
from connections.wire.sentences import worded
from connections.wire.table import Counts
from engine.images.image import Image
from sessions.errors import Conflict
from sessions.store.redis.asker import asking_for

SCOPES = {"POST": KeyScope.CHAT, "DELETE": KeyScope.MANAGE}
ITEMS = 20
MOST_ITEMS = 100
PAGE_IMAGE_BYTES = 8 * 1024 * 1024
"""Bytes of a page's images; the page ends with the item that exceeds them."""
_FOLLOWED = "The conversation went on from this response: delete what follows it first."


Shown = Callable[[Sequence[Image]], Awaitable[Sequence[Image]]]
"""Returns images with their bytes, as far as they are stored."""
Does = Callable[["KeptDoor", Exchange, Caller, Kept], Awaitable[None]]


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


class KeptDoor(HttpDoor[None]):
    """Answers requests about one response, each for its owner only. `does`: the requested act."""

    door: ClassVar[Door] = Door.RESPONSES
    counts: ClassVar[Counts] = Counts.READ

    def __init__(self, keeper: Keeper, reception: Reception, does: Does) -> None:
        super().__init__(reception)
        self._keeper = keeper
        self._does = does
        self._reads_path = does is KeptDoor.input_items

    def needs(self, request: Request) -> KeyScope:
        """Return the scope for the method: to stop a response takes `chat`, to delete one `manage`."""
        return SCOPES.get(request.method, KeyScope.READ)

    def read(self, body: bytes) -> None:
        """Return nothing: the URL has all."""

    async def serve(
        self,
        exchange: Exchange,
        caller: Caller,
        request: None,  # noqa: ARG002 - the URL has all
        place: ExitStack,
    ) -> None:
        """Find the response, and do the act. Raises Refused."""
        place.close()
        response_id = exchange.request.path_params["response_id"]
        with asking_for(caller.group or caller.client.client_id):
            kept = await self._keeper.find(caller.owner, response_id, with_path=self._reads_path)
            if kept is None:
                why = f'There is no response "{response_id[:160]}": it was not kept, or not for you.'
                raise Problem(404, why, code="not_found", param="response_id")
            await self._does(self, exchange, caller, kept)

    async def show_or_delete(self, exchange: Exchange, caller: Caller, kept: Kept) -> None:
        """Show or delete it, by the request's method. Raises Refused."""
        do = self.delete if exchange.request.method == "DELETE" else self.show
        await do(exchange, caller, kept)

    async def show(self, exchange: Exchange, caller: Caller, kept: Kept) -> None:
        """Answer with the response in its current state, or as it is written. Raises Refused."""
        query = exchange.request.query_params
        if query.get("stream") != "true":
            await exchange.answer(answer(_resource(kept)))
            return
        after = _number(exchange.request, "starting_after")
        if not kept.note.response.background:
            why = "Only responses that were created with `background` can be followed."
            raise invalid("stream", why)
        stored = await self._keeper.follow(caller.owner, kept)
        telling = Telling(kept.note.response, name=kept.place.name, calls=kept.note.calls)
        begun = Begun(stored, telling, kept.place.turn_id, _nothing, _nothing)
        try:
            await stream(exchange, begun, after=after)
        finally:
            self._keeper.forget(stored)

    async def cancel(self, exchange: Exchange, caller: Caller, kept: Kept) -> None:
        """Stop the response; an ended one stays as it is. Raises Refused."""
        await self._keeper.cancel(caller.owner, kept)
        now = await self._keeper.find(caller.owner, kept.place.response_id) or kept
        await exchange.answer(answer(_resource(now)))

    async def delete(self, exchange: Exchange, caller: Caller, kept: Kept) -> None:
        """Delete the response; with the last one its conversation, unless a client named it. Raises Refused."""
        if not kept.has_ended:
            raise Problem(409, "The response is being written: cancel it first.", code="conflict")
        try:
            await self._keeper.delete(caller.owner, kept)
        except Conflict:
            raise Problem(409, _FOLLOWED, code="conflict", param="response_id") from None
        await exchange.answer(answer(Deleted(id=kept.place.response_id)))

    async def input_items(self, exchange: Exchange, caller: Caller, kept: Kept) -> None:
        """Answer with the response's input, newest first by default. Raises Refused."""
        items = input_items(kept.path, kept.turns, kept.note, kept.place.name)
        shown = partial(self._keeper.images, caller.owner, kept.place.conversation_id)
        await exchange.answer(answer(await page_of(items, exchange.request, shown)))


async def page_of(items: list[ItemWithImages], request: Request, shown: Shown) -> Items:
    """Return the page of items that a request asks for, newest first by default. Raises Problem, StoreDown."""
    query = request.query_params
    if query.get("order") != "asc":
        items.reverse()
    if (after := query.get("after")) is not None:
        ids = [item.id for item, _ in items]
        if after not in ids:
            raise invalid("after", worded("after", "names none of these items."))
        items = items[ids.index(after) + 1 :]
    limit = _number(request, "limit")
    limit = ITEMS if limit is None else limit
    if not 1 <= limit <= MOST_ITEMS:
        raise invalid("limit", worded("limit", f"must be from 1 to {MOST_ITEMS}."))
    page = await with_their_images(items[:limit], shown)
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return Items(data=page, first_id=first, last_id=last, has_more=len(items) > len(page))


async def with_their_images(items: Sequence[ItemWithImages], shown: Shown) -> list[wire.InputItem]:
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


def _resource(kept: Kept) -> wire.Response:
    return resource_of(kept.turns, kept.note, kept.place.name, waits=kept.waits)


def _number(request: Request, field: str) -> int | None:
    """Return a whole number in the query. Raises Problem."""
    text = request.query_params.get(field)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 12):  # noqa: PLR2004 - digits of any number meant
        raise invalid(field, worded(field, "must be a whole number."))
    return int(text)


def _nothing() -> None:
    """Do nothing: a reader that follows a response does not affect it."""
