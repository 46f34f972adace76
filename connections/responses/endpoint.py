"""`POST /v1/responses`: a reply, whole or as a stream of events. A client that leaves stops its turn."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import ClassVar

from connections.api.endpoint import IGNORED_HEADER, HttpEndpoint
from connections.api.errors import problem_of
from connections.api.request_context import RequestContext
from connections.http.exchange import Exchange
from connections.http.json_responses import json_response as json_answer
from connections.http.refusal_counters import EndpointName
from connections.limits.caller import Caller
from connections.responses.creator import ResponseCreator, StartedResponse
from connections.responses.output.encoder import encode_sse, events_after, problem_at_end
from connections.responses.requests.models import Creation
from connections.responses.requests.parser import parse_response_request
from sessions.errors import Refused

SSE_DONE = b"data: [DONE]\n\n"


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
                await exchange.answer(json_answer(started.encoder.response))
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
    await exchange.answer(json_answer(encoder.response, headers=headers))
