"""What each client frame does: a thin translation to the sessions floor."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import assert_never

import msgspec

from connections import frames, params
from connections.connection import Connection
from connections.errors import BadFrame, BadParams
from connections.frames import Limits
from sessions.conversation import Send
from sessions.errors import Refused
from sessions.service import Sessions

Slow = Coroutine[None, None, None]


class ContentTooLong(Refused):
    """The message has more characters than the server takes."""

    code = "content_too_long"


class FrameHandler:
    """Answers the frames of connections that said hello."""

    def __init__(self, sessions: Sessions, limits: Limits) -> None:
        self._sessions = sessions
        self._limits = limits

    def handle(self, connection: Connection, frame: frames.Request) -> Slow | None:
        """Decides at once; gives back what waits for the store. Raises BadFrame, BadParams, Refused."""
        match frame:
            case frames.Send():
                return self._send(connection, frame)
            case frames.Cancel():
                return self._cancel(connection, frame)
            case frames.History():
                return self._history(connection, frame)
            case frames.Conversations():
                return self._conversations(connection, frame)
            case frames.Delete():
                return self._sessions.delete(
                    connection.owner, frame.conversation_id, ref=frame.ref, subscriber=connection
                )
            case frames.Ping():
                connection.push(frames.Pong(ref=frame.ref, t=frame.t))
                return None
            case frames.Hello():
                raise BadFrame("type: hello was said already.")
            case _:
                assert_never(frame)

    def _send(self, connection: Connection, frame: frames.Send) -> Slow:
        params.served(frame)
        if len(frame.content) > self._limits.max_content_chars:
            raise ContentTooLong(
                f"content: {len(frame.content)} characters are more than {self._limits.max_content_chars}."
            )
        send = Send(
            client_msg_id=frame.client_msg_id,
            conversation_id=frame.conversation_id,
            content=frame.content,
            parent_id=frame.parent_id,
            on_busy="interrupt" if frame.on_busy == "interrupt" else "reject",
            ref=frame.ref or frame.client_msg_id,
        )
        generation = params.generation(frame.params, max_new_tokens=self._limits.max_new_tokens)
        return _refusal(self._sessions.send(connection.owner, connection, send, generation))

    def _cancel(self, connection: Connection, frame: frames.Cancel) -> Slow | None:
        rollback = frame.mode == "rollback"
        conversation_id = frame.conversation_id or (None if frame.turn_id else frames.DEFAULT_CONVERSATION)
        met = self._sessions.cancel(
            connection.owner,
            conversation_id=conversation_id,
            turn_id=frame.turn_id,
            seen_off=frame.seen_off,
            rollback=rollback,
        )
        connection.push(frames.Cancelled(ref=frame.ref, turn_id=met.turn_id, already=met.already))
        if rollback and met.already and frame.turn_id is not None:
            place = frame.conversation_id or frames.DEFAULT_CONVERSATION
            return self._sessions.take_back(connection.owner, place, frame.turn_id)
        return None

    async def _history(self, connection: Connection, frame: frames.History) -> None:
        if frame.leaf is not None:
            raise BadParams("leaf: is not served by this version of the server.")
        page = await self._sessions.history(
            connection.owner, connection, frame.conversation_id, limit=frame.limit, before=frame.before
        )
        messages = [
            frames.Message(siblings=siblings, **msgspec.structs.asdict(message))
            for message, siblings in zip(page.messages, page.siblings, strict=True)
        ]
        connection.push(
            frames.HistoryPage(
                ref=frame.ref,
                conversation_id=frame.conversation_id,
                epoch=page.epoch,
                seq=page.seq,
                messages=messages,
                has_more=page.has_more,
            )
        )
        if page.wait is not None:
            connection.publish(page.wait)

    async def _conversations(self, connection: Connection, frame: frames.Conversations) -> None:
        page = await self._sessions.conversations(connection.owner, limit=frame.limit, before=frame.before)
        connection.push(
            frames.ConversationsPage(ref=frame.ref, conversations=page.conversations, has_more=page.has_more)
        )


async def _refusal(taking: asyncio.Task[Refused | None]) -> None:
    """Waits for a message to be taken in, which goes on where this wait ends. Raises the refusal."""
    if (refused := await asyncio.shield(taking)) is not None:
        raise refused
