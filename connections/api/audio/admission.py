"""Places at the endpoints for sound, and their refusals."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, contextmanager, suppress

from starlette.requests import ClientDisconnect

from connections.api.endpoint import RequestContext
from connections.api.errors import Problem, invalid
from connections.authentication.caller import Caller
from connections.http.exchange import Exchange
from connections.http.refusal_counters import EndpointName
from connections.protocol.errors import shorten
from connections.protocol.scopes import KeyScope
from sessions.conversation.conversation import refusal_of
from sessions.errors import Overloaded
from sessions.limits.shares import AGAIN_MS, FairShare
from speech.errors import SpeechError


class AudioAdmission:
    """Admits clients of one of these endpoints: counts them, and holds a place while they are served."""

    def __init__(self, endpoint: EndpointName, request_context: RequestContext, slots: int) -> None:
        """`slots`: concurrent requests, from the first byte of the body to the last one of the answer."""
        self._endpoint = endpoint
        self._request_context = request_context
        self._slots = FairShare(slots)

    async def serve(self, exchange: Exchange, work: Coroutine[None, None, None]) -> None:
        """Serve a request. A refusal is answered if nothing was sent; otherwise the connection ends."""
        refused = await refusal_of(_with_http_errors(work))
        if refused is None:
            return
        if exchange.begun:
            exchange.cut_off()
            return
        await exchange.answer(self._request_context.refusal(refused, self._endpoint))

    @asynccontextmanager
    async def admitted(self, exchange: Exchange) -> AsyncIterator[Caller]:
        """Admit a client. Raises Refused."""
        caller = await self._request_context.caller(exchange.request)
        caller.grant.check(KeyScope.CHAT)
        self._request_context.take(caller)
        with self._slot(caller):
            await self._request_context.count(caller)
            yield caller

    async def run_while_valid(
        self, exchange: Exchange, caller: Caller, work: Coroutine[None, None, None]
    ) -> None:
        """Do the work while its client is there and its token is valid. Raises as the work does, ClientDisconnect."""
        await self._request_context.run_while_valid(exchange, caller, work)

    @contextmanager
    def _slot(self, caller: Caller) -> Iterator[None]:
        if not self._slots.has_capacity_for(caller.subject):
            raise Overloaded(
                "The server is listening or speaking as much as it can.", retry_after_ms=AGAIN_MS
            )
        self._slots.take(caller.subject)
        try:
            yield
        finally:
            self._slots.give_back(caller.subject)


def speech_unavailable(error: SpeechError) -> Problem:
    """Return a temporary failure in OpenAI's terms."""
    return Problem(503, str(error), code="speech_unavailable", retry_after_ms=AGAIN_MS)


async def _with_http_errors(work: Coroutine[None, None, None]) -> None:
    """Do the work. Raises Refused."""
    with suppress(ClientDisconnect):
        try:
            await work
        except SpeechError as error:
            raise speech_unavailable(error) from None


def check_model(name: str | None, served: str, aliases: AbstractSet[str]) -> None:
    """Raise Problem for any model but the served one, which has these other names; an empty one is Open WebUI's default."""
    if name is None:
        raise invalid("model", f"`model` is missing. This server has {served} here.")
    if name not in {"", served} | aliases:
        why = f'This server has "{served}" here, and no model "{shorten(name)}".'
        raise Problem(404, why, code="model_not_found", param="model")
