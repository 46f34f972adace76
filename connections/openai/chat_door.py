"""`POST /v1/chat/completions`: a turn without a conversation, told as a stream of events or whole."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from functools import partial

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from connections.http.exchange import Exchange
from connections.http.refusals import Door
from connections.limits.caller import Caller
from connections.openai.asking import ask_of, chat_request
from connections.openai.reception import Reception
from connections.openai.telling import Telling
from connections.openai.wire import ChatRequest
from sessions.conversation.guarding import guarded
from sessions.running.ephemeral_reply import EphemeralReply
from sessions.service import Sessions


class ChatDoor:
    """Answers requests. A client that goes away stops its turn."""

    def __init__(self, sessions: Sessions, reception: Reception) -> None:
        self._sessions = sessions
        self._reception = reception

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        exchange = Exchange(scope, receive, send)
        refused = await guarded(self._serve(exchange))
        if refused is not None and not exchange.begun:
            await exchange.answer(self._reception.refusal(refused, Door.CHAT))

    async def _serve(self, exchange: Exchange) -> None:
        """Raises Refused."""
        with suppress(ClientDisconnect):
            caller = await self._reception.caller(exchange.request)
            self._reception.take(caller)
            with ExitStack() as place:
                body = await exchange.body(partial(self._reception.admit_large, caller, place))
                request = chat_request(body)
                del body
                await exchange.while_there(self._answer(exchange, caller, request, place))

    async def _answer(
        self, exchange: Exchange, caller: Caller, request: ChatRequest, place: ExitStack
    ) -> None:
        """`place`: of a large body, until the window is known to hold its text."""
        model = self._reception.model(request.model)
        ask = msgspec.structs.replace(
            ask_of(request, await self._reception.limits(model)),
            client_id=caller.client.client_id,
            group=caller.group,
            model=model.name,
        )
        await self._reception.count(caller)
        reply = await self._sessions.answer(caller.owner, ask)
        place.close()
        telling = Telling(
            turn_id=reply.turn_id,
            model=reply.model,
            created=int(time.time()),
            usage=request.includes_usage,
            logprobs=bool(request.logprobs),
        )
        try:
            await (_stream if request.stream else _whole)(exchange, reply, telling)
        finally:
            reply.cancel()


async def _stream(exchange: Exchange, reply: EphemeralReply, telling: Telling) -> None:
    reply.cut_off = exchange.cut_off
    await exchange.begin_events(reply.turn_id)
    await exchange.write(telling.begin())
    async for text in reply:
        if reply.model != telling.model:  # another one stands in
            telling = msgspec.structs.replace(telling, model=reply.model)
        await exchange.write(telling.text(text, reply.logprobs))
    telling = msgspec.structs.replace(telling, model=reply.model)
    await exchange.write(telling.end(reply.ended), more=False)


async def _whole(exchange: Exchange, reply: EphemeralReply, telling: Telling) -> None:
    """Raises Problem where the reply has no regular end."""
    parts = [(part, reply.logprobs) async for part in reply]
    text, tokens = "".join(part for part, _ in parts), [one for _, some in parts for one in some]
    headers = {"Cache-Control": "no-store", "X-Request-Id": reply.turn_id}
    body = msgspec.structs.replace(telling, model=reply.model).whole(text, reply.ended, tokens)
    await exchange.answer(Response(body, headers=headers, media_type="application/json"))
