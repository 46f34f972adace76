"""Handles each client frame: a thin translation to the sessions layer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import assert_never

import msgspec

from connections.connection import Connection, PendingWork, raise_if_refused
from connections.protocol import audio, frames, params
from connections.protocol.base import DEFAULT_CONVERSATION, EVERYTHING, INTERPRET, REASONING, TOOLS, Limits
from connections.protocol.errors import BadFrame, BadParams
from connections.protocol.frames import scopes_of
from connections.voice import VoiceConnection, VoiceMessage
from engine.messages import Params
from sessions.commands.resumption import ReaderPosition
from sessions.errors import ContentTooLong, StoreDown
from sessions.records import SourceState
from sessions.service import Sessions
from sessions.turn.interfaces import Growth
from sessions.turn.message_request import (
    Append,
    Continue,
    Edit,
    GenerationConfig,
    MessageRequest,
    Placement,
    Regenerate,
)
from sessions.turn.turn import Cancel, Cancelled

SpeechMessage = audio.AudioFrame | audio.Sound | VoiceMessage
ClientMessage = frames.Request | SpeechMessage


class FrameHandler:
    """Answers the frames of connections that said hello."""

    def __init__(
        self,
        sessions: Sessions,
        limits: Limits,
        refresh: Callable[[frames.AuthRefresh], PendingWork] | None = None,
        spoken: VoiceConnection | None = None,
    ) -> None:
        """`refresh`: None if its clients can't renew tokens. `spoken`: None without speech recognition."""
        self._sessions = sessions
        self._limits = limits
        self._refresh = refresh
        self._spoken = spoken

    def handle(self, connection: Connection, frame: ClientMessage) -> PendingWork | None:  # noqa: C901, PLR0911, PLR0912 - one for each kind
        """Decide at once; return the work that waits for the store. Raises Refused."""
        if (grant := connection.caller.grant) is not EVERYTHING:
            for scope in scopes_of(frame):
                grant.check(scope)
        if isinstance(frame, SpeechMessage):
            return self._handle_speech(connection, frame)
        if isinstance(frame, frames.Growing) and INTERPRET not in connection.features:
            raise BadParams("requires the feature `interpret` in `hello`.", field="type")
        match frame:
            case frames.Send() | frames.Edit() | frames.Regenerate() | frames.Continue():
                return self._turn(connection, frame)
            case frames.InterpretStart():
                return self._interpret(connection, frame)
            case frames.Source():
                return self._grow(connection, frame)
            case frames.Cancel():
                return self._cancel(connection, frame)
            case frames.ToolResult() | frames.ToolDecision():
                return self._answer_call(connection, frame)
            case frames.Resume():
                return self._resume(connection, frame)
            case frames.History():
                return self._history(connection, frame)
            case frames.AuthRefresh():
                return self._renew(frame)
            case frames.Conversations():
                return self._conversations(connection, frame)
            case frames.Search():
                return self._search(connection, frame)
            case frames.Rename():
                return self._rename(connection, frame)
            case frames.Share() | frames.Unshare():
                return self._share(connection, frame)
            case frames.Delete():
                return self._sessions.delete(
                    connection.owner, frame.conversation_id, ref=frame.ref, subscriber=connection
                )
            case frames.Ack():
                self._sessions.ack(connection.owner, frame.conversation_id, frame.seq)
            case frames.Ping():
                connection.push(frames.Pong(ref=frame.ref, t=frame.t))
            case frames.Hello():
                raise BadFrame("`type` must not be hello again.")
            case _:
                assert_never(frame)
        return None

    def _renew(self, frame: frames.AuthRefresh) -> PendingWork:
        if self._refresh is None:
            raise BadFrame("`type` may not be auth.refresh here.")
        return self._refresh(frame)

    def _handle_speech(self, connection: Connection, frame: SpeechMessage) -> PendingWork | None:
        if isinstance(frame, VoiceMessage):
            is_wanted = not (frame.is_withdrawn or connection.closed)
            return self._turn(connection, frame.send, frame) if is_wanted else None
        if self._spoken is None:
            raise BadFrame("Audio frames are not accepted here.")
        return self._spoken.handle(frame)

    def _turn(
        self, connection: Connection, frame: frames.Turning, voice_message: VoiceMessage | None = None
    ) -> PendingWork:
        content = frame.content if isinstance(frame, frames.Send | frames.Edit) else ""
        if len(content) > self._limits.max_content_chars:
            raise ContentTooLong(
                f"`content` has {len(content)} characters; {self._limits.max_content_chars} are allowed."
            )
        send = msgspec.structs.replace(
            _message_request(connection, frame, _placement(frame), content),
            images=frame.attachments if isinstance(frame, frames.Send | frames.Edit) else (),
            shown=() if voice_message is None else voice_message.shown,
        )
        longest = self._sessions.choice.longest_window or params.MAX_INTEGER
        if frame.tools and TOOLS not in connection.features:
            raise BadParams("requires the feature `tools` in `hello`.", field="tools")
        generation = msgspec.structs.replace(
            params.generation(frame.params, max_new_tokens=longest),
            tools=params.offered_tools(frame, self._sessions.tools),
            tool_choice=frame.tool_choice,
            paces_thoughts=REASONING in connection.features,
            only=tuple(sorted(connection.caller.grant.models)),
        )
        player = None if voice_message is None else voice_message.player
        return raise_if_refused(
            self._sessions.turns.send(connection.owner, connection, send, generation, player=player)
        )

    def _interpret(self, connection: Connection, frame: frames.InterpretStart) -> PendingWork:
        source = SourceState(frame.source, frame.target, frame.publish_policy)
        send = msgspec.structs.replace(
            _message_request(connection, frame, Append(frame.parent_id), ""), source=source
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

    def _cancel(self, connection: Connection, frame: frames.Cancel) -> PendingWork | None:
        cancel = _cancel_of(frame)
        outcome = self._sessions.turns.cancel(connection.owner, cancel)
        if outcome is None:
            return self._cancel_elsewhere(connection, frame, cancel)
        if outcome.is_forwarded:
            return self._cancel_both(connection, frame, cancel, outcome)
        _push_cancelled(connection, frame, outcome)
        if outcome.is_part:
            return self._cancel_the_rest(connection, cancel)
        return self._roll_back(connection, frame, outcome)

    async def _cancel_both(
        self, connection: Connection, frame: frames.Cancel, cancel: Cancel, outcome: Cancelled
    ) -> None:
        """Answer once; the answer is an error if the other replica can't be asked."""

        def on_cancelled(_: Cancelled) -> None:
            _push_cancelled(connection, frame, outcome)

        await self._sessions.cancel_elsewhere(connection.owner, cancel, on_cancelled=on_cancelled)

    async def _cancel_the_rest(self, connection: Connection, cancel: Cancel) -> None:
        with suppress(StoreDown):  # it was answered, with the local outcome
            await self._sessions.cancel_elsewhere(connection.owner, cancel)

    async def _cancel_elsewhere(self, connection: Connection, frame: frames.Cancel, cancel: Cancel) -> None:
        on_cancelled = partial(_push_cancelled, connection, frame)
        outcome = await self._sessions.cancel_elsewhere(connection.owner, cancel, on_cancelled=on_cancelled)
        if (slow := self._roll_back(connection, frame, outcome)) is not None:
            await slow

    def _roll_back(
        self, connection: Connection, frame: frames.Cancel, outcome: Cancelled
    ) -> PendingWork | None:
        """Return the work that rolls back an exchange that had ended before its cancel."""
        if frame.mode == "rollback" and outcome.already and frame.turn_id is not None:
            return self._roll_back_anywhere(connection, frame.conversation_id, frame.turn_id)
        return None

    async def _roll_back_anywhere(
        self, connection: Connection, conversation_id: str | None, turn_id: str
    ) -> None:
        found = conversation_id or await self._sessions.conversation_of(
            connection.owner, turn_id, by=connection
        )
        conversation_id = found or DEFAULT_CONVERSATION
        await self._sessions.take_back(connection.owner, conversation_id, turn_id)

    async def _answer_call(self, connection: Connection, frame: frames.Answering) -> None:
        outcome = await self._sessions.answer_call(
            connection.owner, connection, frame.conversation_id, params.answer_of(frame)
        )
        connection.push(
            frames.ToolAck(
                ref=frame.ref,
                conversation_id=outcome.conversation_id,
                call_id=frame.call_id,
                state=outcome.state,
                already=outcome.already,
            )
        )

    def _resume(self, connection: Connection, frame: frames.Resume) -> PendingWork:
        position = ReaderPosition(frame.epoch, frame.after_seq)
        return self._sessions.resume(
            connection.owner, connection, frame.conversation_id, position, ref=frame.ref
        )

    async def _history(self, connection: Connection, frame: frames.History) -> None:
        shown = await self._sessions.history(
            connection.owner,
            connection,
            frame.conversation_id,
            limit=frame.limit,
            before=frame.before,
            leaf=frame.leaf,
            ref=frame.ref,
        )
        connection.publish(shown.page)
        if shown.wait is not None:
            connection.publish(shown.wait)

    async def _conversations(self, connection: Connection, frame: frames.Conversations) -> None:
        page = await self._sessions.conversations(connection.owner, limit=frame.limit, before=frame.before)
        connection.push(
            frames.ConversationsPage(ref=frame.ref, conversations=page.conversations, has_more=page.has_more)
        )

    async def _search(self, connection: Connection, frame: frames.Search) -> None:
        if not frame.query.strip():
            raise BadParams("is empty.", field="query")
        found = await self._sessions.search(
            connection.owner,
            frame.query,
            limit=frame.limit,
            before=frame.before,
            group=connection.caller.group,
        )
        connection.push(frames.Found(ref=frame.ref, hits=found.hits, next=found.next))

    async def _rename(self, connection: Connection, frame: frames.Rename) -> None:
        if not (title := " ".join(frame.title.split())):
            raise BadParams("is empty.", field="title")
        row = await self._sessions.rename(connection.owner, frame.conversation_id, title)
        connection.push(frames.ConversationsPage(ref=frame.ref, conversations=[row], has_more=False))

    async def _share(self, connection: Connection, frame: frames.Share | frames.Unshare) -> None:
        owner, conversation_id, share_id = connection.owner, frame.conversation_id, None
        if isinstance(frame, frames.Share):
            share_id = await self._sessions.share(owner, conversation_id)
        else:
            await self._sessions.take_back_share(owner, conversation_id)
        connection.push(frames.Shared(ref=frame.ref, conversation_id=conversation_id, share_id=share_id))


def _push_cancelled(connection: Connection, frame: frames.Cancel, outcome: Cancelled) -> None:
    connection.push(frames.Cancelled(ref=frame.ref, turn_id=outcome.turn_id, already=outcome.already))


def _cancel_of(frame: frames.Cancel) -> Cancel:
    names_turn = frame.turn_id is not None and frame.client_msg_id is None
    return Cancel(
        conversation_id=frame.conversation_id or (None if names_turn else DEFAULT_CONVERSATION),
        turn_id=frame.turn_id,
        client_msg_id=frame.client_msg_id,
        seen_off=frame.seen_off,
        rollback=frame.mode == "rollback",
    )


def _message_request(
    connection: Connection, frame: frames.Turning | frames.InterpretStart, place: Placement, content: str
) -> MessageRequest:
    return MessageRequest(
        client_msg_id=frame.client_msg_id,
        conversation_id=frame.conversation_id,
        content=content,
        place=place,
        on_busy=frame.on_busy,
        seen_off=frame.seen_off,
        seen_turn_id=frame.seen_turn_id,
        on_disconnect=frame.on_disconnect,
        grace_s=frame.grace_s,
        ref=frame.ref or frame.client_msg_id,
        group=connection.caller.group,
        client_id=connection.client.client_id,
    )


def _placement(frame: frames.Turning) -> Placement:
    match frame:
        case frames.Send():
            return Append(frame.parent_id)
        case frames.Edit():
            return Edit(frame.message_id)
        case frames.Regenerate():
            return Regenerate(frame.message_id)
        case frames.Continue():
            return Continue(frame.message_id)
