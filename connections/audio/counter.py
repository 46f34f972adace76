"""Places at the doors for sound, and their refusals."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from starlette.requests import ClientDisconnect

from connections.http.exchange import Exchange
from connections.http.refusals import Door
from connections.limits.caller import Caller
from connections.openai.problems import Problem
from connections.openai.reception import Reception
from connections.wire.scopes import KeyScope
from sessions.conversation.guarding import guarded
from sessions.errors import Overloaded
from sessions.running.admission import AGAIN_MS
from sessions.shares import Shares
from speech.errors import SpeechError


class Counter:
    """Admits clients of one of these doors: counts them, and holds a place while they are served."""

    def __init__(self, door: Door, reception: Reception, places: int) -> None:
        """`places`: concurrent requests, from the first byte of the body to the last one of the answer."""
        self._door = door
        self._reception = reception
        self._places = Shares(places)

    async def serve(self, exchange: Exchange, work: Coroutine[None, None, None]) -> None:
        """Serve a request. A refusal is answered if nothing was sent; otherwise the connection ends."""
        refused = await guarded(_told(work))
        if refused is None:
            return
        if exchange.begun:
            exchange.cut_off()
            return
        await exchange.answer(self._reception.refusal(refused, self._door))

    @asynccontextmanager
    async def admitted(self, exchange: Exchange) -> AsyncIterator[Caller]:
        """Admit a client. Raises Refused."""
        caller = await self._reception.caller(exchange.request)
        caller.grant.check(KeyScope.CHAT)
        self._reception.take(caller)
        with self._place(caller):
            await self._reception.count(caller)
            yield caller

    async def while_good(self, exchange: Exchange, caller: Caller, work: Coroutine[None, None, None]) -> None:
        """Do the work while its client is there and its token is valid. Raises as the work does, ClientDisconnect."""
        await self._reception.while_good(exchange, caller, work)

    @contextmanager
    def _place(self, caller: Caller) -> Iterator[None]:
        if not self._places.has_room_for(caller.subject):
            raise Overloaded(
                "The server is listening or speaking as much as it can.", retry_after_ms=AGAIN_MS
            )
        self._places.take(caller.subject)
        try:
            yield
        finally:
            self._places.give_back(caller.subject)


def lost(error: SpeechError) -> Problem:
    """Return a temporary failure in OpenAI's terms."""
    return Problem(503, str(error), code="speech_unavailable", retry_after_ms=AGAIN_MS)


async def _told(work: Coroutine[None, None, None]) -> None:
    """Do the work. Raises Refused."""
    with suppress(ClientDisconnect):
        try:
            await work
        except SpeechError as error:
            raise lost(error) from None
