"""Converts one reply to a response: items that begin, grow and end, and the response around them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

import msgspec

from connections.api.errors import Problem, problem_from_failure
from connections.api.replies import SERVER_STOPPING, ReplyToken, reply_token
from connections.api.stored_replies import ServerToolCall
from connections.responses.output import mcp_wire, wire
from connections.responses.output.mcp_items import ToolLabels, approval_item, call_item
from connections.responses.output.mcp_wire import McpCall, McpItem, McpListTools
from connections.responses.output.response_fields import usage_of
from connections.responses.requests.items import encode_opaque
from engine.messages import ChosenToken, ToolCall
from sessions.events import Done, Reason
from sessions.running.ephemeral import Piece, ReasoningPiece, TextPiece

_INCOMPLETE_REASONS = {
    Reason.LENGTH: "max_output_tokens",
    Reason.TIMEOUT: "max_output_tokens",
    Reason.FILTERED: "content_filter",
    Reason.CANCELLED: "cancelled",
}
_encode = msgspec.json.Encoder().encode


class _OpenItem:
    """The text or the reasoning that is being written."""

    def __init__(self, item_id: str, index: int, *, is_reasoning: bool) -> None:
        self.item_id = item_id
        self.index = index
        self.is_reasoning = is_reasoning
        self.texts: list[str] = []
        self.logprobs: list[ReplyToken] = []

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def part(self) -> wire.Part:
        """Return all of it so far."""
        return wire.ReasoningText(self.text) if self.is_reasoning else self._output_text()

    def item(self, status: wire.ItemStatus, *, encrypts_reasoning: bool) -> wire.Output:
        """Return its item. `encrypts_reasoning`: the client wants reasoning that it can send back."""
        if not self.is_reasoning:
            content = (self._output_text(),) if status != "in_progress" else ()
            return wire.Message(id=self.item_id, status=status, content=content)
        return wire.ReasoningItem(
            id=self.item_id,
            status=status,
            content=(wire.ReasoningText(self.text),) if status != "in_progress" else (),
            encrypted_content=encode_opaque(self.text) if encrypts_reasoning else msgspec.UNSET,
        )

    def _output_text(self) -> wire.OutputText:
        return wire.OutputText(self.text, logprobs=tuple(self.logprobs))


class ServerToolItems(msgspec.Struct, frozen=True):
    """The parts of a response about server tools. `labels`: of their servers; `before`: items that it begins with."""

    labels: ToolLabels = ToolLabels()
    before: tuple[McpItem, ...] = ()


NO_SERVER_TOOLS = ServerToolItems()


class ResponsesEncoder:
    """Converts one response. `name`: the common part of its items' ids. `logprobs`, `encrypts_reasoning`: the client's options.

    In a background response, a text's events take as many numbers as the text has code points. So a number means
    the same place however pieces were merged; see `events_after`.
    """

    def __init__(
        self,
        response: wire.Response,
        *,
        name: str,
        logprobs: bool = False,
        encrypts_reasoning: bool = False,
        stream_id: str | msgspec.UnsetType = msgspec.UNSET,
        calls: ServerToolItems = NO_SERVER_TOOLS,
    ) -> None:
        self.response = response
        self._name = name
        self._logprobs = logprobs
        self._encrypts_reasoning = encrypts_reasoning
        self._stream_id = stream_id
        self._calls = calls
        self._running: dict[str, int] = {}
        self._next = 0
        self._by_position = response.background
        self._done: list[wire.Output] = []
        self._open_item: _OpenItem | None = None

    def begin(self) -> list[wire.StreamEvent]:
        """Return the first events."""
        events: list[wire.StreamEvent] = [
            wire.Created(response=self.response),
            wire.InProgress(response=self.response),
        ]
        return self._numbered(
            [*events, *(event for item in self._calls.before for event in self._complete_item(item))]
        )

    def piece(self, piece: Piece | ServerToolCall) -> list[wire.StreamEvent]:
        """Return the events of a piece of the reply, possibly none."""
        match piece:
            case TextPiece():
                return self._numbered(self._text(piece.text, piece.logprobs))
            case ReasoningPiece():
                return self._numbered(self._reasoning(piece.text))
            case ToolCall():
                return self._numbered([*self._close("completed"), *self._call(piece)])
            case ServerToolCall():
                return self._numbered(self._server_call(piece))
            case _:
                assert_never(piece)

    def end(self, done: Done, model: str, now: int) -> list[wire.StreamEvent]:
        """Return the last events. `now`: Unix seconds."""
        is_whole = done.reason in (Reason.STOP, Reason.TOOLS)
        events = [*self._close("completed" if is_whole else "incomplete"), *self._close_running()]
        self.response = ended_response(self.response, done, tuple(self._done), model=model, now=now)
        if done.cancel is not None:
            events.append(
                wire.Cancelled(
                    response_id=self.response.id,
                    latency_ms=done.cancel.latency_ms,
                    steps_after=done.cancel.steps_after,
                )
            )
        return self._numbered([*events, terminal_event(self.response)])

    def fail(self, problem: Problem) -> list[wire.StreamEvent]:
        """Return the last events if the turn has no end to send."""
        events = [*self._close("incomplete"), *self._close_running()]
        why = wire.Failed(problem.error_code, str(problem))
        self.response = msgspec.structs.replace(
            self.response, status="failed", output=tuple(self._done), error=why
        )
        return self._numbered([*events, terminal_event(self.response)])

    def _text(self, text: str, tokens: Sequence[ChosenToken]) -> Iterator[wire.StreamEvent]:
        logprobs = tuple(map(reply_token, tokens)) if self._logprobs else ()
        if not text and not logprobs:
            return
        yield from self._open(is_reasoning=False)
        if (open_item := self._open_item) is not None:
            open_item.texts.append(text)
            open_item.logprobs += logprobs
            yield wire.TextDelta(
                item_id=open_item.item_id, output_index=open_item.index, delta=text, logprobs=logprobs
            )

    def _reasoning(self, text: str) -> Iterator[wire.StreamEvent]:
        yield from self._open(is_reasoning=True)
        if (open_item := self._open_item) is not None:
            open_item.texts.append(text)
            yield wire.ReasoningDelta(item_id=open_item.item_id, output_index=open_item.index, delta=text)

    def _open(self, *, is_reasoning: bool) -> Iterator[wire.StreamEvent]:
        """Begin an item, unless one of its kind is open."""
        if self._open_item is not None and self._open_item.is_reasoning is is_reasoning:
            return
        yield from self._close("completed")
        index = len(self._done)
        item_id = f"{'rs' if is_reasoning else 'msg'}_{self._name}_{index}"
        open_item = self._open_item = _OpenItem(item_id, index, is_reasoning=is_reasoning)
        yield wire.ItemAdded(output_index=index, item=open_item.item("in_progress", encrypts_reasoning=False))
        yield wire.PartAdded(item_id=item_id, output_index=index, part=open_item.part())

    def _close(self, status: wire.ItemStatus) -> Iterator[wire.StreamEvent]:
        """End the open item, if there is one."""
        if (open_item := self._open_item) is None:
            return
        self._open_item = None
        at, index, text = open_item.item_id, open_item.index, open_item.text
        if open_item.is_reasoning:
            yield wire.ReasoningDone(item_id=at, output_index=index, text=text)
        else:
            logprobs = tuple(open_item.logprobs)
            yield wire.TextDone(item_id=at, output_index=index, text=text, logprobs=logprobs)
        yield wire.PartDone(item_id=at, output_index=index, part=open_item.part())
        item = open_item.item(status, encrypts_reasoning=self._encrypts_reasoning)
        self._done.append(item)
        yield wire.ItemDone(output_index=index, item=item)

    def _call(self, call: ToolCall) -> Iterator[wire.StreamEvent]:
        index = len(self._done)
        item = self._calls.labels.call(call, f"fc_{self._name}_{index}")
        begun = msgspec.structs.replace(item, status="in_progress", arguments="")
        yield wire.ItemAdded(output_index=index, item=begun)
        yield wire.ArgumentsDelta(item_id=item.id, output_index=index, delta=call.arguments)
        yield wire.ArgumentsDone(
            item_id=item.id, output_index=index, name=item.name, arguments=call.arguments
        )
        self._done.append(item)
        yield wire.ItemDone(output_index=index, item=item)

    def _complete_item(self, item: McpItem) -> Iterator[wire.StreamEvent]:
        """Return the events of an item that is complete at once."""
        index = len(self._done)
        self._done.append(item)
        begun = item
        if isinstance(item, McpCall):
            begun = msgspec.structs.replace(item, status="in_progress", output=None, error=None)
        yield wire.ItemAdded(output_index=index, item=begun)
        match item:
            case McpListTools():
                yield mcp_wire.McpListToolsInProgress(item_id=item.id, output_index=index)
                over = mcp_wire.McpListToolsCompleted if item.error is None else mcp_wire.McpListToolsFailed
                yield over(item_id=item.id, output_index=index)
            case McpCall():
                yield from self._call_started(item, index)
                yield self._call_ended(item, index)
        yield wire.ItemDone(output_index=index, item=item)

    def _server_call(self, call: ServerToolCall) -> Iterator[wire.StreamEvent]:
        """Return the events of a server tool's call: it begins, waits for an approval, or has ended."""
        if call.waits:
            yield from self._close("completed")
            yield from self._complete_item(approval_item(call, self._name, self._calls.labels))
            return
        item = call_item(call, self._name, self._calls.labels)
        if not call.state.is_settled:
            yield from self._close("completed")
            index = self._running[call.call_id] = len(self._done)
            self._done.append(item)
            yield wire.ItemAdded(output_index=index, item=item)
            yield from self._call_started(item, index)
        elif (place := self._running.pop(call.call_id, None)) is not None:
            self._done[place] = item
            yield self._call_ended(item, place)
            yield wire.ItemDone(output_index=place, item=item)

    @staticmethod
    def _call_started(item: McpCall, index: int) -> Iterator[wire.StreamEvent]:
        yield mcp_wire.McpCallInProgress(item_id=item.id, output_index=index)
        yield mcp_wire.McpCallArgumentsDelta(item_id=item.id, output_index=index, delta=item.arguments)
        yield mcp_wire.McpCallArgumentsDone(item_id=item.id, output_index=index, arguments=item.arguments)

    @staticmethod
    def _call_ended(item: McpCall, index: int) -> wire.StreamEvent:
        over = mcp_wire.McpCallCompleted if item.status == "completed" else mcp_wire.McpCallFailed
        return over(item_id=item.id, output_index=index)

    def _close_running(self) -> Iterator[wire.StreamEvent]:
        """End the calls that are still open when the response ends."""
        for index in self._running.values():
            item = self._done[index]
            if isinstance(item, McpCall):
                cut = self._done[index] = msgspec.structs.replace(item, status="incomplete")
                yield wire.ItemDone(output_index=index, item=cut)
        self._running.clear()

    def _numbered(
        self, events: Iterator[wire.StreamEvent] | Sequence[wire.StreamEvent]
    ) -> list[wire.StreamEvent]:
        numbered: list[wire.StreamEvent] = []
        for event in events:
            is_text = self._by_position and isinstance(event, wire.TextDelta | wire.ReasoningDelta)
            self._next += max(1, len(event.delta)) if is_text else 1  # type: ignore[union-attr]
            numbered.append(
                msgspec.structs.replace(event, sequence_number=self._next - 1, stream_id=self._stream_id)
            )
        return numbered


def problem_at_end(done: Done) -> Problem | None:
    """Return why a response has no regular end; None if it has one."""
    if done.reason in _INCOMPLETE_REASONS or done.reason in (Reason.STOP, Reason.TOOLS):
        return None
    return problem_from_failure(done.error or SERVER_STOPPING)


def ended_response(
    response: wire.Response, done: Done, output: tuple[wire.Output, ...], *, model: str, now: int
) -> wire.Response:
    """Return the response after the end of its turn."""
    status: wire.Status = "completed"
    early, problem = _INCOMPLETE_REASONS.get(done.reason), problem_at_end(done)
    if problem is not None:
        status = "failed"
    elif early is not None:
        status = "cancelled" if done.reason is Reason.CANCELLED else "incomplete"
    return msgspec.structs.replace(
        response,
        status=status,
        completed_at=now if status == "completed" else None,
        model=model,
        output=output,
        usage=usage_of(done.usage),
        incomplete_details=wire.Incomplete(early) if early is not None else None,
        error=None if problem is None else wire.Failed(problem.error_code, str(problem)),
    )


def terminal_event(response: wire.Response) -> wire.StreamEvent:
    """Return the last event of a response."""
    match response.status:
        case "completed":
            return wire.Completed(response=response)
        case "failed":
            return wire.ResponseFailed(response=response)
        case _:
            return wire.ResponseIncomplete(response=response)


def events_after(events: Sequence[wire.StreamEvent], number: int | None) -> Sequence[wire.StreamEvent]:
    """Return the events of a background response after a number; None: all events of any response."""
    if number is None:
        return events
    return [cut for event in events if (cut := _event_after(event, number)) is not None]


def _event_after(event: wire.StreamEvent, number: int) -> wire.StreamEvent | None:
    if event.sequence_number <= number:
        return None
    if isinstance(event, wire.TextDelta | wire.ReasoningDelta):
        return msgspec.structs.replace(event, delta=event.delta[-(event.sequence_number - number) :])
    return event


def encode_sse(events: Sequence[wire.StreamEvent]) -> bytes:
    """Return server-sent events."""
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (_type_of(event).encode(), _encode(event)) for event in events
    )


def encode_lines(events: Sequence[wire.StreamEvent]) -> bytes:
    """Return one line for each, which is one message of a WebSocket. JSON contains no line breaks."""
    return b"\n".join(map(_encode, events))


def _type_of(event: wire.StreamEvent) -> str:
    return str(type(event).__struct_config__.tag)
