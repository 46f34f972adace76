"""Converts replies to responses: one that is being written, item by item, and stored ones, with their requests. Pure.

The items of a server tool's call contain its id, so a client that returns them names the call. An approval's id contains the
hash of the arguments, too: only the arguments that were shown can run.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, assert_never

import msgspec

from connections.api import replies
from connections.api.replies import ReplyToken, ServerToolCall, needs_approval, reply_token, sum_usage
from connections.api.requests import Problem, is_conversation_id
from connections.api.responses import parser, schema
from connections.api.responses.parser import (
    Creation,
    McpServer,
    encode_opaque,
    joined_name,
)
from connections.api.responses.schema import (
    FunctionCall,
    ListedTool,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpItem,
    McpListTools,
    McpStatus,
    McpTool,
    ToolError,
)
from connections.http import sse
from engine.messages import ChosenToken, Message, ToolCall
from engine.vision.image import Image, in_order
from sessions.conversation.history_page import StoredTurn
from sessions.events import CallState, Done, Reason, Usage
from sessions.records import CallRecord, MessageRecord
from sessions.running.ephemeral import Piece, ReasoningPiece, TextPiece
from sessions.turn.tool_calls import result_text

_INCOMPLETE_REASONS = {
    Reason.LENGTH: "max_output_tokens",
    Reason.TIMEOUT: "max_output_tokens",
    Reason.FILTERED: "content_filter",
    Reason.CANCELLED: "cancelled",
}
_encode = msgspec.json.Encoder().encode
IMPLICIT_PREFIX = "response-"
"""Begins the id of a conversation that this endpoint began, without a name from a client."""
CREATED_PREFIX = "conv_"
"""Begins the id of a conversation that a client created, and that exists before its first message."""
_KEPT = re.compile(r"resp_([A-Za-z0-9_-]{1,64})\.(.{1,128})\Z", re.DOTALL)
MAX_NOTE_BYTES = 256 * 1024
ItemWithImages = tuple[schema.InputItem, tuple[Image, ...]]
encode_note = msgspec.json.Encoder().encode


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

    def part(self) -> schema.Part:
        """Return the part so far."""
        return schema.ReasoningText(self.text) if self.is_reasoning else self._output_text()

    def item(self, status: schema.ItemStatus, *, encrypts_reasoning: bool) -> schema.Output:
        """Return the item. `encrypts_reasoning`: the client wants reasoning that it can send back."""
        if not self.is_reasoning:
            content = (self._output_text(),) if status != "in_progress" else ()
            return schema.Message(id=self.item_id, status=status, content=content)
        return schema.ReasoningItem(
            id=self.item_id,
            status=status,
            content=(schema.ReasoningText(self.text),) if status != "in_progress" else (),
            encrypted_content=encode_opaque(self.text) if encrypts_reasoning else msgspec.UNSET,
        )

    def _output_text(self) -> schema.OutputText:
        return schema.OutputText(self.text, logprobs=tuple(self.logprobs))


class ToolLabels(msgspec.Struct, frozen=True):
    """Maps tools to the labels of their servers, and functions to their namespaces."""

    by_tool: dict[str, str] = {}
    namespaces: dict[str, str] = {}

    def of(self, tool: str) -> str:
        """Return the label of a tool's server; empty if the tool is unknown by now."""
        return self.by_tool.get(tool, "")

    def call(self, call: ToolCall, item_id: str) -> FunctionCall:
        """Return the item of a function's call, under the namespace in which the client has it."""
        space = self.namespaces.get(call.name)
        return FunctionCall(
            id=item_id,
            status="completed",
            call_id=call.call_id,
            name=call.name.removeprefix(f"{space}__") if space else call.name,
            namespace=space or msgspec.UNSET,
            arguments=call.arguments,
        )


class ResponsesEncoder:
    """Converts one response. `name`: the common part of its items' ids. `logprobs`, `encrypts_reasoning`: the client's options.

    In a background response, a text's events take as many numbers as the text has code points. So a number means
    the same place however pieces were merged; see `events_after`.
    """

    def __init__(
        self,
        response: schema.Response,
        *,
        name: str,
        logprobs: bool = False,
        encrypts_reasoning: bool = False,
        stream_id: str | msgspec.UnsetType = msgspec.UNSET,
        labels: ToolLabels | None = None,
        before: tuple[McpItem, ...] = (),
    ) -> None:
        """`labels`: of the servers of tools; `before`: items that the response begins with."""
        self.response = response
        self._name = name
        self._logprobs = logprobs
        self._encrypts_reasoning = encrypts_reasoning
        self._stream_id = stream_id
        self._labels = labels or ToolLabels()
        self._before = before
        self._running: dict[str, int] = {}
        self._next = 0
        self._by_position = response.background
        self._done: list[schema.Output] = []
        self._open_item: _OpenItem | None = None

    def begin(self) -> list[schema.StreamEvent]:
        """Return the first events."""
        events: list[schema.StreamEvent] = [
            schema.Created(response=self.response),
            schema.InProgress(response=self.response),
        ]
        return self._numbered(
            [*events, *(event for item in self._before for event in self._complete_item(item))]
        )

    def piece(self, piece: Piece | ServerToolCall) -> list[schema.StreamEvent]:
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

    def end(self, done: Done, model: str, now: int) -> list[schema.StreamEvent]:
        """Return the last events. `now`: Unix seconds."""
        is_whole = done.reason in (Reason.STOP, Reason.TOOLS)
        events = [*self._close("completed" if is_whole else "incomplete"), *self._close_running()]
        self.response = ended_response(self.response, done, tuple(self._done), model=model, now=now)
        if done.cancel is not None:
            events.append(
                schema.Cancelled(
                    response_id=self.response.id,
                    latency_ms=done.cancel.latency_ms,
                    steps_after=done.cancel.steps_after,
                )
            )
        return self._numbered([*events, terminal_event(self.response)])

    def fail(self, problem: Problem) -> list[schema.StreamEvent]:
        """Return the last events if the turn has no end to send."""
        events = [*self._close("incomplete"), *self._close_running()]
        why = schema.Failed(problem.code, str(problem))
        self.response = msgspec.structs.replace(
            self.response, status="failed", output=tuple(self._done), error=why
        )
        return self._numbered([*events, terminal_event(self.response)])

    def _text(self, text: str, tokens: Sequence[ChosenToken]) -> Iterator[schema.StreamEvent]:
        logprobs = tuple(map(reply_token, tokens)) if self._logprobs else ()
        if not text and not logprobs:
            return
        yield from self._open(is_reasoning=False)
        if (open_item := self._open_item) is not None:
            open_item.texts.append(text)
            open_item.logprobs += logprobs
            yield schema.TextDelta(
                item_id=open_item.item_id, output_index=open_item.index, delta=text, logprobs=logprobs
            )

    def _reasoning(self, text: str) -> Iterator[schema.StreamEvent]:
        yield from self._open(is_reasoning=True)
        if (open_item := self._open_item) is not None:
            open_item.texts.append(text)
            yield schema.ReasoningDelta(item_id=open_item.item_id, output_index=open_item.index, delta=text)

    def _open(self, *, is_reasoning: bool) -> Iterator[schema.StreamEvent]:
        """Begin an item, unless one of its kind is open."""
        if self._open_item is not None and self._open_item.is_reasoning is is_reasoning:
            return
        yield from self._close("completed")
        index = len(self._done)
        item_id = f"{'rs' if is_reasoning else 'msg'}_{self._name}_{index}"
        open_item = self._open_item = _OpenItem(item_id, index, is_reasoning=is_reasoning)
        yield schema.ItemAdded(
            output_index=index, item=open_item.item("in_progress", encrypts_reasoning=False)
        )
        yield schema.PartAdded(item_id=item_id, output_index=index, part=open_item.part())

    def _close(self, status: schema.ItemStatus) -> Iterator[schema.StreamEvent]:
        """End the open item, if there is one."""
        if (open_item := self._open_item) is None:
            return
        self._open_item = None
        at, index, text = open_item.item_id, open_item.index, open_item.text
        if open_item.is_reasoning:
            yield schema.ReasoningDone(item_id=at, output_index=index, text=text)
        else:
            logprobs = tuple(open_item.logprobs)
            yield schema.TextDone(item_id=at, output_index=index, text=text, logprobs=logprobs)
        yield schema.PartDone(item_id=at, output_index=index, part=open_item.part())
        item = open_item.item(status, encrypts_reasoning=self._encrypts_reasoning)
        self._done.append(item)
        yield schema.ItemDone(output_index=index, item=item)

    def _call(self, call: ToolCall) -> Iterator[schema.StreamEvent]:
        index = len(self._done)
        item = self._labels.call(call, f"fc_{self._name}_{index}")
        begun = msgspec.structs.replace(item, status="in_progress", arguments="")
        yield schema.ItemAdded(output_index=index, item=begun)
        yield schema.ArgumentsDelta(item_id=item.id, output_index=index, delta=call.arguments)
        yield schema.ArgumentsDone(
            item_id=item.id, output_index=index, name=item.name, arguments=call.arguments
        )
        self._done.append(item)
        yield schema.ItemDone(output_index=index, item=item)

    def _complete_item(self, item: McpItem) -> Iterator[schema.StreamEvent]:
        """Return the events of an item that is complete at once."""
        index = len(self._done)
        self._done.append(item)
        begun = item
        if isinstance(item, McpCall):
            begun = msgspec.structs.replace(item, status="in_progress", output=None, error=None)
        yield schema.ItemAdded(output_index=index, item=begun)
        match item:
            case McpListTools():
                yield schema.McpListToolsInProgress(item_id=item.id, output_index=index)
                over = schema.McpListToolsCompleted if item.error is None else schema.McpListToolsFailed
                yield over(item_id=item.id, output_index=index)
            case McpCall():
                yield from self._call_started(item, index)
                yield self._call_ended(item, index)
        yield schema.ItemDone(output_index=index, item=item)

    def _server_call(self, call: ServerToolCall) -> Iterator[schema.StreamEvent]:
        """Return the events of a server tool's call: it begins, waits for an approval, or has ended."""
        if call.waits:
            yield from self._close("completed")
            yield from self._complete_item(approval_item(call, self._name, self._labels))
            return
        item = call_item(call, self._name, self._labels)
        if not call.state.is_settled:
            yield from self._close("completed")
            index = self._running[call.call_id] = len(self._done)
            self._done.append(item)
            yield schema.ItemAdded(output_index=index, item=item)
            yield from self._call_started(item, index)
        elif (place := self._running.pop(call.call_id, None)) is not None:
            self._done[place] = item
            yield self._call_ended(item, place)
            yield schema.ItemDone(output_index=place, item=item)

    @staticmethod
    def _call_started(item: McpCall, index: int) -> Iterator[schema.StreamEvent]:
        yield schema.McpCallInProgress(item_id=item.id, output_index=index)
        yield schema.McpCallArgumentsDelta(item_id=item.id, output_index=index, delta=item.arguments)
        yield schema.McpCallArgumentsDone(item_id=item.id, output_index=index, arguments=item.arguments)

    @staticmethod
    def _call_ended(item: McpCall, index: int) -> schema.StreamEvent:
        over = schema.McpCallCompleted if item.status == "completed" else schema.McpCallFailed
        return over(item_id=item.id, output_index=index)

    def _close_running(self) -> Iterator[schema.StreamEvent]:
        """End the calls that are still open when the response ends."""
        for index in self._running.values():
            item = self._done[index]
            if isinstance(item, McpCall):
                cut = self._done[index] = msgspec.structs.replace(item, status="incomplete")
                yield schema.ItemDone(output_index=index, item=cut)
        self._running.clear()

    def _numbered(
        self, events: Iterator[schema.StreamEvent] | Sequence[schema.StreamEvent]
    ) -> list[schema.StreamEvent]:
        numbered: list[schema.StreamEvent] = []
        for event in events:
            is_text = self._by_position and isinstance(event, schema.TextDelta | schema.ReasoningDelta)
            self._next += max(1, len(event.delta)) if is_text else 1  # type: ignore[union-attr]
            numbered.append(
                msgspec.structs.replace(event, sequence_number=self._next - 1, stream_id=self._stream_id)
            )
        return numbered


def problem_at_end(done: Done) -> Problem | None:
    """Return why a response has no regular end; None if it has one."""
    return None if done.reason is Reason.CANCELLED else replies.problem_at_end(done)


def ended_response(
    response: schema.Response, done: Done, output: tuple[schema.Output, ...], *, model: str, now: int
) -> schema.Response:
    """Return the response after the end of its turn."""
    status: schema.Status = "completed"
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
        incomplete_details=schema.Incomplete(early) if early is not None else None,
        error=None if problem is None else schema.Failed(problem.code, str(problem)),
    )


def terminal_event(response: schema.Response) -> schema.StreamEvent:
    """Return the last event of a response."""
    match response.status:
        case "completed":
            return schema.Completed(response=response)
        case "failed":
            return schema.ResponseFailed(response=response)
        case _:
            return schema.ResponseIncomplete(response=response)


def events_after(events: Sequence[schema.StreamEvent], number: int | None) -> Sequence[schema.StreamEvent]:
    """Return the events of a background response after a number; None: all events of any response."""
    if number is None:
        return events
    return [cut for event in events if (cut := _event_after(event, number)) is not None]


def _event_after(event: schema.StreamEvent, number: int) -> schema.StreamEvent | None:
    if event.sequence_number <= number:
        return None
    if isinstance(event, schema.TextDelta | schema.ReasoningDelta):
        return msgspec.structs.replace(event, delta=event.delta[-(event.sequence_number - number) :])
    return event


def encode_sse(events: Sequence[schema.StreamEvent]) -> bytes:
    """Return server-sent events."""
    return b"".join(sse(_encode(event), str(event.__struct_config__.tag)) for event in events)


def encode_lines(events: Sequence[schema.StreamEvent]) -> bytes:
    """Return a line for each event: one message of a WebSocket. JSON contains no line breaks."""
    return b"\n".join(map(_encode, events))


def initial_response(request: Creation, *, response_id: str, model: str, created: int) -> schema.Response:
    """Return a response that has just begun."""
    return schema.Response(
        id=response_id,
        created_at=created,
        model=model,
        previous_response_id=request.previous_response_id,
        instructions=request.instructions,
        tools=tuple(_tools(request.tools or ())),
        tool_choice=_tool_choice(request.tool_choice),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        max_tool_calls=request.max_tool_calls,
        text=_text_config(request.text),
        reasoning=schema.Effort()
        if (asked := request.reasoning) is None
        else schema.Effort(asked.effort, asked.summary),
        max_output_tokens=request.max_output_tokens,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        top_logprobs=request.top_logprobs or 0,
        truncation="auto" if request.truncation == "auto" else "disabled",
        background=bool(request.background),
        metadata=request.metadata or {},
        safety_identifier=request.safety_identifier,
        prompt_cache_key=request.prompt_cache_key,
        user=request.user,
    )


def usage_of(usage: Usage) -> schema.Usage:
    """Return the usage of a turn."""
    return schema.Usage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=schema.InputDetails(usage.cached_tokens),
        output_tokens=usage.generated_tokens,
        output_tokens_details=schema.OutputDetails(usage.reasoning_tokens),
        total_tokens=usage.prompt_tokens + usage.generated_tokens,
    )


def output_messages(output: tuple[schema.Output, ...]) -> tuple[Message, ...]:
    """Return a reply's items as messages for the model that continues from it."""
    texts = [
        part.text
        for item in output
        if isinstance(item, schema.Message)
        for part in item.content
        if not isinstance(part, schema.InputImage)
    ]
    thoughts = [
        part.text for item in output if isinstance(item, schema.ReasoningItem) for part in item.content
    ]
    calls = tuple(
        ToolCall(item.call_id, joined_name(item.namespace or None, item.name), item.arguments)
        for item in output
        if isinstance(item, schema.FunctionCall)
    )
    if not texts and not calls:
        return ()
    return (Message("assistant", "".join(texts), reasoning="".join(thoughts), calls=calls),)


def _tools(given: Sequence[parser.Tool]) -> Iterator[schema.FunctionTool | schema.NamespaceTool | McpTool]:
    """Yield the tools that are offered."""
    for tool in given:
        match tool.type:
            case "function":
                yield _function(tool)
            case "namespace":
                functions = tuple(_function(one) for one in tool.tools or () if one.type == "function")
                yield schema.NamespaceTool(
                    name=tool.name or "", description=tool.description, tools=functions
                )
            case "mcp":
                yield McpTool(
                    server_label=tool.server_label or "",
                    server_description=tool.server_description,
                    server_url=tool.server_url,
                    allowed_tools=tool.allowed_tools,
                    require_approval=tool.require_approval or "always",
                )


def _function(tool: parser.Tool) -> schema.FunctionTool:
    return schema.FunctionTool(
        name=tool.name or "", description=tool.description, parameters=tool.parameters, strict=tool.strict
    )


def _tool_choice(given: str | parser.ToolChoice | None) -> str | dict[str, Any]:
    match given:
        case None:
            return "auto"
        case str():
            return given
        case parser.ToolChoice(type="function"):
            return {"type": "function", "name": given.name}
        case parser.ToolChoice(type="mcp"):
            return {"type": "mcp", "server_label": given.server_label, "name": given.name}
        case _:
            tools = [{"type": one.type, "name": one.name} for one in given.tools or ()]
            return {"type": given.type, "mode": given.mode, "tools": tools}


def _text_config(given: parser.TextConfig | None) -> dict[str, Any]:
    requested = given.format if given is not None else None
    if requested is None or requested.type != "json_schema":
        return {"format": {"type": "text" if requested is None else requested.type}}
    named: dict[str, Any] = {
        "type": requested.type,
        "name": requested.name or "",
        "description": requested.description,
        "schema": requested.schema,
        "strict": requested.strict is not False,
    }
    return {"format": named}


def list_tools_item(listed: McpServer, item_id: str) -> McpListTools:
    """Return the item of a server's tools."""
    tools = tuple(
        ListedTool(
            name=tool.name,
            description=tool.description or None,
            input_schema=msgspec.Raw(tool.parameters.encode()),
        )
        for tool in listed.tools
    )
    return McpListTools(id=item_id, server_label=listed.label, tools=tools, error=listed.error)


def call_item_id(call_id: str, name: str) -> str:
    """Return the id of a call's item. `name`: the common part of the ids of its response."""
    return f"mcp_{name}_{call_id.encode().hex()}"


def approval_id(call: ServerToolCall, name: str) -> str:
    """Return the id of an approval."""
    return f"mcpr_{name}_{call.call_id.encode().hex()}-{call.args_sha256}"


def approval_item(call: ServerToolCall, name: str, labels: ToolLabels) -> McpApprovalRequest:
    """Return the item of a call that waits for an approval."""
    return McpApprovalRequest(
        id=approval_id(call, name), server_label=labels.of(call.name), name=call.name, arguments=call.args
    )


def call_item(
    call: ServerToolCall,
    name: str,
    labels: ToolLabels,
    *,
    approval_request_id: str | None = None,
    is_cut: bool = False,
) -> McpCall:
    """Return the item of a call. `approval_request_id`: the id of its approval; `is_cut`: it will not end any more."""
    settled = call.state.is_settled
    status: McpStatus = "incomplete" if is_cut else "in_progress"
    if settled:
        status = "failed" if call.failed else "completed"
    return McpCall(
        id=call_item_id(call.call_id, name),
        status=status,
        server_label=labels.of(call.name),
        name=call.name,
        arguments=call.args,
        approval_request_id=approval_request_id,
        output=call.output if settled and not call.failed else None,
        error=ToolError.of(call.output) if settled and call.failed else None,
    )


class ResponseRef(msgspec.Struct, frozen=True):
    """The place of a stored response."""

    conversation_id: str
    turn_id: str

    @property
    def name(self) -> str:
        """The common part of the ids of the response and its items."""
        return f"{self.turn_id.removeprefix('turn_')}.{self.conversation_id}"

    @property
    def response_id(self) -> str:
        """The response's id."""
        return f"resp_{self.name}"


def conversation_of(response_id: str) -> ResponseRef | None:
    """Return the place of a stored response; None if its id says that it is not stored."""
    if (found := _KEPT.match(response_id)) is None or not is_conversation_id(found[2]):
        return None
    return ResponseRef(found[2], f"turn_{found[1]}")


def ref_of_item(item_id: str) -> ResponseRef | None:
    """Return the place of the response that an item belongs to; None if it is not stored."""
    _, _, name = item_id.partition("_")
    return conversation_of(f"resp_{name.rpartition('_')[0]}")


def new_conversation(prefix: str = IMPLICIT_PREFIX) -> str:
    """Return an id for a conversation."""
    return f"{prefix}{secrets.token_hex(10)}"


class ResponseNote(msgspec.Struct, frozen=True):
    """How a response was requested. `system`: the system messages in its conversation's inputs, from the beginning.

    `labels`: of tools' servers, by the tools' names; `before`: items the response begins with.
    """

    response: schema.Response
    system: str = ""
    labels: ToolLabels = ToolLabels()
    before: tuple[McpItem, ...] = ()


decode_note = msgspec.json.Decoder(ResponseNote).decode


def input_items(
    path: Sequence[MessageRecord], kept: Sequence[StoredTurn], note: ResponseNote, name: str
) -> list[ItemWithImages]:
    """Return the items of a path, oldest first, without the response at its end. Each has its images."""
    replies = {turn.record.reply_id for turn in kept}
    before = [record for record in path if record.message_id not in replies]
    items: list[ItemWithImages] = []
    for number, record in enumerate(before):
        named = f"{name}_in{number}"
        if record.role == "user":
            items.append((_user_message(record, f"msg_{named}"), record.images))
            continue
        items += [(item, ()) for item in output_of(record, named, note.labels)]
        items += [(_outcome_item(call, named), ()) for call in record.calls if _has_outcome_item(call)]
        if record is not before[-1]:  # else their outcomes are in the response
            ran = [
                ServerToolCall.kept(call)
                for call in record.calls
                if needs_approval(call) and call.state.is_settled
            ]
            items += [(call_item(call, named, note.labels), ()) for call in ran]
    return items


def items_of(record: MessageRecord, conversation_id: str) -> list[ItemWithImages]:
    """Return the items of a conversation's message, always with the same ids. An empty reply has none."""
    name = ResponseRef(conversation_id, record.turn_id).name
    if record.role == "user":
        return [(_user_message(record, f"msg_{name}_in"), record.images)]
    items = [(item, ()) for item in output_of(record, name, ToolLabels())]
    return [*items, *((_outcome_item(call, name), ()) for call in record.calls if _has_outcome_item(call))]


def _user_message(record: MessageRecord, item_id: str) -> schema.Message:
    parts = in_order(record.content, record.images)
    content = tuple(
        schema.InputText(part) if isinstance(part, str) else schema.InputImage(None, part.detail or "auto")
        for part in parts
    )
    return schema.Message(
        id=item_id, status="completed", role="user", content=content or (schema.InputText(record.content),)
    )


def with_images(item: schema.InputItem, images: Sequence[Image]) -> schema.InputItem:
    """Return a user's item with its images, as far as their bytes are given."""
    if not isinstance(item, schema.Message):
        return item
    left = iter(images)
    content = tuple(
        msgspec.structs.replace(part, image_url=_url(next(left)))
        if isinstance(part, schema.InputImage)
        else part
        for part in item.content
    )
    return msgspec.structs.replace(item, content=content)


def _url(image: Image) -> str | None:
    return image.url if image.data else None


def _has_outcome_item(call: CallRecord) -> bool:
    """Return whether the outcome of a call is an item of its own."""
    return call.state.is_settled and (call.where == "client" or needs_approval(call))


def _outcome_item(call: CallRecord, named: str) -> schema.InputItem:
    if needs_approval(call):
        return McpApprovalResponse(
            id=f"mcpa_{named}_{call.index}",
            approval_request_id=approval_id(ServerToolCall.for_approval(call), named),
            approve=call.state not in (CallState.DENIED, CallState.EXPIRED, CallState.CANCELLED),
        )
    return schema.FunctionCallOutput(
        id=f"fco_{named}_{call.index}", call_id=call.call_id, output=result_text(call)
    )


def output_of(
    reply: MessageRecord,
    name: str,
    labels: ToolLabels,
    status: schema.ItemStatus = "completed",
    *,
    first: int = 0,
    is_over: bool = True,
) -> tuple[schema.Output, ...]:
    """Return the items of an ended reply, as they were sent: reasoning, text, calls. `first`: how many come before."""
    items: list[schema.Output] = []

    def named(kind: str) -> str:
        return f"{kind}_{name}_{first + len(items)}"

    if reply.reasoning:
        content = (schema.ReasoningText(reply.reasoning),)
        items.append(schema.ReasoningItem(id=named("rs"), status="completed", content=content))
    if reply.content:
        text = (schema.OutputText(reply.content),)
        items.append(schema.Message(id=named("msg"), status=status, content=text))
    for call in reply.calls:
        if needs_approval(call):
            items.append(approval_item(ServerToolCall.for_approval(call), name, labels))
        elif call.where == "server":
            items.append(call_item(ServerToolCall.kept(call), name, labels, is_cut=is_over))
        else:
            items.append(labels.call(ToolCall(call.call_id, call.name, call.args), named("fc")))
    return tuple(items)


def resource_of(
    turns: Sequence[StoredTurn], note: ResponseNote, name: str, *, waits: bool
) -> schema.Response:
    """Return a stored response in its current state. `waits`: another turn of it will follow."""
    done, reply = turns[-1].record.done, turns[-1].reply
    if waits or done is None or reply is None:
        return note.response
    items: list[schema.Output] = list(note.before)
    usage: Usage | None = None
    for turn in turns:
        if (end := turn.record.done) is None or turn.reply is None:
            continue
        is_whole = end.reason in (Reason.STOP, Reason.TOOLS)
        status: schema.ItemStatus = "completed" if is_whole else "incomplete"
        items += output_of(turn.reply, name, note.labels, status, first=len(items))
        usage = end.usage if usage is None else sum_usage(usage, end.usage)
    milliseconds = sum(turn.record.done.timing.total_ms for turn in turns if turn.record.done is not None)
    return ended_response(
        note.response,
        msgspec.structs.replace(done, usage=usage or done.usage),
        tuple(items),
        model=done.model or turns[-1].record.writer or note.response.model,
        now=note.response.created_at + round(milliseconds / 1000),
    )
