"""`POST /v1/responses`: a reply, whole or as a stream of events. A client that leaves stops its turn."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import ClassVar

from connections.http.exchange import Exchange
from connections.http.json_answers import answer as json_answer
from connections.http.refusals import Door
from connections.limits.caller import Caller
from connections.openai.answering import IGNORED
from connections.openai.door import HttpDoor
from connections.openai.problems import problem_of
from connections.openai.reception import Reception
from connections.responses.answers.telling import as_events, behind, problem_at
from connections.responses.creating import Begun, Creator
from connections.responses.requests.asking import creation
from connections.responses.requests.fields import Creation
from sessions.errors import Refused

END = b"data: [DONE]\n\n"


class BodyDoor(HttpDoor[Creation]):
    """Answers requests with the body of a request for a response."""

    door: ClassVar[Door] = Door.RESPONSES

    def __init__(self, creator: Creator, reception: Reception) -> None:
        super().__init__(reception)
        self.creator = creator

    def read(self, body: bytes) -> Creation:
        """Return the request in a body. Raises Problem, TooManyValues."""
        return creation(body)


class ResponsesDoor(BodyDoor):
    """Answers requests for responses."""

    async def serve(self, exchange: Exchange, caller: Caller, request: Creation, place: ExitStack) -> None:
        """Answer one. Raises Refused."""
        begun = await self.creator.create(caller, request, exchange=exchange)
        place.close()
        try:
            if request.background and not request.stream:
                await exchange.answer(json_answer(begun.telling.response))
            else:
                await (stream if request.stream else _whole)(exchange, begun)
        finally:
            begun.leave()


def _headers(begun: Begun) -> dict[str, str]:
    return {IGNORED: ", ".join(begun.answer.ignored)} if begun.answer.ignored else {}


async def stream(exchange: Exchange, begun: Begun, *, after: int | None = None) -> None:
    """Send a response as events. `after`: the number of the last one that its reader had."""
    answer, telling = begun.answer, begun.telling
    answer.cut_off = exchange.cut_off
    await exchange.begin_events(begun.request_id, _headers(begun))
    await exchange.write(as_events(behind(telling.begin(), after)))
    try:
        async for piece in answer:
            if told := behind(telling.piece(piece), after):
                await exchange.write(as_events(told))
        last = telling.end(answer.ended, answer.model, int(time.time()))
    except Refused as refused:  # its conversation was deleted
        last = telling.fail(problem_of(refused))
    await exchange.write(as_events(behind(last, after)) + END, more=False)


async def _whole(exchange: Exchange, begun: Begun) -> None:
    """Send the whole reply. Raises Problem if it has no regular end."""
    answer, telling = begun.answer, begun.telling
    telling.begin()
    async for piece in answer:
        telling.piece(piece)
    if (problem := problem_at(answer.ended)) is not None:
        raise problem
    telling.end(answer.ended, answer.model, int(time.time()))
    headers = {"X-Request-Id": begun.request_id, **_headers(begun)}
    await exchange.answer(json_answer(telling.response, headers=headers))
