"""`POST /v1/ag-ui`: a run is a turn without a conversation. The client sends its whole thread with each run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import ClassVar

import msgspec
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from connections.agui.asking import ask_of, names_of, run_input
from connections.agui.fields import RunInput
from connections.agui.telling import Telling, error_of
from connections.agui.threads import Threads
from connections.gate.cross_origin import CrossOrigin
from connections.gate.origin import Origins
from connections.http.exchange import Exchange
from connections.http.json_answers import foreign_words
from connections.http.refusals import Door, Refusals
from connections.limits.caller import Caller
from connections.openai.problems import Problem, problem_of
from connections.openai.reception import Reception
from connections.replies.door import OneReplyDoor, ignored
from connections.replies.streaming import stream
from connections.wire.facts import Limits
from sessions.errors import Refused
from sessions.running.ephemeral import Ask
from sessions.running.ephemeral_reply import EphemeralReply
from sessions.service import Sessions
from sessions.store.redis.asker import asking_for


class AgUiDoor(OneReplyDoor[RunInput]):
    """Answers runs."""

    door: ClassVar[Door] = Door.AG_UI

    def __init__(self, sessions: Sessions, reception: Reception) -> None:
        super().__init__(sessions, reception)
        self._threads = Threads(sessions)

    async def answer(self, exchange: Exchange, caller: Caller, request: RunInput, place: ExitStack) -> None:
        """Answer a run of a thread that the client keeps, or that is kept here. Raises Refused."""
        if not await self._threads.has(caller, request):
            await super().answer(exchange, caller, request, place)
            return
        model = self.reception.model(request.model, caller.grant)
        limits = await self.reception.limits(model)
        await self.reception.count(caller)
        with asking_for(caller.group or caller.client.client_id):
            run = await self._threads.begin(caller, request, model, limits)
        place.close()
        stored = run.stored
        try:
            telling = Telling(stored.turn_id, request, run.calls)
            await stream(exchange, stored, telling, ignored(stored))
        finally:
            self._threads.leave(caller.owner, stored, request.thread_id)

    def read(self, body: bytes) -> RunInput:
        """Return the request in a body. Raises Problem, TooManyValues."""
        return run_input(body)

    def ask(self, request: RunInput, limits: Limits) -> Ask:
        """Return what the turn is asked. Raises Problem."""
        return ask_of(request, limits)

    def names(self, request: RunInput) -> Mapping[str, str]:
        """Return this client's names of fields."""
        return names_of(request)

    def refusal(self, refused: Refused) -> Response:
        """Return the event that would have ended the run, with an HTTP status."""
        return _refusal(problem_of(refused))

    async def tell(self, exchange: Exchange, request: RunInput, reply: EphemeralReply) -> None:
        """Send a run as a stream of events."""
        telling = Telling(reply.turn_id, request)
        await stream(exchange, reply, telling, ignored(reply))


def agui_routes(
    sessions: Sessions, reception: Reception, origins: Origins, refusals: Refusals
) -> list[BaseRoute]:
    """Return the route."""
    door = CrossOrigin(AgUiDoor(sessions, reception), origins, refusals, method="POST", refusal=_foreign_page)
    return [Route("/v1/ag-ui", door, methods=["POST", "OPTIONS"])]


def _refusal(problem: Problem) -> Response:
    told = problem.response()
    told.body = msgspec.json.encode(error_of(problem))
    told.headers["content-length"] = str(len(told.body))
    return told


def _foreign_page(origin: str | None) -> Response:
    return _refusal(Problem(403, foreign_words(origin), code="forbidden"))
