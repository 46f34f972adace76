"""`/v1/ai-sdk/chat` over HTTP: a message is a streamed answer, and a chat is a stored conversation.

A client that leaves detaches, as at every door: `on_disconnect` says whether its reply continues.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from connections.aisdk.answering import PAGE, Answering
from connections.aisdk.asking import chat_request
from connections.aisdk.host import FEATURES, Host, guest_of, named_client
from connections.aisdk.parts import ui_messages
from connections.aisdk.problems import Problem, answer_of, code_of
from connections.aisdk.stream import PROTOCOL, Stream, StreamTransport
from connections.aisdk.telling import End, Telling, chain_of, is_running
from connections.authentication.identity import Identity
from connections.http.exchange import Exchange
from connections.http.json_answers import answer
from connections.http.queries import name_of
from connections.http.refusals import Door
from connections.limits.caller import Caller
from connections.line.connection import Connection
from connections.line.outbox import Outbox
from connections.line.requests import Slow
from connections.line.socket_door import OUTBOX_BYTES
from connections.wire.errors import BadFrame, BadParams, Close, CloseCode, Unauthenticated
from connections.wire.scopes import KeyScope
from engine.images.image import Image
from sessions.conversation.guarding import guarded
from sessions.conversation.paging import ShownMessage
from sessions.errors import NotFound
from sessions.store.redis.asker import asking_for
from sessions.turn.cancelling import Cancel
from sessions.turn.live_turn import Nobody


class Guest(NamedTuple):
    """The client of a request, and how it is counted."""

    identity: Identity
    caller: Caller


class ChatStopped(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The outcome of a stop. `turn_id`: null if nothing ran; `already`: it had ended, or its end was decided."""

    turn_id: str | None
    already: bool


MESSAGES_IMAGE_BYTES = 8 * 1024 * 1024
"""Bytes of the images in a history, the newest first; further ones are left out."""
Begin = Callable[[Answering, Connection, Telling], Slow | None]


def _nothing() -> None:
    pass


class ChatDoor:
    """Answers requests about chats."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._sessions = host.sessions
        self._limiters = host.limiters
        self._tally = host.limiters.tally(Door.AI_SDK)

    async def send(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`POST /v1/ai-sdk/chat`: a message, or what came of calls."""
        await self._guard(Exchange(scope, receive, send), self._send)

    async def resume(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`GET …/{chat_id}/stream`: the message that is being written, from its start."""
        await self._guard(Exchange(scope, receive, send), self._resume)

    async def stop(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`POST …/{chat_id}/stop`: ends what is being written."""
        await self._guard(Exchange(scope, receive, send), self._stop)

    async def messages(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`GET …/{chat_id}/messages`: the stored messages of a chat, without the one that is being written."""
        await self._guard(Exchange(scope, receive, send), self._messages)

    async def _guard(self, exchange: Exchange, serve: Callable[[Exchange], Slow]) -> None:
        if exchange.request.method == "HEAD":
            await exchange.answer(Response(status_code=405, headers={"Allow": "GET, OPTIONS"}))
            return
        if (failed := await guarded(self._serve(exchange, serve))) is not None:
            await self._refuse(exchange, failed)

    async def _serve(self, exchange: Exchange, serve: Callable[[Exchange], Slow]) -> None:
        """Serve a request. Raises Refused."""
        try:
            await serve(exchange)
        except (BadFrame, BadParams, Unauthenticated, Close) as why:
            await self._refuse(exchange, why)
        except ClientDisconnect:
            return

    async def _refuse(self, exchange: Exchange, why: Problem) -> None:
        if not exchange.begun:
            self._tally.told(code_of(why))
            await exchange.answer(answer_of(why))

    async def _send(self, exchange: Exchange) -> None:
        identity, client_id = await self._who(exchange)
        reader = guest_of(identity, client_id, "", exchange.request.scope)
        reader.grant.check(KeyScope.CHAT)
        self._count(reader)
        with ExitStack() as place:
            request = await self._host.reception.read(exchange, reader, place, chat_request)

            def begin(answering: Answering, view: Connection, telling: Telling) -> Slow | None:
                return answering.begin(view, telling, request)

            guest = Guest(identity, guest_of(identity, client_id, request.id, exchange.request.scope))
            await self._stream(exchange, guest, request.id, begin, place.close)

    async def _resume(self, exchange: Exchange) -> None:
        chat_id, guest = await self._guest(exchange)

        def begin(answering: Answering, view: Connection, telling: Telling) -> Slow | None:
            return answering.resume(view, telling, chat_id)

        try:
            await self._stream(exchange, guest, chat_id, begin)
        except NotFound:  # it has no message yet
            await exchange.answer(Response(status_code=204))

    async def _stop(self, exchange: Exchange) -> None:
        chat_id, guest = await self._guest(exchange)
        guest.caller.grant.check(KeyScope.CHAT)
        self._count(guest.caller)
        owner, cancel = guest.caller.owner, Cancel(conversation_id=chat_id)
        met = self._sessions.cancel(owner, cancel)
        if met is None or met.is_part or met.is_forwarded:
            with asking_for(guest.caller.group or guest.caller.client.client_id):
                elsewhere = await self._sessions.cancel_elsewhere(owner, cancel)
            met = met or elsewhere
        await exchange.answer(answer(ChatStopped(turn_id=met.turn_id, already=met.already)))

    async def _messages(self, exchange: Exchange) -> None:
        chat_id, guest = await self._guest(exchange)
        guest.caller.grant.check(KeyScope.READ)
        self._count(guest.caller)
        owner, reader = guest.caller.owner, Nobody()
        try:
            with asking_for(guest.caller.group or guest.caller.client.client_id):
                shown = await self._sessions.history(owner, reader, chat_id, limit=PAGE)
        except NotFound:
            await exchange.answer(answer([]))
            return
        finally:
            self._sessions.disconnect(reader)
        messages = shown.page.messages
        chain = chain_of(messages)
        kept = messages[: len(messages) - len(chain)] if is_running(chain) else messages
        images = await self._images(guest.caller, chat_id, kept)
        await exchange.answer(answer(ui_messages(kept, images)))

    async def _images(
        self, caller: Caller, chat_id: str, messages: Sequence[ShownMessage]
    ) -> dict[str, Image]:
        """Return the newest images of messages, up to a number of bytes. Raises StoreDown."""
        shown = [one.id for message in messages if message.attachments for one in message.attachments]
        images = self._sessions.images
        return await images.newest(caller.owner, chat_id, reversed(shown), most=MESSAGES_IMAGE_BYTES)

    async def _who(self, exchange: Exchange) -> tuple[Identity, str | None]:
        """Return who asks, and the client that the URL names. Raises BadParams, Unauthenticated, Refused."""
        query = exchange.request.query_params
        client_id = named_client(query)
        authorization = exchange.request.headers.get("authorization")
        return await self._host.guests.identity(authorization, query.get("ticket")), client_id

    async def _guest(self, exchange: Exchange) -> tuple[str, Guest]:
        """Return the chat of a path, and its client. Raises BadParams, Unauthenticated, Refused."""
        chat_id = name_of("id", exchange.request.path_params["chat_id"])
        identity, client_id = await self._who(exchange)
        return chat_id, Guest(identity, guest_of(identity, client_id, chat_id, exchange.request.scope))

    def _count(self, caller: Caller) -> None:
        """Count a request before anything is read for it. Raises RateLimited."""
        self._limiters.take_read(caller.subject)

    async def _stream(
        self,
        exchange: Exchange,
        guest: Guest,
        chat_id: str,
        begin: Begin,
        begun: Callable[[], None] = _nothing,
    ) -> None:
        """Stream an answer. Raises BadFrame, BadParams, Close, Refused before its first byte."""
        telling = Telling(ref=secrets.token_hex(16))
        stream = Stream(telling)
        transport = StreamTransport(exchange, stream)
        view = Connection(
            transport,
            caller=guest.caller,
            outbox=Outbox(max_bytes=OUTBOX_BYTES),
            features=FEATURES,
            tally=self._tally,
            encode=stream.encode,
        )
        answering = await self._host.answering(grace_s=0)  # a reply does not wait for a client that left
        async with self._host.presence.of(view):
            if (slow := begin(answering, view, telling)) is not None:
                await slow
            begun()
            if telling.end is End.NOTHING:
                await exchange.answer(Response(status_code=204))
                return
            with self._host.guests.access.inside(guest.identity, view):
                await transport.begin(view.connection_id, PROTOCOL)
                await view.run(partial(_live, view, transport, stream))
            if telling.end is End.WAITS:  # its client leaves in order to answer; that cancels no call
                self._sessions.keep_calls(view.owner, chat_id, telling.turn_id or "", kept=True)


async def _live(
    view: Connection, transport: StreamTransport, stream: Stream, tasks: asyncio.TaskGroup
) -> None:
    tasks.create_task(transport.send())
    tasks.create_task(_end(view, transport, stream))
    await transport.receive()


async def _end(view: Connection, transport: StreamTransport, stream: Stream) -> None:
    """End the answer once its reader has all of it."""
    await stream.over.wait()
    await transport.drained()
    view.shut(Close(CloseCode.BYE, "The message is complete."))
