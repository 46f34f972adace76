"""Converts one reply to a response: items that begin, grow and end, and the response around them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

import msgspec

from connections.openai.problems import Problem, problem_in
from connections.openai.telling import STOPPED, reply_token
from connections.openai.wire import ReplyToken
from connections.replies.server_calls import ServerCall
from connections.responses.answers import mcp_wire, wire
from connections.responses.answers.mcp_items import Labels, approval_item, call_item
from connections.responses.answers.mcp_wire import McpCall, McpItem, McpListTools
from connections.responses.answers.resource import usage_of
from connections.responses.requests.items import sealed
from engine.messages import ChosenToken, ToolCall
from sessions.events import Done, Reason
from sessions.running.waiting_pieces import Piece, Text, Thought

_EARLY = {
    Reason.LENGTH: "max_output_tokens",
    Reason.TIMEOUT: "max_output_tokens",
    Reason.FILTERED: "content_filter",
    Reason.CANCELLED: "cancelled",
}
_encode = msgspec.json.Encoder().encode


class _Growing:
    """The text or the reasoning that is being written."""

    def __init__(self, item_id: str, index: int, *, is_thought: bool) -> None:
        self.item_id = item_id
        self.index = index
        self.is_thought = is_thought
        self.texts: list[str] = []
        self.logprobs: list[ReplyToken] = []

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def part(self) -> wire.Part:
        """Return all of it so far."""
        return wire.ReasoningText(self.text) if self.is_thought else self._said()

    def item(self, status: wire.ItemStatus, *, seals: bool) -> wire.Output:
        """Return its item. `seals`: the client wants reasoning that it can send back."""
        if not self.is_thought:
            content = (self._said(),) if status != "in_progress" else ()
            return wire.Message(id=self.item_id, status=status, content=content)
        return wire.ReasoningItem(
            id=self.item_id,
            status=status,
            content=(wire.ReasoningText(self.text),) if status != "in_progress" else (),
            encrypted_content=sealed(self.text) if seals else msgspec.UNSET,
        )

    def _said(self) -> wire.OutputText:
        return wire.OutputText(self.text, logprobs=tuple(self.logprobs))


class ServerCalls(msgspec.Struct, frozen=True):
    """The parts of a response about server tools. `labels`: of their servers; `before`: items that it begins with."""

    labels: Labels = Labels()
    before: tuple[McpItem, ...] = ()


NO_CALLS = ServerCalls()


class Telling:
    """Converts one response. `name`: the common part of its items' ids. `logprobs`, `seals`: the client's options.

    In a background response, a text's events take as many numbers as the text has code points. So a number means
    the same place however pieces were merged; see `behind`.
    """

    def __init__(
        self,
        response: wire.Response,
        *,
        name: str,
        logprobs: bool = False,
        seals: bool = False,
        stream_id: str | msgspec.UnsetType = msgspec.UNSET,
        calls: ServerCalls = NO_CALLS,
    ) -> None:
        self.response = response
        self._name = name
        self._logprobs = logprobs
        self._seals = seals
        self._stream_id = stream_id
        self._calls = calls
        self._running: dict[str, int] = {}
        self._next = 0
        self._by_position = response.background
        self._done: list[wire.Output] = []
        self._growing: _Growing | None = None

    def begin(self) -> list[wire.StreamEvent]:
        """Return the first events."""
        told: list[wire.StreamEvent] = [
            wire.Created(response=self.response),
            wire.InProgress(response=self.response),
        ]
        return self._numbered([*told, *(event for item in self._calls.before for event in self._whole(item))])

    def piece(self, piece: Piece | ServerCall) -> list[wire.StreamEvent]:
        """Return the events of a piece of the reply, possibly none."""
        match piece:
            case Text():
                return self._numbered(self._text(piece.text, piece.logprobs))
            case Thought():
                return self._numbered(self._thought(piece.text))
            case ToolCall():
                return self._numbered([*self._close("completed"), *self._call(piece)])
            case ServerCall():
                return self._numbered(self._server_call(piece))
            case _:
                assert_never(piece)

    def end(self, done: Done, model: str, now: int) -> list[wire.StreamEvent]:
        """Return the last events. `now`: Unix seconds."""
        is_whole = done.reason in (Reason.STOP, Reason.TOOLS)
        events = [*self._close("completed" if is_whole else "incomplete"), *self._cut()]
        self.response = ended(self.response, done, tuple(self._done), model=model, now=now)
        if done.cancel is not None:
            events.append(
                wire.Cancelled(
                    response_id=self.response.id,
                    latency_ms=done.cancel.latency_ms,
                    steps_after=done.cancel.steps_after,
                )
            )
        return self._numbered([*events, terminal(self.response)])

    def fail(self, problem: Problem) -> list[wire.StreamEvent]:
        """Return the last events if the turn has no end to send."""
        events = [*self._close("incomplete"), *self._cut()]
        why = wire.Failed(problem.word, str(problem))
        self.response = msgspec.structs.replace(
            self.response, status="failed", output=tuple(self._done), error=why
        )
        return self._numbered([*events, terminal(self.response)])

    def _text(self, text: str, tokens: Sequence[ChosenToken]) -> Iterator[wire.StreamEvent]:
        told = tuple(map(reply_token, tokens)) if self._logprobs else ()
        if not text and not told:
            return
        yield from self._open(is_thought=False)
        if (growing := self._growing) is not None:
            growing.texts.append(text)
            growing.logprobs += told
            yield wire.TextDelta(
                item_id=growing.item_id, output_index=growing.index, delta=text, logprobs=told
            )

    def _thought(self, text: str) -> Iterator[wire.StreamEvent]:
        yield from self._open(is_thought=True)
        if (growing := self._growing) is not None:
            growing.texts.append(text)
            yield wire.ReasoningDelta(item_id=growing.item_id, output_index=growing.index, delta=text)

    def _open(self, *, is_thought: bool) -> Iterator[wire.StreamEvent]:
        """Begin an item, unless one of its kind is open."""
        if self._growing is not None and self._growing.is_thought is is_thought:
            return
        yield from self._close("completed")
        index = len(self._done)
        item_id = f"{'rs' if is_thought else 'msg'}_{self._name}_{index}"
        growing = self._growing = _Growing(item_id, index, is_thought=is_thought)
        yield wire.ItemAdded(output_index=index, item=growing.item("in_progress", seals=False))
        yield wire.PartAdded(item_id=item_id, output_index=index, part=growing.part())

    def _close(self, status: wire.ItemStatus) -> Iterator[wire.StreamEvent]:
        """End the open item, if there is one."""
        if (growing := self._growing) is None:
            return
        self._growing = None
        at, index, text = growing.item_id, growing.index, growing.text
        if growing.is_thought:
            yield wire.ReasoningDone(item_id=at, output_index=index, text=text)
        else:
            told = tuple(growing.logprobs)
            yield wire.TextDone(item_id=at, output_index=index, text=text, logprobs=told)
        yield wire.PartDone(item_id=at, output_index=index, part=growing.part())
        item = growing.item(status, seals=self._seals)
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

    def _whole(self, item: McpItem) -> Iterator[wire.StreamEvent]:
        """Return the events of an item that is complete at once."""
        index = len(self._done)
        self._done.append(item)
        begun = item
        if isinstance(item, McpCall):
            begun = msgspec.structs.replace(item, status="in_progress", output=None, error=None)
        yield wire.ItemAdded(output_index=index, item=begun)
        match item:
            case McpListTools():
                yield mcp_wire.Listing(item_id=item.id, output_index=index)
                over = mcp_wire.ListingDone if item.error is None else mcp_wire.ListingFailed
                yield over(item_id=item.id, output_index=index)
            case McpCall():
                yield from self._begun(item, index)
                yield self._over(item, index)
        yield wire.ItemDone(output_index=index, item=item)

    def _server_call(self, call: ServerCall) -> Iterator[wire.StreamEvent]:
        """Return the events of a server tool's call: it begins, waits for an approval, or has ended."""
        if call.waits:
            yield from self._close("completed")
            yield from self._whole(approval_item(call, self._name, self._calls.labels))
            return
        item = call_item(call, self._name, self._calls.labels)
        if not call.state.is_settled:
            yield from self._close("completed")
            index = self._running[call.call_id] = len(self._done)
            self._done.append(item)
            yield wire.ItemAdded(output_index=index, item=item)
            yield from self._begun(item, index)
        elif (place := self._running.pop(call.call_id, None)) is not None:
            self._done[place] = item
            yield self._over(item, place)
            yield wire.ItemDone(output_index=place, item=item)

    @staticmethod
    def _begun(item: McpCall, index: int) -> Iterator[wire.StreamEvent]:
        yield mcp_wire.Calling(item_id=item.id, output_index=index)
        yield mcp_wire.CallArgumentsDelta(item_id=item.id, output_index=index, delta=item.arguments)
        yield mcp_wire.CallArgumentsDone(item_id=item.id, output_index=index, arguments=item.arguments)

    @staticmethod
    def _over(item: McpCall, index: int) -> wire.StreamEvent:
        over = mcp_wire.CallDone if item.status == "completed" else mcp_wire.CallFailed
        return over(item_id=item.id, output_index=index)

    def _cut(self) -> Iterator[wire.StreamEvent]:
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


def problem_at(done: Done) -> Problem | None:
    """Return why a response has no regular end; None if it has one."""
    if done.reason in _EARLY or done.reason in (Reason.STOP, Reason.TOOLS):
        return None
    return problem_in(done.error or STOPPED)


def ended(
    response: wire.Response, done: Done, output: tuple[wire.Output, ...], *, model: str, now: int
) -> wire.Response:
    """Return the response after the end of its turn."""
    status: wire.Status = "completed"
    early, problem = _EARLY.get(done.reason), problem_at(done)
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
        error=None if problem is None else wire.Failed(problem.word, str(problem)),
    )


def terminal(response: wire.Response) -> wire.StreamEvent:
    """Return the last event of a response."""
    match response.status:
        case "completed":
            return wire.Completed(response=response)
        case "failed":
            return wire.FailedEvent(response=response)
        case _:
            return wire.EndedEarly(response=response)


def behind(events: Sequence[wire.StreamEvent], number: int | None) -> Sequence[wire.StreamEvent]:
    """Return the events of a background response after a number; None: all events of any response."""
    if number is None:
        return events
    return [cut for event in events if (cut := _behind(event, number)) is not None]


def _behind(event: wire.StreamEvent, number: int) -> wire.StreamEvent | None:
    if event.sequence_number <= number:
        return None
    if isinstance(event, wire.TextDelta | wire.ReasoningDelta):
        return msgspec.structs.replace(event, delta=event.delta[-(event.sequence_number - number) :])
    return event


def as_events(events: Sequence[wire.StreamEvent]) -> bytes:
    """Return server-sent events."""
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (_type_of(event).encode(), _encode(event)) for event in events
    )


def as_lines(events: Sequence[wire.StreamEvent]) -> bytes:
    """Return one line for each, which is one message of a WebSocket. JSON contains no line breaks."""
    return b"\n".join(map(_encode, events))


def _type_of(event: wire.StreamEvent) -> str:
    return str(type(event).__struct_config__.tag)
