"""Converts the events of a conversation to the chunks of one message for a front end (UI message stream, version 1). Pure.

A message is one turn, or several steps if it calls tools. It ends with the last turn, or when all open calls wait for the
client, which then makes another request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Literal, assert_never

import msgspec

from connections.api.replies import approval_id, waits_for_client
from connections.protocol.base import ServerFrame
from connections.protocol.frames import Frame
from engine.vision.image import Image
from sessions.conversation.history_page import HistoryPage, ShownMessage
from sessions.events import (
    Accepted,
    CallState,
    Deleted,
    Delta,
    Done,
    Gap,
    Reason,
    Reasoning,
    ShownCall,
    ToolCall,
    ToolState,
)
from sessions.records import RUNNING

FinishReason = Literal["stop", "length", "content-filter", "tool-calls", "error", "other"]
encode = msgspec.json.Encoder().encode
_LOST = "Part of this reply was lost; reload the chat."
_DELETED = "The chat was deleted."
_REASONS: dict[Reason, FinishReason] = {
    Reason.STOP: "stop",
    Reason.LENGTH: "length",
    Reason.TIMEOUT: "other",
    Reason.FILTERED: "content-filter",
    Reason.TOOLS: "tool-calls",
}
Kind = Literal["text", "reasoning"]
_WORDS = {
    CallState.CANCELLED: "The call was cancelled.",
    CallState.EXPIRED: "The call was not answered in time.",
    CallState.LOST: "The call was started; its outcome is unknown.",
}


class Chunk(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", rename="camel", omit_defaults=True):
    """The root of all chunks."""


class Facts(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Facts of a turn's end besides its text. `chars`, `text_sha256`: of the stored text.

    `cause`, `steps_after`, of a stopped reply: who stopped it, and engine steps after that.
    """

    turn_id: str
    reason: str
    chars: int
    text_sha256: str
    prompt_tokens: int
    generated_tokens: int
    model: str | None = None
    cause: str | None = None
    steps_after: int | None = None


class Metadata(msgspec.Struct, frozen=True):
    """The server's part of a message's metadata."""

    midstream: Facts


class Start(Chunk, frozen=True, kw_only=True, tag="start"):
    """A message begins, or continues if it is known."""

    message_id: str


class StartStep(Chunk, frozen=True, kw_only=True, tag="start-step"):
    """A turn begins: a message has several if it calls tools."""


class FinishStep(Chunk, frozen=True, kw_only=True, tag="finish-step"):
    """A turn has ended."""


class PartChunk(Chunk, frozen=True, kw_only=True, tag=False):
    """A part begins (`text-start`, `reasoning-start`), grows by `delta` (`…-delta`), or has ended (`…-end`)."""

    type: str
    id: str
    delta: str = ""


class ToolInputAvailable(Chunk, frozen=True, kw_only=True, tag="tool-input-available"):
    """A tool is called. `provider_executed`: the server runs it."""

    tool_call_id: str
    tool_name: str
    input: msgspec.Raw
    provider_executed: bool = False


class ToolApprovalRequest(Chunk, frozen=True, kw_only=True, tag="tool-approval-request"):
    """A call waits for an approval."""

    approval_id: str
    tool_call_id: str


class ToolOutcome(Chunk, frozen=True, kw_only=True, tag=False):
    """A call has ended: `tool-output-available`, `tool-output-error`, or `tool-output-denied` (not allowed)."""

    type: str
    tool_call_id: str
    output: Any = msgspec.UNSET
    error_text: str | msgspec.UnsetType = msgspec.UNSET
    provider_executed: bool = False


class MessageMetadata(Chunk, frozen=True, kw_only=True, tag="message-metadata"):
    """The metadata of a message from now on."""

    message_metadata: Metadata


class Finish(Chunk, frozen=True, kw_only=True, tag="finish"):
    """The message is complete, or waits for its client."""

    finish_reason: FinishReason
    message_metadata: Metadata | None = None


class Abort(Chunk, frozen=True, kw_only=True, tag="abort"):
    """The message was stopped."""

    reason: str


class ErrorChunk(Chunk, frozen=True, kw_only=True, tag="error"):
    """The message has no regular end. The text is for people."""

    error_text: str


class StreamEnd(Enum):
    """Why a stream ends."""

    SENT = auto()
    NOTHING = auto()
    """No message was being written."""
    WAITING_FOR_CLIENT = auto()
    """Calls wait for the client."""


class CallsAnswered(ServerFrame, frozen=True, kw_only=True, tag="ai-sdk.settled"):
    """All of a client's answers to calls were taken; never sent as a frame.

    `has_new_answers`: some were new; `following_replies`: the replies that already followed the calls.
    """

    has_new_answers: bool
    following_replies: tuple[ShownMessage, ...] = ()


class ChunkEncoder:
    """Encodes one request's message.

    `client_msg_id`: of the turn that the request began; `turn_id`: of the current turn. `end`: how the stream ended.
    """

    def __init__(self) -> None:
        self.client_msg_id: str | None = None
        self.turn_id: str | None = None
        self.end: StreamEnd | None = None
        self._message_id: str | None = None
        self._started = False
        self._is_duplicate = False
        self._ended = False
        self._parts = Parts()
        self._calls: dict[str, ShownCall] = {}
        self._answered: set[str] = set()

    def encode(self, frame: Frame) -> list[Chunk]:  # noqa: PLR0911 - one for each kind
        """Return the chunks of a frame."""
        if self.end is not None:
            return []
        match frame:
            case Delta() | Reasoning() | ToolCall() | ToolState() | Done():
                return self._turn_event(frame)
            case Accepted():
                return self._accepted(frame) if self._is_ours(frame) else []
            case HistoryPage():
                return self._resumed(frame)
            case CallsAnswered():
                return self._calls_answered(frame)
            case Gap():
                return self.fail(_LOST)
            case Deleted():
                return self.fail(_DELETED)
            case _:
                return []

    def fail(self, why: str) -> list[Chunk]:
        """End the message with an error."""
        if self.end is not None:
            return []
        self.end = StreamEnd.SENT
        return [*self._parts.close(), ErrorChunk(error_text=why)]

    def answered(self, call_id: str) -> None:
        """Note that a call waits for its client no more. Its change may come later."""
        self._answered.add(call_id)

    def continue_from(self, message_id: str, reply: ShownMessage) -> None:
        """Continue the client's message after `reply`, whose calls it answers."""
        self._message_id = message_id
        self._load_reply(reply)
        self._ended = True

    def _is_ours(self, accepted: Accepted) -> bool:
        if accepted.follows is not None:
            return accepted.follows == self.turn_id
        return self.turn_id is None and accepted.client_msg_id == self.client_msg_id

    def _accepted(self, accepted: Accepted) -> list[Chunk]:
        self.turn_id = accepted.turn_id
        self._is_duplicate = accepted.duplicate
        self._ended = False
        self._calls.clear()
        self._parts.begin_turn()
        return [*self._start(accepted.turn_id), StartStep()]

    def _start(self, turn_id: str) -> list[Chunk]:
        if self._started:
            return []
        self._started = True
        self._message_id = self._message_id or turn_id
        return [Start(message_id=self._message_id)]

    def _turn_event(self, event: Delta | Reasoning | ToolCall | ToolState | Done) -> list[Chunk]:
        if event.turn_id != self.turn_id:
            return []
        match event:
            case Delta():
                return self._parts.add("text", event.text, event.off)
            case Reasoning():
                return self._parts.add("reasoning", event.text, event.off)
            case ToolCall():
                self._calls[event.call_id] = call = _waiting(event)
                return [*self._parts.close(), *_begun(call)]
            case ToolState():
                return self._call_changed(event)
            case Done():
                return self._done(event)
            case _:
                assert_never(event)

    def _call_changed(self, change: ToolState) -> list[Chunk]:
        if (call := self._calls.get(change.call_id)) is None:
            return []
        call = msgspec.structs.replace(call, state=change.state, content=change.content, error=change.error)
        self._calls[change.call_id] = call
        outcomes = _outcomes(call)
        start = self._start(self.turn_id or "") if outcomes else []
        return [*start, *outcomes, *self._pause()]

    def _done(self, done: Done) -> list[Chunk]:
        result: list[Chunk] = [*self._parts.close(), FinishStep()]
        self._ended = True
        facts = Metadata(_facts(done))
        match done.reason:
            case Reason.TOOLS if not (self._is_duplicate and not done.open):
                return [*result, MessageMetadata(message_metadata=facts), *self._pause()]
            case Reason.CANCELLED:
                self.end = StreamEnd.SENT
                cause = "stopped" if done.cancel is None else str(done.cancel.cause)
                return [*result, MessageMetadata(message_metadata=facts), Abort(reason=cause)]
            case Reason.ERROR | Reason.INTERRUPTED:
                why = "The reply was interrupted." if done.error is None else done.error.message
                return [*result, MessageMetadata(message_metadata=facts), *self.fail(why)]
            case _:
                self.end = StreamEnd.SENT
                return [*result, Finish(finish_reason=_REASONS[done.reason], message_metadata=facts)]

    def _pause(self) -> list[Chunk]:
        """End the stream if its message waits for its client."""
        open_calls = [call for call in self._calls.values() if not call.state.is_settled]
        waits = [waits_for_client(call) and call.call_id not in self._answered for call in open_calls]
        if not self._ended or not open_calls or not all(waits):
            return []
        self.end = StreamEnd.WAITING_FOR_CLIENT
        return [*self._start(self.turn_id or ""), Finish(finish_reason="tool-calls")]

    def _calls_answered(self, answered_calls: CallsAnswered) -> list[Chunk]:
        if replies := answered_calls.following_replies:  # the client repeated its answers
            result = [*self._start(self.turn_id or ""), *self._steps(replies)]
            if self.end is None and not is_running(replies):
                self.end = StreamEnd.SENT
                result.append(Finish(finish_reason="other"))
            return result
        if result := self._pause():
            return result
        is_open = any(not call.state.is_settled for call in self._calls.values())
        if answered_calls.has_new_answers or self._started or is_open:
            return []
        self.end = StreamEnd.SENT
        return [*self._start(self.turn_id or ""), Finish(finish_reason="other")]

    def _resumed(self, page: HistoryPage) -> list[Chunk]:
        """Return the message that is being written, from its start."""
        chain = latest_replies(page.messages)
        if not is_running(chain):
            self.end = StreamEnd.NOTHING
            return []
        return [*self._start(chain[0].turn_id), *self._steps(chain)]

    def _steps(self, replies: Sequence[ShownMessage]) -> list[Chunk]:
        result: list[Chunk] = []
        for reply in replies:
            self._load_reply(reply)
            self._ended = reply.status != RUNNING
            result += [StartStep(), *self._parts.of(reply)]
            if self._ended:
                result += [*self._parts.close(), FinishStep()]
        return result + self._pause()

    def _load_reply(self, message: ShownMessage) -> None:
        self.turn_id = message.turn_id
        self._calls = {call.call_id: call for call in message.calls or ()}
        self._parts.begin_turn()


def latest_replies(messages: list[ShownMessage]) -> list[ShownMessage]:
    """Return the replies after the last user's message: one message of a front end."""
    start = next((n for n in range(len(messages), 0, -1) if messages[n - 1].role == "user"), 0)
    return messages[start:]


def is_running(chain: Sequence[ShownMessage]) -> bool:
    """Return whether a message continues without its client."""
    if not chain:
        return False
    open_calls = [call for call in chain[-1].calls or () if not call.state.is_settled]
    return chain[-1].status == RUNNING or not all(map(waits_for_client, open_calls))


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


class Parts:
    """The parts of one message."""

    def __init__(self) -> None:
        self._open: tuple[Kind, str] | None = None
        self._begun = 0
        self._chars: dict[Kind, int] = {"text": 0, "reasoning": 0}  # sent by the running turn

    def begin_turn(self) -> None:
        """Begin the next turn's text."""
        self._chars = {"text": 0, "reasoning": 0}

    def add(self, kind: Kind, text: str, off: int) -> list[Chunk]:
        """Return the new part of a piece, which may overlap what was sent."""
        new = text[max(self._chars[kind] - off, 0) :]
        if not new:
            return []
        self._chars[kind] = off + len(text)
        result: list[Chunk] = []
        if self._open is None or self._open[0] != kind:
            result += self.close()
            self._begun += 1
            self._open = (kind, f"{kind}-{self._begun}")
            result.append(PartChunk(type=f"{kind}-start", id=self._open[1]))
        return [*result, PartChunk(type=f"{kind}-delta", id=self._open[1], delta=new)]

    def close(self) -> list[Chunk]:
        """End the open part, if there is one."""
        if self._open is None:
            return []
        kind, number = self._open
        self._open = None
        return [PartChunk(type=f"{kind}-end", id=number)]

    def of(self, message: ShownMessage) -> list[Chunk]:
        """Return a stored reply's chunks: reasoning, then text, with each call in place."""
        result: list[Chunk] = []
        for piece in _pieces(message):
            if isinstance(piece, ShownCall):
                result += [*self.close(), *_begun(piece), *_outcomes(piece)]
            else:
                result += self.add(*piece)
        return result


def _pieces(message: ShownMessage) -> Iterator[tuple[Kind, str, int] | ShownCall]:
    """Yield a stored reply's reasoning, then its text with each call in place; texts with their offsets."""
    yield "reasoning", message.reasoning or "", 0
    at = 0
    for call in message.calls or ():
        yield "text", message.content[at : call.off], at
        at = max(at, call.off)
        yield call
    yield "text", message.content[at:], at


def ui_messages(
    messages: list[ShownMessage], images: Mapping[str, Image] | None = None
) -> list[dict[str, Any]]:
    """Return a history for a front end. Replies after calls are steps of one message. `images`: by their ids."""
    result: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "user":
            shown = () if message.attachments is msgspec.UNSET else message.attachments
            known = [images[one.id] for one in shown if images and one.id in images]
            parts: list[dict[str, Any]] = [
                {"type": "file", "mediaType": image.media_type, "url": image.url} for image in known
            ]
            if message.content or not parts:
                parts.append({"type": "text", "text": message.content})
            result.append({"id": message.message_id, "role": "user", "parts": parts})
            continue
        if not result or result[-1]["role"] == "user":
            result.append({"id": message.turn_id, "role": "assistant", "parts": []})
        result[-1]["parts"] += [{"type": "step-start"}, *_ui_parts(message)]
    return result


def _ui_parts(message: ShownMessage) -> Iterator[dict[str, Any]]:
    for piece in _pieces(message):
        if isinstance(piece, ShownCall):
            yield _call_part(piece)
        elif piece[1]:
            yield {"type": piece[0], "text": piece[1], "state": "done"}


def _call_part(call: ShownCall) -> dict[str, Any]:
    part: dict[str, Any] = {
        "type": f"tool-{call.name}",
        "toolCallId": call.call_id,
        "state": "input-available",
        "input": msgspec.Raw(call.args.encode()),
    }
    if call.where == "server":
        part["providerExecuted"] = True
    if _waits_for_approval(call):
        return part | {"state": "approval-requested", "approval": {"id": approval_id(call)}}
    for outcome in _outcomes(call):
        part |= msgspec.to_builtins(outcome) | {"type": part["type"]}
        part["state"] = outcome.type.removeprefix("tool-")
        if call.state is CallState.DENIED:
            part["approval"] = {"id": approval_id(call), "approved": False}
    return part


def _waiting(call: ToolCall) -> ShownCall:
    return ShownCall(
        call_id=call.call_id,
        index=call.index,
        name=call.name,
        args=call.args,
        args_sha256=call.args_sha256,
        where=call.where,
        needs=call.needs,
        off=call.off,
        state=CallState.WAITING,
    )


def _waits_for_approval(call: ShownCall) -> bool:
    return call.needs == "approval" and call.state is CallState.WAITING


def _begun(call: ShownCall) -> list[Chunk]:
    """Return the chunks that begin a call."""
    available = ToolInputAvailable(
        tool_call_id=call.call_id,
        tool_name=call.name,
        input=msgspec.Raw(call.args.encode()),
        provider_executed=call.where == "server",
    )
    if not _waits_for_approval(call):
        return [available]
    return [available, ToolApprovalRequest(approval_id=approval_id(call), tool_call_id=call.call_id)]


def _outcomes(call: ShownCall) -> list[ToolOutcome]:
    """Return the chunk of a call's outcome; none while it continues."""
    fields: dict[str, Any]
    match call.state:
        case CallState.WAITING | CallState.RUNNING:
            return []
        case CallState.DENIED:
            return [ToolOutcome(type="tool-output-denied", tool_call_id=call.call_id)]
        case CallState.DONE if call.error is None:
            kind, fields = "tool-output-available", {"output": output_of(call.content or "")}
        case _:
            kind, fields = "tool-output-error", {"error_text": call.error or _WORDS.get(call.state, "")}
    by_server = call.where == "server"
    return [ToolOutcome(type=kind, tool_call_id=call.call_id, provider_executed=by_server, **fields)]


def output_of(content: str) -> Any:
    """Return a result for a client: a JSON object or list as such, anything else as text."""
    if content[:1] in ("{", "["):
        try:
            return msgspec.json.decode(content)
        except (msgspec.DecodeError, RecursionError):
            return content
    return content
