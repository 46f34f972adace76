"""Carries out requests: translates them to frames of the native socket, which one handler answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

import msgspec

from connections.aisdk.asking import Redo, Say, Settle, UIChatRequest, edit_id, wish_of
from connections.aisdk.telling import Settled, Telling, chain_of
from connections.line.connection import Connection, Handler
from connections.line.requests import Slow
from connections.wire.errors import BadParams
from connections.wire.frames import (
    Cancel,
    Edit,
    History,
    Regenerate,
    Request,
    Send,
    ToolDecision,
    ToolResult,
)
from connections.wire.scopes import KeyScope
from sessions.conversation.paging import ShownMessage
from sessions.errors import NotFound
from sessions.service import Sessions
from sessions.shares import Subject

PAGE = 200
"""Messages of the history that are read: as many as a page may have."""


class Answering:
    """Carries out requests.

    `inner`: answers frames; `take_read`: counts reads of the store besides them, and may refuse one; `grace_s`: how
    long a reply waits for its client by default.
    """

    def __init__(
        self,
        *,
        inner: Handler[Request],
        sessions: Sessions,
        take_read: Callable[[Subject], None],
        grace_s: float,
    ) -> None:
        self._inner = inner
        self._sessions = sessions
        self._take_read = take_read
        self._grace_s = grace_s

    def begin(self, connection: Connection, telling: Telling, request: UIChatRequest) -> Slow | None:
        """Begin or continue a message. A plain one is registered at once, so a later stop finds it.

        Raises BadFrame, BadParams, Refused.
        """
        turn = {"ref": telling.ref, "conversation_id": request.id, **request.turn(grace_s=self._grace_s)}
        match wish := wish_of(request):
            case Say(is_edit=False, images=()):
                return self._say(connection, telling, wish, turn)
            case Say(is_edit=False):
                return self._show(connection, telling, wish, turn)
            case Say():
                return self._edit(connection, telling, wish, turn)
            case Redo():
                return self._redo(connection, telling, wish, turn)
            case Settle():
                return self._settle(connection, telling, wish, request)
            case _:
                assert_never(wish)

    def resume(self, connection: Connection, telling: Telling, chat_id: str) -> Slow | None:
        """Send the message that is being written. Raises Refused."""
        frame = History(ref=telling.ref, conversation_id=chat_id, limit=PAGE)
        return self._inner.handle(connection, frame)

    def stop(self, connection: Connection, telling: Telling, chat_id: str) -> Slow | None:
        """End what a request began or continued, and no other turn of its chat. Raises Refused."""
        telling.is_stopped = True
        if telling.sent_as is None and telling.turn_id is None:
            # Who is about to send it looks at `is_stopped`.
            return None
        frame = Cancel(turn_id=telling.turn_id, client_msg_id=telling.sent_as, conversation_id=chat_id)
        return self._inner.handle(connection, frame)

    def _say(self, connection: Connection, telling: Telling, said: Say, turn: dict[str, Any]) -> Slow | None:
        telling.sent_as = said.message_id
        frame = Send(
            client_msg_id=said.message_id, content=said.content, attachments=said.attachments, **turn
        )
        return self._inner.handle(connection, frame)

    async def _show(self, connection: Connection, telling: Telling, said: Say, turn: dict[str, Any]) -> None:
        """Send a message with images, which are stored first."""
        await self._keep(connection, said)
        if not telling.is_stopped:
            await _done(self._say(connection, telling, said, turn))

    async def _keep(self, connection: Connection, said: Say) -> None:
        await self._sessions.images.keep(connection.owner, *said.images, group=connection.caller.group)

    async def _edit(self, connection: Connection, telling: Telling, said: Say, turn: dict[str, Any]) -> None:
        self._take_read(connection.caller.subject)
        await self._keep(connection, said)
        found = await self._sessions.exchange(connection.owner, turn["conversation_id"], said.message_id)
        if telling.is_stopped:
            return
        if found is None:  # the first request was refused
            await _done(self._say(connection, telling, said, turn))
            return
        telling.sent_as = edit_id(said)
        frame = Edit(
            client_msg_id=telling.sent_as,
            message_id=found.message_id,
            content=said.content,
            attachments=said.attachments,
            **turn,
        )
        await _done(self._inner.handle(connection, frame))

    async def _redo(self, connection: Connection, telling: Telling, redo: Redo, turn: dict[str, Any]) -> None:
        self._take_read(connection.caller.subject)
        place, owner, found = turn["conversation_id"], connection.owner, None
        for name in filter(None, (redo.reply_id, redo.question.message_id)):
            found = found or await self._sessions.exchange(owner, place, name)
        if telling.is_stopped:
            return
        if found is None:
            await self._show(connection, telling, redo.question, turn)
            return
        telling.sent_as = telling.ref
        frame = Regenerate(client_msg_id=telling.ref, message_id=found.reply_id, **turn)
        await _done(self._inner.handle(connection, frame))

    async def _settle(
        self, connection: Connection, telling: Telling, settle: Settle, request: UIChatRequest
    ) -> None:
        """Answer the calls of the last reply. Raises NotFound if it is not known here."""
        if not settle.answers:
            raise BadParams("ends with a reply, without an answer to any of its calls.", field="messages")
        connection.caller.grant.check(KeyScope.CHAT)
        self._take_read(connection.caller.subject)
        shown = await self._sessions.history(connection.owner, connection, request.id, limit=PAGE)
        chain = chain_of(shown.page.messages)
        called = [{call.call_id for call in message.calls or ()} for message in chain]
        said = {answer.call_id for answer in settle.answers}
        place = next((n for n in range(len(chain) - 1, -1, -1) if called[n] & said), None)
        if place is None:
            raise NotFound(
                "The calls that are answered are not those of the chat's last reply; load the chat again."
            )
        telling.go_on(settle.message_id, reply := chain[place])
        if telling.is_stopped:  # before its turn was known
            last = Cancel(turn_id=chain[-1].turn_id, conversation_id=request.id)
            await _done(self._inner.handle(connection, last))
            return
        stays = request.on_disconnect == "continue"
        self._sessions.keep_calls(connection.owner, request.id, reply.turn_id, kept=stays)
        later = tuple(chain[place + 1 :])
        answers = [] if later else _fresh(settle, reply)
        if KeyScope.READ not in connection.caller.grant.scopes:
            later = ()
        for answer in answers:  # a change of one call must not end the message while others are answered
            telling.answered(answer.call_id, is_allowed=_is_allowed(answer))
        for answer in answers:
            await self._answer(connection, telling, answer, request.id)
        connection.push(Settled(ref=telling.ref, is_news=bool(answers), later=later))

    async def _answer(
        self, connection: Connection, telling: Telling, answer: ToolResult | ToolDecision, chat_id: str
    ) -> None:
        if not telling.is_stopped:
            named = msgspec.structs.replace(answer, ref=telling.ref, conversation_id=chat_id)
            await _done(self._inner.handle(connection, named))


def _fresh(settle: Settle, reply: ShownMessage) -> list[ToolResult | ToolDecision]:
    """Return the answers to open calls, since a client repeats its earlier answers each time."""
    open_calls = {call.call_id for call in reply.calls or () if not call.state.is_settled}
    return [answer for answer in settle.answers if answer.call_id in open_calls]


def _is_allowed(answer: ToolResult | ToolDecision) -> bool:
    return isinstance(answer, ToolDecision) and answer.decision == "allow"


async def _done(slow: Slow | None) -> None:
    if slow is not None:
        await slow
