"""Converts a run to AG-UI's events. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from connections.api.agui import schema
from connections.api.agui.schema import RunEvent, RunInput
from connections.api.agui.stored_threads import interrupt_id
from connections.api.errors import Problem, problem_of
from connections.api.replies import ReplySource, finish_reason, problem_at_end
from connections.api.stored_replies import ServerToolCall
from engine.messages import ToolCall
from sessions.errors import Refused
from sessions.events import Reason
from sessions.running.ephemeral import Piece, ReasoningPiece, TextPiece

_encode = msgspec.json.Encoder().encode
_APPROVAL_SCHEMA = msgspec.Raw(
    b'{"type":"object","properties":{"approved":{"type":"boolean"},"editedArgs":{"type":"object",'
    b'"description":"Full replacement of the arguments."}},"required":["approved"]}'
)


class AguiEncoder:
    """Converts one run. Each stretch of text or reasoning is a message, and each result of a server tool.

    `calls`: those that the run before asked about, with their outcomes.
    """

    def __init__(self, turn_id: str, request: RunInput, calls: Sequence[ServerToolCall] = ()) -> None:
        self._name = turn_id.removeprefix("turn_")
        self._thread_id = request.thread_id
        self._run_id = request.run_id
        self._is_legacy = request.protocol_version is None
        self._messages = 0
        self._open_kind: type[TextPiece | ReasoningPiece] | None = None
        self._parent_id = self._id("msg")
        self._calls: list[str] = []
        self._answered_calls = calls
        self._interrupts: list[schema.Interrupt] = []

    def open(self) -> bytes:
        """Return the run's start, and the outcomes of the calls that it answered."""
        started = schema.RunStarted(
            thread_id=self._thread_id, run_id=self._run_id, protocol_version=schema.VERSION
        )
        return _encoded(started, *map(self._result, self._answered_calls))

    def begin(self, reply: ReplySource[object]) -> bytes:  # noqa: ARG002 - the run has begun
        """Return nothing."""
        return b""

    def piece(self, piece: Piece | ServerToolCall) -> bytes:
        """Return what a piece adds to the open message, or a message of its own."""
        match piece:
            case TextPiece(text):
                return _encoded(*self._text_events(text)) if text else b""
            case ReasoningPiece(text):
                return _encoded(*self._reasoning_events(text))
            case ToolCall():
                self._calls.append(piece.call_id)
                return _encoded(*self._call_events(piece))
            case ServerToolCall():
                return _encoded(*self._server_call(piece))

    def end(self, reply: ReplySource[object]) -> bytes:
        """Return the end of the run with its usage, or its failure."""
        done = reply.ended
        usage = _usage(reply)
        if (problem := problem_at_end(done)) is not None:
            return _encoded(*self._close(), error_of(problem, usage))
        finished = schema.RunFinished(
            thread_id=self._thread_id,
            run_id=self._run_id,
            outcome=self._outcome(done.reason),
            usage=usage,
            metadata=schema.Ended(finish_reason(done)),
        )
        return _encoded(*self._close(), finished)

    def _outcome(self, reason: Reason) -> schema.Success | schema.Interrupted | schema.Cancelled | None:
        """Return the outcome. A reply that was cut off is not a success: nobody may take it for whole."""
        if reason not in (Reason.STOP, Reason.TOOLS):
            return None if self._is_legacy else schema.Cancelled()
        if self._interrupts:
            return schema.Interrupted(interrupts=tuple(self._interrupts))
        return schema.Success(pending_tool_call_ids=() if self._is_legacy else tuple(self._calls))

    def fail(self, refused: Refused) -> bytes:
        """Return a failure outside the reply."""
        return _encoded(*self._close(), error_of(problem_of(refused)))

    def ping(self) -> bytes:
        """Return a comment, which is not an event."""
        return b":\n\n"

    def _text_events(self, text: str) -> Iterator[RunEvent]:
        if self._open_kind is not TextPiece:
            yield from self._close()
            self._parent_id = self._next_id("msg")
            self._open_kind = TextPiece
            yield schema.TextStart(message_id=self._parent_id, role="assistant")
        yield schema.TextContent(message_id=self._parent_id, delta=text)

    def _reasoning_events(self, text: str) -> Iterator[RunEvent]:
        if self._open_kind is not ReasoningPiece:
            yield from self._close()
            name = self._next_id("rsn")
            self._open_kind = ReasoningPiece
            yield schema.ReasoningStart(message_id=name)
            yield schema.ReasoningMessageStart(message_id=name, role="reasoning")
        yield schema.ReasoningContent(message_id=self._id("rsn"), delta=text)

    def _call_events(self, call: ToolCall) -> Iterator[RunEvent]:
        yield from self._close()
        yield schema.CallStart(
            tool_call_id=call.call_id, tool_call_name=call.name, parent_message_id=self._parent_id
        )
        yield schema.CallArgs(tool_call_id=call.call_id, delta=call.arguments)
        yield schema.CallEnd(tool_call_id=call.call_id)

    def _server_call(self, call: ServerToolCall) -> Iterator[RunEvent]:
        """Yield the events of a server tool's call: it begins, and may wait for an approval; or it has ended."""
        if call.state.is_settled:
            yield self._result(call)
            return
        yield from self._call_events(ToolCall(call.call_id, call.name, call.args))
        if call.waits:
            self._interrupts.append(_interrupt(call))

    def _result(self, call: ServerToolCall) -> RunEvent:
        message_id = f"tool_{self._name}_{call.call_id}"
        return schema.CallResult(
            message_id=message_id, tool_call_id=call.call_id, content=call.output, role="tool"
        )

    def _close(self) -> Iterator[RunEvent]:
        """End the open message."""
        if self._open_kind is TextPiece:
            yield schema.TextEnd(message_id=self._parent_id)
        elif self._open_kind is ReasoningPiece:
            name = self._id("rsn")
            yield schema.ReasoningMessageEnd(message_id=name)
            yield schema.ReasoningEnd(message_id=name)
        self._open_kind = None

    def _next_id(self, kind: str) -> str:
        """Return the id of another message."""
        self._messages += 1
        return self._id(kind)

    def _id(self, kind: str) -> str:
        return f"{kind}_{self._name}_{self._messages}"


def error_of(problem: Problem, usage: tuple[schema.RunUsage, ...] = ()) -> schema.RunError:
    """Return a problem as an event."""
    return schema.RunError(message=str(problem), code=problem.error_code, usage=usage)


def _interrupt(call: ServerToolCall) -> schema.Interrupt:
    at = call.expires_at
    return schema.Interrupt(
        id=interrupt_id(call),
        reason="tool_call",
        message=f"May {call.name} run?",
        tool_call_id=call.call_id,
        response_schema=_APPROVAL_SCHEMA,
        expires_at=None if at is None else datetime.fromtimestamp(at / 1000, UTC).isoformat(),
    )


def _usage(reply: ReplySource[object]) -> tuple[schema.RunUsage, ...]:
    """Return the usage; nothing if no prompt was read."""
    counted = reply.ended.usage
    if not counted.prompt_tokens:
        return ()
    usage = schema.RunUsage(
        model=reply.model,
        input_tokens=counted.prompt_tokens,
        output_tokens=counted.generated_tokens,
        total_tokens=counted.prompt_tokens + counted.generated_tokens,
        reasoning_tokens=counted.reasoning_tokens,
        cached_input_tokens=counted.cached_tokens,
    )
    return (usage,)


def _encoded(*events: RunEvent) -> bytes:
    return b"".join(b"data: %b\n\n" % _encode(event) for event in events)
