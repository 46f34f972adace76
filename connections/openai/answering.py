"""What the doors for replies share: who asks, what they may have, and their replies, as a stream of events or whole."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import ClassVar, Generic, Protocol, TypeVar

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from connections.http.exchange import Exchange
from connections.http.refusals import Door
from connections.limits.caller import Caller
from connections.openai.asking import fields_of
from connections.openai.problems import Problem, renamed
from connections.openai.reception import Reception
from connections.openai.requests.fields import Asked
from connections.wire.facts import Limits
from connections.wire.scopes import KeyScope
from engine.messages import ToolCall
from sessions.conversation.guarding import guarded
from sessions.errors import BadParams
from sessions.events import Done
from sessions.running.ephemeral import Ask
from sessions.running.replies import Replies
from sessions.running.waiting_pieces import Piece
from sessions.service import Sessions

IGNORED = "X-Midstream-Ignored"
"""The header that names fields of a request that its model can't follow and that the operator lets it pass over."""

R = TypeVar("R", bound=Asked)


class Teller(Protocol):
    """Tells replies in a door's words; see `Telling`."""

    def begin(self, number: int, model: str) -> bytes:
        """What comes first of a reply."""

    def piece(self, number: int, model: str, piece: Piece, calls: int) -> bytes:
        """A piece of a reply, none perhaps."""

    def end(self, number: int, model: str, done: Done) -> bytes:
        """The end of a reply. Raises Problem where it is no regular one."""

    def close(self, model: str, ends: Sequence[Done], prompts: Sequence[int]) -> bytes:
        """What comes last."""

    def fail(self, model: str, problem: Problem, ends: Sequence[Done], prompts: Sequence[int]) -> bytes:
        """What comes last where a reply has no regular end."""

    def whole(
        self, model: str, replies: Sequence[tuple[Sequence[Piece], Done]], prompts: Sequence[int]
    ) -> bytes:
        """All replies. Raises Problem where one has no regular end."""


class AnsweringDoor(ABC, Generic[R]):
    """Answers requests. A client that goes away stops its turns."""

    door: ClassVar[Door]

    def __init__(self, sessions: Sessions, reception: Reception) -> None:
        self._sessions = sessions
        self._reception = reception

    @abstractmethod
    def read(self, body: bytes) -> R:
        """The request in a body. Raises Refused."""

    @abstractmethod
    def asks(self, request: R, limits: Limits) -> list[Ask]:
        """What turns are asked. Raises Refused."""

    @abstractmethod
    def teller(self, request: R, turn_id: str, created: int) -> Teller:
        """Who tells the replies."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        exchange = Exchange(scope, receive, send)
        refused = await guarded(self._serve(exchange))
        if refused is not None and not exchange.begun:
            await exchange.answer(self._reception.refusal(refused, self.door))

    async def _serve(self, exchange: Exchange) -> None:
        """Raises Refused."""
        with suppress(ClientDisconnect):
            caller = await self._reception.caller(exchange.request)
            caller.grant.check(KeyScope.CHAT)
            self._reception.take(caller)
            with ExitStack() as place:
                request = await self._reception.read(exchange, caller, place, self.read)
                await self._reception.while_good(
                    exchange, caller, self._answer(exchange, caller, request, place)
                )

    async def _answer(self, exchange: Exchange, caller: Caller, request: R, place: ExitStack) -> None:
        """`place`: of a large body, until the window is known to hold its text."""
        asks = await self._asks(caller, request)
        await self._count(caller, asks)
        try:
            replies = await self._sessions.answers(caller.owner, asks)
        except BadParams as refused:
            raise renamed(refused, fields_of(request)) from None
        place.close()
        teller = self.teller(request, replies.first.turn_id, int(time.time()))
        prompts = list(_prompts(asks))
        try:
            await (_stream if request.stream else _whole)(exchange, replies, teller, prompts)
        finally:
            replies.cancel()

    async def _asks(self, caller: Caller, request: R) -> list[Ask]:
        model = self._reception.model(request.model, caller.grant)
        asks = self.asks(request, await self._reception.limits(model))
        return [
            msgspec.structs.replace(
                ask, client_id=caller.client.client_id, group=caller.group, model=model.name
            )
            for ask in asks
        ]

    async def _count(self, caller: Caller, asks: Sequence[Ask]) -> None:
        """Each reply counts as a message; one was counted when the request came. Raises RateLimited."""
        replies = sum(ask.replies for ask in asks)
        self._reception.take(caller, replies - 1)
        await self._reception.count(caller, replies)


def _prompts(asks: Sequence[Ask]) -> Iterator[int]:
    """For each reply the number of its prompt."""
    for number, ask in enumerate(asks):
        yield from [number] * ask.replies


def _headers(replies: Replies) -> dict[str, str]:
    return {IGNORED: ", ".join(replies.first.ignored)} if replies.first.ignored else {}


async def _stream(exchange: Exchange, replies: Replies, teller: Teller, prompts: Sequence[int]) -> None:
    replies.when_late(exchange.cut_off)
    await exchange.begin_events(replies.first.turn_id, _headers(replies))
    first = (teller.begin(number, reply.model) for number, reply in enumerate(replies.all))
    await exchange.write(b"".join(first))
    last = await _tell(exchange, replies, teller, prompts)
    await exchange.write(last, more=False)


async def _tell(exchange: Exchange, replies: Replies, teller: Teller, prompts: Sequence[int]) -> bytes:
    """Tells all pieces; gives what comes last, the ends among it that nothing came behind."""
    calls, ended = [0] * len(replies), b""
    try:
        async for number, piece in replies:
            model = replies[number].model  # another one may stand in
            if piece is None:
                ended += teller.end(number, model, replies[number].ended)
                continue
            part = ended + teller.piece(number, model, piece, calls[number])
            calls[number] += isinstance(piece, ToolCall)
            ended = b""
            if part:
                await exchange.write(part)
    except Problem as problem:
        return ended + teller.fail(replies.first.model, problem, *_ends(replies, prompts))
    return ended + teller.close(replies.first.model, *_ends(replies, prompts))


def _ends(replies: Replies, prompts: Sequence[int]) -> tuple[list[Done], list[int]]:
    """The ends that there are, and the numbers of their prompts."""
    ended = [(reply.done, prompt) for reply, prompt in zip(replies.all, prompts, strict=True) if reply.done]
    return [done for done, _ in ended], [prompt for _, prompt in ended]


async def _whole(exchange: Exchange, replies: Replies, teller: Teller, prompts: Sequence[int]) -> None:
    """Raises Problem where a reply has no regular end."""
    pieces: list[list[Piece]] = [[] for _ in replies.all]
    async for number, piece in replies:
        if piece is None:
            teller.end(number, replies[number].model, replies[number].ended)
        else:
            pieces[number].append(piece)
    told = [(some, reply.ended) for some, reply in zip(pieces, replies.all, strict=True)]
    body = teller.whole(replies.first.model, told, prompts)
    headers = {"Cache-Control": "no-store", "X-Request-Id": replies.first.turn_id, **_headers(replies)}
    await exchange.answer(Response(body, headers=headers, media_type="application/json"))
