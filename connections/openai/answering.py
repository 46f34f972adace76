"""Common parts of the doors for replies: the client, its rights, and its replies, as a stream of events or whole."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Protocol, TypeVar

from starlette.responses import Response

from connections.http.exchange import Exchange
from connections.limits.caller import Caller
from connections.openai.asking import fields_of
from connections.openai.door import HttpDoor
from connections.openai.problems import Problem, renamed
from connections.openai.reception import Reception
from connections.openai.requests.fields import Asked
from connections.wire.facts import Limits
from engine.messages import ToolCall
from sessions.errors import BadParams
from sessions.events import Done
from sessions.running.ephemeral import Ask
from sessions.running.replies import Replies
from sessions.running.waiting_pieces import Piece
from sessions.service import Sessions

IGNORED = "X-Midstream-Ignored"
"""The header with the ignored fields of a request: hints, and tools that can't be called if the operator allows that."""

R = TypeVar("R", bound=Asked)


class Teller(Protocol):
    """Converts replies for a door; see `Telling`."""

    def begin(self, number: int, model: str) -> bytes:
        """Return the beginning of a reply."""

    def piece(self, number: int, model: str, piece: Piece, calls: int) -> bytes:
        """Return a piece of a reply, possibly empty."""

    def end(self, number: int, model: str, done: Done) -> bytes:
        """Return the end of a reply. Raises Problem if it is not a regular one."""

    def close(self, model: str, ends: Sequence[Done], prompts: Sequence[int]) -> bytes:
        """Return the end of the stream."""

    def fail(self, model: str, problem: Problem, ends: Sequence[Done], prompts: Sequence[int]) -> bytes:
        """Return the end of the stream if a reply has no regular end."""

    def whole(
        self, model: str, replies: Sequence[tuple[Sequence[Piece], Done]], prompts: Sequence[int]
    ) -> bytes:
        """Return all replies. Raises Problem if one has no regular end."""


class AnsweringDoor(HttpDoor[R]):
    """Answers requests. A client that leaves stops its turns."""

    def __init__(self, sessions: Sessions, reception: Reception) -> None:
        super().__init__(reception)
        self._sessions = sessions

    @abstractmethod
    def asks(self, request: R, limits: Limits) -> list[Ask]:
        """Return what turns are asked. Raises Refused."""

    @abstractmethod
    def teller(self, request: R, turn_id: str, created: int) -> Teller:
        """Return what converts the replies."""

    async def serve(self, exchange: Exchange, caller: Caller, request: R, place: ExitStack) -> None:
        """Have turns write the replies. Raises Refused."""
        asks = await self._asks(exchange, caller, request)
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

    async def _asks(self, exchange: Exchange, caller: Caller, request: R) -> list[Ask]:
        model = self.reception.model(request.model, caller.grant)
        limits = await self.reception.limits(model)
        asks = await self.reception.apart(exchange, lambda: self.asks(request, limits))
        return [self.reception.asked_by(caller, ask, model, fields_of(request)) for ask in asks]

    async def _count(self, caller: Caller, asks: Sequence[Ask]) -> None:
        """Count each reply as a message; one was counted when the request came. Raises RateLimited."""
        replies = sum(ask.replies for ask in asks)
        self.reception.take(caller, replies - 1)
        await self.reception.count(caller, replies)


def _prompts(asks: Sequence[Ask]) -> Iterator[int]:
    """Return the number of its prompt for each reply."""
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
    """Send all pieces; return the end of the stream, with the replies' ends that nothing followed."""
    calls, ended = [0] * len(replies), b""
    try:
        async for number, piece in replies:
            model = replies[number].model  # a fallback may answer
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
    """Return the ends so far, and the numbers of their prompts."""
    ended = [(reply.done, prompt) for reply, prompt in zip(replies.all, prompts, strict=True) if reply.done]
    return [done for done, _ in ended], [prompt for _, prompt in ended]


async def _whole(exchange: Exchange, replies: Replies, teller: Teller, prompts: Sequence[int]) -> None:
    """Send all replies at once. Raises Problem if a reply has no regular end."""
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
