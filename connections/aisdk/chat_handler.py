"""Carries out requests: translates them to frames of the native socket, which one handler answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

import msgspec

from connections.aisdk.chunk_encoder import CallsAnswered, ChunkEncoder, latest_replies
from connections.aisdk.requests import (
    NewMessage,
    Regeneration,
    ToolAnswers,
    UIChatRequest,
    action_of,
    edit_id,
)
from connections.connection import Connection, Handler, PendingWork
from connections.protocol.errors import BadParams
from connections.protocol.frames import (
    Cancel,
    Edit,
    History,
    Regenerate,
    Request,
    Send,
    ToolDecision,
    ToolResult,
)
from connections.protocol.scopes import KeyScope
from sessions.conversation.history_page import ShownMessage
from sessions.errors import NotFound
from sessions.fair_share import Subject
from sessions.service import Sessions

PAGE = 200
"""Messages of the history that are read: as many as a page may have."""


class ChatHandler:
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

    def begin(
        self, connection: Connection, encoder: ChunkEncoder, request: UIChatRequest
    ) -> PendingWork | None:
        """Begin or continue a message. A plain one is registered at once, so a later stop finds it.

        Raises BadFrame, BadParams, Refused.
        """
        turn = {"ref": encoder.ref, "conversation_id": request.id, **request.turn(grace_s=self._grace_s)}
        match action := action_of(request):
            case NewMessage(is_edit=False, images=()):
                return self._send(connection, encoder, action, turn)
            case NewMessage(is_edit=False):
                return self._send_with_images(connection, encoder, action, turn)
            case NewMessage():
                return self._edit(connection, encoder, action, turn)
            case Regeneration():
                return self._regenerate(connection, encoder, action, turn)
            case ToolAnswers():
                return self._answer_calls(connection, encoder, action, request)
            case _:
                assert_never(action)

    def resume(self, connection: Connection, encoder: ChunkEncoder, chat_id: str) -> PendingWork | None:
        """Send the message that is being written. Raises Refused."""
        frame = History(ref=encoder.ref, conversation_id=chat_id, limit=PAGE)
        return self._inner.handle(connection, frame)

    def stop(self, connection: Connection, encoder: ChunkEncoder, chat_id: str) -> PendingWork | None:
        """End what a request began or continued, and no other turn of its chat. Raises Refused."""
        encoder.is_stopped = True
        if encoder.client_msg_id is None and encoder.turn_id is None:
            # The code that is about to send it checks `is_stopped`.
            return None
        frame = Cancel(turn_id=encoder.turn_id, client_msg_id=encoder.client_msg_id, conversation_id=chat_id)
        return self._inner.handle(connection, frame)

    def _send(
        self, connection: Connection, encoder: ChunkEncoder, submitted: NewMessage, turn: dict[str, Any]
    ) -> PendingWork | None:
        encoder.client_msg_id = submitted.message_id
        frame = Send(
            client_msg_id=submitted.message_id,
            content=submitted.content,
            attachments=submitted.attachments,
            **turn,
        )
        return self._inner.handle(connection, frame)

    async def _send_with_images(
        self, connection: Connection, encoder: ChunkEncoder, submitted: NewMessage, turn: dict[str, Any]
    ) -> None:
        """Send a message with images, which are stored first."""
        await self._store_images(connection, submitted)
        if not encoder.is_stopped:
            await _finish(self._send(connection, encoder, submitted, turn))

    async def _store_images(self, connection: Connection, submitted: NewMessage) -> None:
        await self._sessions.images.keep(connection.owner, *submitted.images, group=connection.caller.group)

    async def _edit(
        self, connection: Connection, encoder: ChunkEncoder, submitted: NewMessage, turn: dict[str, Any]
    ) -> None:
        self._take_read(connection.caller.subject)
        await self._store_images(connection, submitted)
        found = await self._sessions.exchange(connection.owner, turn["conversation_id"], submitted.message_id)
        if encoder.is_stopped:
            return
        if found is None:  # the first request was refused
            await _finish(self._send(connection, encoder, submitted, turn))
            return
        encoder.client_msg_id = edit_id(submitted)
        frame = Edit(
            client_msg_id=encoder.client_msg_id,
            message_id=found.message_id,
            content=submitted.content,
            attachments=submitted.attachments,
            **turn,
        )
        await _finish(self._inner.handle(connection, frame))

    async def _regenerate(
        self, connection: Connection, encoder: ChunkEncoder, regeneration: Regeneration, turn: dict[str, Any]
    ) -> None:
        self._take_read(connection.caller.subject)
        conversation_id, owner, found = turn["conversation_id"], connection.owner, None
        for name in filter(None, (regeneration.reply_id, regeneration.question.message_id)):
            found = found or await self._sessions.exchange(owner, conversation_id, name)
        if encoder.is_stopped:
            return
        if found is None:
            await self._send_with_images(connection, encoder, regeneration.question, turn)
            return
        encoder.client_msg_id = encoder.ref
        frame = Regenerate(client_msg_id=encoder.ref, message_id=found.reply_id, **turn)
        await _finish(self._inner.handle(connection, frame))

    async def _answer_calls(
        self, connection: Connection, encoder: ChunkEncoder, tool_answers: ToolAnswers, request: UIChatRequest
    ) -> None:
        """Answer the calls of the last reply. Raises NotFound if it is not known here."""
        if not tool_answers.answers:
            raise BadParams("ends with a reply, without an answer to any of its calls.", field="messages")
        connection.caller.grant.check(KeyScope.CHAT)
        self._take_read(connection.caller.subject)
        shown = await self._sessions.history(connection.owner, connection, request.id, limit=PAGE)
        chain = latest_replies(shown.page.messages)
        call_ids = [{call.call_id for call in message.calls or ()} for message in chain]
        submitted = {answer.call_id for answer in tool_answers.answers}
        place = next((n for n in range(len(chain) - 1, -1, -1) if call_ids[n] & submitted), None)
        if place is None:
            raise NotFound(
                "The calls that are answered are not those of the chat's last reply; load the chat again."
            )
        encoder.continue_from(tool_answers.message_id, reply := chain[place])
        if encoder.is_stopped:  # before its turn was known
            last = Cancel(turn_id=chain[-1].turn_id, conversation_id=request.id)
            await _finish(self._inner.handle(connection, last))
            return
        keeps_calls = request.on_disconnect == "continue"
        self._sessions.keep_calls(connection.owner, request.id, reply.turn_id, kept=keeps_calls)
        following_replies = tuple(chain[place + 1 :])
        answers = [] if following_replies else _new_answers(tool_answers, reply)
        if KeyScope.READ not in connection.caller.grant.scopes:
            following_replies = ()
        for answer in answers:  # a change of one call must not end the message while others are answered
            encoder.answered(answer.call_id, is_allowed=_is_allowed(answer))
        for answer in answers:
            await self._answer(connection, encoder, answer, request.id)
        connection.push(
            CallsAnswered(ref=encoder.ref, has_new_answers=bool(answers), following_replies=following_replies)
        )

    async def _answer(
        self, connection: Connection, encoder: ChunkEncoder, answer: ToolResult | ToolDecision, chat_id: str
    ) -> None:
        if not encoder.is_stopped:
            named = msgspec.structs.replace(answer, ref=encoder.ref, conversation_id=chat_id)
            await _finish(self._inner.handle(connection, named))


def _new_answers(tool_answers: ToolAnswers, reply: ShownMessage) -> list[ToolResult | ToolDecision]:
    """Return the answers to open calls, since a client repeats its earlier answers each time."""
    open_calls = {call.call_id for call in reply.calls or () if not call.state.is_settled}
    return [answer for answer in tool_answers.answers if answer.call_id in open_calls]


def _is_allowed(answer: ToolResult | ToolDecision) -> bool:
    return isinstance(answer, ToolDecision) and answer.decision == "allow"


async def _finish(slow: PendingWork | None) -> None:
    if slow is not None:
        await slow
