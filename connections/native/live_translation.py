"""Handles the frames of live translations: a source that begins, and more of it."""

from __future__ import annotations

from connections.connection import Connection, PendingWork, raise_if_refused
from connections.protocol import frames
from connections.protocol.base import INTERPRET
from connections.protocol.errors import BadParams
from engine.messages import Params
from sessions.records import SourceState
from sessions.service import Sessions
from sessions.turn.interfaces import Growth
from sessions.turn.message_request import Append, GenerationConfig, MessageRequest


class LiveTranslationHandler:
    """Answers the frames of a live translation."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def handle(self, connection: Connection, frame: frames.Growing) -> PendingWork:
        """Decide at once; return the work that waits for the store. Raises Refused."""
        if INTERPRET not in connection.features:
            raise BadParams("requires the feature `interpret` in `hello`.", field="type")
        if isinstance(frame, frames.Source):
            return self._grow(connection, frame)
        return self._start(connection, frame)

    def _start(self, connection: Connection, frame: frames.InterpretStart) -> PendingWork:
        send = MessageRequest(
            client_msg_id=frame.client_msg_id,
            conversation_id=frame.conversation_id,
            content="",
            place=Append(frame.parent_id),
            on_busy=frame.on_busy,
            seen_off=frame.seen_off,
            seen_turn_id=frame.seen_turn_id,
            on_disconnect=frame.on_disconnect,
            grace_s=frame.grace_s,
            ref=frame.ref or frame.client_msg_id,
            group=connection.caller.group,
            client_id=connection.client.client_id,
            source=SourceState(frame.source, frame.target, frame.publish_policy, frame.wait_words),
        )
        only = tuple(sorted(connection.caller.grant.models))
        generation = GenerationConfig(Params(do_sample=False), model=frame.model, only=only)
        return raise_if_refused(self._sessions.turns.send(connection.owner, connection, send, generation))

    async def _grow(self, connection: Connection, frame: frames.Source) -> None:
        growth = Growth(off=frame.off, text=frame.text, final=frame.final, turn_id=frame.turn_id)
        grown = await self._sessions.grow(connection.owner, frame.conversation_id, growth)
        connection.push(
            frames.SourceAck(
                ref=frame.ref,
                conversation_id=frame.conversation_id,
                turn_id=grown.turn_id,
                chars=grown.chars,
                final=grown.final,
                already=grown.already,
            )
        )
