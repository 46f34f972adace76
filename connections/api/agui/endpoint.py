"""`POST /v1/ag-ui`: a run is a turn without a conversation. The client sends its whole thread with each run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import ClassVar

import msgspec
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from connections.api.agui.encoder import AguiEncoder, error_of
from connections.api.agui.parser import ask_of, names_of, run_input
from connections.api.agui.schema import RunInput
from connections.api.agui.stored_threads import StoredThreads
from connections.api.endpoint import RequestContext, SingleReplyEndpoint, ignored_header
from connections.api.errors import Problem, problem_of
from connections.api.replies import stream_reply
from connections.authentication.caller import Caller
from connections.http.exchange import Exchange
from connections.http.json_responses import forbidden_origin_message
from connections.http.refusal_counters import EndpointName, RefusalCounters
from connections.middleware.origins import AllowedOrigins, CorsMiddleware
from connections.protocol.server_info import Limits
from sessions.errors import Refused
from sessions.limits.slots import on_behalf_of
from sessions.running.ephemeral import EphemeralReply, EphemeralRequest
from sessions.service import Sessions


class AguiEndpoint(SingleReplyEndpoint[RunInput]):
    """Answers runs."""

    endpoint: ClassVar[EndpointName] = EndpointName.AG_UI

    def __init__(self, sessions: Sessions, request_context: RequestContext) -> None:
        super().__init__(sessions, request_context)
        self._threads = StoredThreads(sessions)

    async def answer(
        self, exchange: Exchange, caller: Caller, request: RunInput, body_lease: ExitStack
    ) -> None:
        """Answer a run of a thread that the client keeps, or that is kept here. Raises Refused."""
        if not await self._threads.has(caller, request):
            await super().answer(exchange, caller, request, body_lease)
            return
        model = self.request_context.model(request.model, caller.grant)
        limits = await self.request_context.limits(model)
        await self.request_context.count(caller)
        with on_behalf_of(caller.group or caller.client.client_id):
            run = await self._threads.begin(caller, request, model, limits)
        body_lease.close()
        stored = run.stored
        try:
            encoder = AguiEncoder(stored.turn_id, request, run.calls)
            await stream_reply(exchange, stored, encoder, ignored_header(stored))
        finally:
            self._threads.abandon(caller.owner, stored, request.thread_id)

    def read(self, body: bytes) -> RunInput:
        """Return the request in a body. Raises Problem, TooManyValues."""
        return run_input(body)

    def turn_request(self, request: RunInput, limits: Limits) -> EphemeralRequest:
        """Return what the turn is asked. Raises Problem."""
        return ask_of(request, limits)

    def names(self, request: RunInput) -> Mapping[str, str]:
        """Return this client's names of fields."""
        return names_of(request)

    def refusal(self, refused: Refused) -> Response:
        """Return the event that would have ended the run, with an HTTP status."""
        return _refusal(problem_of(refused))

    async def send_reply(self, exchange: Exchange, request: RunInput, reply: EphemeralReply) -> None:
        """Send a run as a stream of events."""
        encoder = AguiEncoder(reply.turn_id, request)
        await stream_reply(exchange, reply, encoder, ignored_header(reply))


def agui_routes(
    sessions: Sessions, request_context: RequestContext, origins: AllowedOrigins, refusals: RefusalCounters
) -> list[BaseRoute]:
    """Return the route."""
    endpoint = CorsMiddleware(
        AguiEndpoint(sessions, request_context), origins, refusals, method="POST", refusal=_foreign_origin
    )
    return [Route("/v1/ag-ui", endpoint, methods=["POST", "OPTIONS"])]


def _refusal(problem: Problem) -> Response:
    response = problem.response()
    response.body = msgspec.json.encode(error_of(problem))
    response.headers["content-length"] = str(len(response.body))
    return response


def _foreign_origin(origin: str | None) -> Response:
    return _refusal(Problem(403, forbidden_origin_message(origin), code="forbidden"))
