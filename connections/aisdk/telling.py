"""Converts the events of a conversation to the chunks of one message for a front end. Pure.

A message is one turn, or several steps if it calls tools. It ends with the last turn, or when all open calls
wait for the client, which then makes another request.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import assert_never

import msgspec

from connections.aisdk.calls import Call
from connections.aisdk.chunks import (
    Abort,
    Chunk,
    Facts,
    Failed,
    Finish,
    FinishReason,
    FinishStep,
    MessageMetadata,
    Metadata,
    Start,
    StartStep,
)
from connections.aisdk.parts import Parts
from connections.wire.frames import Error, Frame, ServerFrame
from sessions.conversation.paging import RUNNING, HistoryPage, ShownMessage
from sessions.events import (
    Accepted,
    Deleted,
    Delta,
    Done,
    Gap,
    Reason,
    Reasoning,
    ToolCall,
    ToolState,
)

_LOST = "The server lost a part of this reply; load the chat again."
_DELETED = "The chat was deleted."
_REASONS: dict[Reason, FinishReason] = {
    Reason.STOP: "stop",
    Reason.LENGTH: "length",
    Reason.TIMEOUT: "other",
    Reason.FILTERED: "content-filter",
    Reason.TOOLS: "tool-calls",
}


class End(Enum):
    """Why a stream ends without a regular end."""

    TOLD = auto()
    NOTHING = auto()
    """There was no message to send."""
    WAITS = auto()
    """Its calls wait for its client."""


class Settled(ServerFrame, frozen=True, kw_only=True, tag="ai-sdk.settled"):
    """All answers of a client to calls were taken; never sent as it is.

    `is_news`: one of them was new; `later`: the replies that already followed the calls.
    """

    is_news: bool
    later: tuple[ShownMessage, ...] = ()


class Telling:
    """One request's message.

    `sent_as`: the `client_msg_id` of the turn that it began; `turn_id`: the current turn. `end`: how it ended;
    `is_stopped`: its client wants no reply any more.
    """

    def __init__(self, *, ref: str) -> None:
        self.ref = ref
        self.sent_as: str | None = None
        self.turn_id: str | None = None
        self.end: End | None = None
        self.is_stopped = False
        self._message_id: str | None = None
        self._begun = False
        self._is_repeated = False
        self._ended = False
        self._parts = Parts()
        self._calls: dict[str, Call] = {}

    @property
    def is_over(self) -> bool:
        """Whether nothing more is sent."""
        return self.end is not None

    @property
    def is_told_of(self) -> bool:
        """Whether anything was sent to its client."""
        return self._begun or self.is_over

    def tell(self, frame: Frame) -> list[Chunk]:  # noqa: PLR0911 - one for each kind
        """Return the chunks of a frame."""
        if self.is_over:
            return []
        match frame:
            case Accepted():
                return self._accepted(frame) if self._is_ours(frame) else []
            case HistoryPage():
                return self._resumed(frame) if frame.ref == self.ref else []
            case Settled():
                return self._settled(frame) if frame.ref == self.ref else []
            case Error():
                return self.fail(frame.message) if frame.ref == self.ref else []
            case Gap():
                return self.fail(_LOST)
            case Deleted():
                return self.fail(_DELETED)
            case Delta() | Reasoning() | ToolCall() | ToolState() | Done():
                return self._of_turn(frame)
            case _:
                return []

    def more(self, frame: Frame) -> bytes | None:
        """Return the encoded chunk of a frame that only extends the open part; None: use `tell`."""
        if not isinstance(frame, Delta | Reasoning) or frame.turn_id != self.turn_id or self.is_over:
            return None
        return self._parts.more("text" if isinstance(frame, Delta) else "reasoning", frame.text, frame.off)

    def fail(self, why: str) -> list[Chunk]:
        """End a message without a regular end."""
        if self.is_over:
            return []
        self.end = End.TOLD
        return [*self._parts.close(), Failed(error_text=why)]

    def answered(self, call_id: str, *, is_allowed: bool) -> None:
        """Note that its client answered a call: it allowed it, or else settled it. The change may be told later."""
        if (call := self._calls.get(call_id)) is not None:
            told = {"is_allowed": True} if is_allowed else {"is_answered": True}
            self._calls[call_id] = msgspec.structs.replace(call, **told)

    def go_on(self, message_id: str, reply: ShownMessage) -> None:
        """Continue a message that the client has, from its last reply, whose calls it answers."""
        self._message_id = message_id
        self._take(reply)
        self._ended = True

    def _is_ours(self, accepted: Accepted) -> bool:
        if accepted.follows is not None:
            return accepted.follows == self.turn_id
        return self.turn_id is None and accepted.client_msg_id == self.sent_as

    def _accepted(self, accepted: Accepted) -> list[Chunk]:
        self.turn_id = accepted.turn_id
        self._is_repeated = accepted.duplicate
        self._ended = False
        self._calls.clear()
        self._parts.begin_turn()
        return [*self._start(accepted.turn_id), StartStep()]

    def _start(self, turn_id: str) -> list[Chunk]:
        if self._begun:
            return []
        self._begun = True
        self._message_id = self._message_id or turn_id
        return [Start(message_id=self._message_id)]

    def _of_turn(self, event: Delta | Reasoning | ToolCall | ToolState | Done) -> list[Chunk]:
        if event.turn_id != self.turn_id:
            return []
        match event:
            case Delta():
                return self._parts.add("text", event.text, event.off)
            case Reasoning():
                return self._parts.add("reasoning", event.text, event.off)
            case ToolCall():
                self._calls[event.call_id] = call = Call.of(event)
                return [*self._parts.close(), *call.begun()]
            case ToolState():
                return self._moved(event)
            case Done():
                return self._done(event)
            case _:
                assert_never(event)

    def _moved(self, moved: ToolState) -> list[Chunk]:
        if (call := self._calls.get(moved.call_id)) is None:
            return []
        self._calls[moved.call_id] = call = call.after(moved)
        outcome = call.outcome()
        start = self._start(self.turn_id or "") if outcome else []
        return [*start, *outcome, *self._pause()]

    def _done(self, done: Done) -> list[Chunk]:
        told: list[Chunk] = [*self._parts.close(), FinishStep()]
        self._ended = True
        facts = Metadata(_facts(done))
        match done.reason:
            case Reason.TOOLS if not (self._is_repeated and not done.open):
                return [*told, MessageMetadata(message_metadata=facts), *self._pause()]
            case Reason.CANCELLED:
                self.end = End.TOLD
                cause = "stopped" if done.cancel is None else str(done.cancel.cause)
                return [*told, MessageMetadata(message_metadata=facts), Abort(reason=cause)]
            case Reason.ERROR | Reason.INTERRUPTED:
                why = "The reply was interrupted." if done.error is None else done.error.message
                return [*told, MessageMetadata(message_metadata=facts), *self.fail(why)]
            case _:
                self.end = End.TOLD
                return [*told, Finish(finish_reason=_REASONS[done.reason], message_metadata=facts)]

    def _pause(self) -> list[Chunk]:
        """End the stream if its message waits for its client."""
        open_calls = [call for call in self._calls.values() if not call.state.is_settled]
        if not self._ended or not open_calls or not all(call.waits_for_client for call in open_calls):
            return []
        self.end = End.WAITS
        return [*self._start(self.turn_id or ""), Finish(finish_reason="tool-calls")]

    def _settled(self, settled: Settled) -> list[Chunk]:
        if settled.later:
            return self._gone_on(settled.later)
        if told := self._pause():
            return told
        is_open = any(not call.state.is_settled for call in self._calls.values())
        if settled.is_news or self._begun or is_open:
            return []
        self.end = End.TOLD
        return [*self._start(self.turn_id or ""), Finish(finish_reason="other")]

    def _gone_on(self, later: tuple[ShownMessage, ...]) -> list[Chunk]:
        """Return what a client gets that repeats its answers to calls."""
        told = [*self._start(self.turn_id or ""), *self._steps(later)]
        if not self.is_over and not is_running(later):
            self.end = End.TOLD
            told.append(Finish(finish_reason="other"))
        return told

    def _resumed(self, page: HistoryPage) -> list[Chunk]:
        """Return the message that is being written, from its start."""
        chain = chain_of(page.messages)
        if not is_running(chain):
            self.end = End.NOTHING
            return []
        return [*self._start(chain[0].turn_id), *self._steps(chain)]

    def _steps(self, replies: Sequence[ShownMessage]) -> list[Chunk]:
        told: list[Chunk] = []
        for reply in replies:
            self._take(reply)
            self._ended = reply.status != RUNNING
            told += [StartStep(), *self._parts.of(reply)]
            if self._ended:
                told += [*self._parts.close(), FinishStep()]
        return told + self._pause()

    def _take(self, message: ShownMessage) -> None:
        self.turn_id = message.turn_id
        self._calls = {call.call_id: Call.of(call) for call in message.calls or ()}
        self._parts.begin_turn()


def chain_of(messages: list[ShownMessage]) -> list[ShownMessage]:
    """Return the replies after the last user's message: one message of a front end."""
    start = next((n for n in range(len(messages), 0, -1) if messages[n - 1].role == "user"), 0)
    return messages[start:]


def is_running(chain: Sequence[ShownMessage]) -> bool:
    """Return whether a message continues without its client."""
    if not chain:
        return False
    open_calls = [call for call in map(Call.of, chain[-1].calls or ()) if not call.state.is_settled]
    return chain[-1].status == RUNNING or any(not call.waits_for_client for call in open_calls)


def _facts(done: Done) -> Facts:
    return Facts(
        turn_id=done.turn_id,
        reason=done.reason,
        chars=done.chars,
        text_sha256=done.text_sha256,
        prompt_tokens=done.usage.prompt_tokens,
        generated_tokens=done.usage.generated_tokens,
        model=done.model,
        cause=None if done.cancel is None else done.cancel.cause,
        steps_after=None if done.cancel is None else done.cancel.steps_after,
    )
