"""Converts a run to AG-UI's events. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from connections.agui import wire
from connections.agui.fields import RunInput
from connections.agui.threads import interrupt_id
from connections.agui.wire import RunEvent
from connections.openai.problems import Problem, problem_of
from connections.openai.telling import finish_reason, problem_at
from connections.replies.server_calls import ServerCall
from connections.replies.streaming import Reply
from engine.messages import ToolCall
from sessions.errors import Refused
from sessions.events import Reason
from sessions.running.waiting_pieces import Piece, Text, Thought

_encode = msgspec.json.Encoder().encode
_ANSWER = msgspec.Raw(
    b'{"type":"object","properties":{"approved":{"type":"boolean"},"editedArgs":{"type":"object",'
    b'"description":"Full replacement of the arguments."}},"required":["approved"]}'
)


class Telling:
    """Converts one run. Each stretch of text or reasoning is a message, and each result of a server tool.

    `calls`: those that the run before asked about, with their outcomes.
    """

    def __init__(self, turn_id: str, request: RunInput, calls: Sequence[ServerCall] = ()) -> None:
        self._name = turn_id.removeprefix("turn_")
        self._thread_id = request.thread_id
        self._run_id = request.run_id
        self._is_old = request.protocol_version is None
        self._messages = 0
        self._open: type[Text | Thought] | None = None
        self._parent = self._named("msg")
        self._calls: list[str] = []
        self._before = calls
        self._interrupts: list[wire.Interrupt] = []

    def open(self) -> bytes:
        """Return the run's start, and the outcomes of the calls that it answered."""
        started = wire.RunStarted(
            thread_id=self._thread_id, run_id=self._run_id, protocol_version=wire.VERSION
        )
        return _told(started, *map(self._result, self._before))

    def begin(self, reply: Reply[object]) -> bytes:  # noqa: ARG002 - the run has begun
        """Return nothing."""
        return b""

    def piece(self, piece: Piece | ServerCall) -> bytes:
        """Return what a piece adds to the open message, or a message of its own."""
        match piece:
            case Text(text):
                return _told(*self._say(text)) if text else b""
            case Thought(text):
                return _told(*self._think(text))
            case ToolCall():
                self._calls.append(piece.call_id)
                return _told(*self._call(piece))
            case ServerCall():
                return _told(*self._server_call(piece))

    def end(self, reply: Reply[object]) -> bytes:
        """Return the end of the run with its usage, or its failure."""
        done = reply.ended
        usage = _usage(reply)
        if (problem := problem_at(done)) is not None:
            return _told(*self._close(), error_of(problem, usage))
        finished = wire.RunFinished(
            thread_id=self._thread_id,
            run_id=self._run_id,
            outcome=self._outcome(done.reason),
            usage=usage,
            metadata=wire.Ended(finish_reason(done)),
        )
        return _told(*self._close(), finished)

    def _outcome(self, reason: Reason) -> wire.Success | wire.Interrupted | wire.Cancelled | None:
        """Return the outcome. A reply that was cut off is no success: nobody may take it for whole."""
        if reason not in (Reason.STOP, Reason.TOOLS):
            return None if self._is_old else wire.Cancelled()
        if self._interrupts:
            return wire.Interrupted(interrupts=tuple(self._interrupts))
        return wire.Success(pending_tool_call_ids=() if self._is_old else tuple(self._calls))

    def fail(self, refused: Refused) -> bytes:
        """Return a failure outside the reply."""
        return _told(*self._close(), error_of(problem_of(refused)))

    def ping(self) -> bytes:
        """Return a comment, which is not an event."""
        return b":\n\n"

    def _say(self, text: str) -> Iterator[RunEvent]:
        if self._open is not Text:
            yield from self._close()
            self._parent = self._next("msg")
            self._open = Text
            yield wire.TextStart(message_id=self._parent, role="assistant")
        yield wire.TextContent(message_id=self._parent, delta=text)

    def _think(self, text: str) -> Iterator[RunEvent]:
        if self._open is not Thought:
            yield from self._close()
            name = self._next("rsn")
            self._open = Thought
            yield wire.ReasoningStart(message_id=name)
            yield wire.ReasoningMessageStart(message_id=name, role="reasoning")
        yield wire.ReasoningContent(message_id=self._named("rsn"), delta=text)

    def _call(self, call: ToolCall) -> Iterator[RunEvent]:
        yield from self._close()
        yield wire.CallStart(
            tool_call_id=call.call_id, tool_call_name=call.name, parent_message_id=self._parent
        )
        yield wire.CallArgs(tool_call_id=call.call_id, delta=call.arguments)
        yield wire.CallEnd(tool_call_id=call.call_id)

    def _server_call(self, call: ServerCall) -> Iterator[RunEvent]:
        """Yield the events of a server tool's call: it begins, and may wait for an approval; or it has ended."""
        if call.state.is_settled:
            yield self._result(call)
            return
        yield from self._call(ToolCall(call.call_id, call.name, call.args))
        if call.waits:
            self._interrupts.append(_interrupt(call))

    def _result(self, call: ServerCall) -> RunEvent:
        message_id = f"tool_{self._name}_{call.call_id}"
        return wire.CallResult(
            message_id=message_id, tool_call_id=call.call_id, content=call.output, role="tool"
        )

    def _close(self) -> Iterator[RunEvent]:
        """End the open message."""
        if self._open is Text:
            yield wire.TextEnd(message_id=self._parent)
        elif self._open is Thought:
            name = self._named("rsn")
            yield wire.ReasoningMessageEnd(message_id=name)
            yield wire.ReasoningEnd(message_id=name)
        self._open = None

    def _next(self, kind: str) -> str:
        """Return the id of another message."""
        self._messages += 1
        return self._named(kind)

    def _named(self, kind: str) -> str:
        return f"{kind}_{self._name}_{self._messages}"


def error_of(problem: Problem, usage: tuple[wire.RunUsage, ...] = ()) -> wire.RunError:
    """Return a problem as an event."""
    return wire.RunError(message=str(problem), code=problem.word, usage=usage)


def _interrupt(call: ServerCall) -> wire.Interrupt:
    at = call.expires_at
    return wire.Interrupt(
        id=interrupt_id(call),
        reason="tool_call",
        message=f"May {call.name} run?",
        tool_call_id=call.call_id,
        response_schema=_ANSWER,
        expires_at=None if at is None else datetime.fromtimestamp(at / 1000, UTC).isoformat(),
    )


def _usage(reply: Reply[object]) -> tuple[wire.RunUsage, ...]:
    """Return the usage; nothing if no prompt was read."""
    counted = reply.ended.usage
    if not counted.prompt_tokens:
        return ()
    usage = wire.RunUsage(
        model=reply.model,
        input_tokens=counted.prompt_tokens,
        output_tokens=counted.generated_tokens,
        total_tokens=counted.prompt_tokens + counted.generated_tokens,
        reasoning_tokens=counted.reasoning_tokens,
        cached_input_tokens=counted.cached_tokens,
    )
    return (usage,)


def _told(*events: RunEvent) -> bytes:
    return b"".join(b"data: %b\n\n" % _encode(event) for event in events)
