"""Converts replies to responses: one that is being written, item by item, and stored ones, with their requests. Pure."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from connections.api import replies
from connections.api.replies import ReplyToken, ServerToolCall, reply_token
from connections.api.requests import Problem, is_conversation_id
from connections.api.responses import parser, schema
from connections.api.responses.parser import (
    Creation,
    encode_opaque,
    joined_name,
)
from connections.http import sse
from engine.messages import ChosenToken, Message, ToolCall
from engine.vision.image import Image, in_order
from sessions.conversation.history_page import StoredTurn
from sessions.events import Done, Reason, Usage
from sessions.records import MessageRecord
from sessions.running.ephemeral import Piece, ReasoningPiece, TextPiece
from sessions.turn.tool_calls import as_written, result_text

_INCOMPLETE_REASONS = {
    Reason.LENGTH: "max_output_tokens",
    Reason.TIMEOUT: "max_output_tokens",
    Reason.FILTERED: "content_filter",
    Reason.CANCELLED: "cancelled",
}
_WHOLE = (Reason.STOP, Reason.TOOLS)
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


def call_item(call: ToolCall, item_id: str, namespaces: Mapping[str, str]) -> schema.FunctionCall:
    """Return the item of a call. `namespaces`: of functions, by the names that the model sees."""
    space = namespaces.get(call.name)
    return schema.FunctionCall(
        id=item_id,
        status="completed",
        call_id=call.call_id,
        name=call.name.removeprefix(f"{space}__") if space else call.name,
        namespace=space or msgspec.UNSET,
        arguments=call.arguments,
    )


class ResponsesEncoder:
    """Converts one response. `name`: the common part of its items' ids. `logprobs`, `encrypts_reasoning`: the client's options."""

    def __init__(
        self,
        response: schema.Response,
        *,
        name: str,
        logprobs: bool = False,
        encrypts_reasoning: bool = False,
        namespaces: Mapping[str, str] | None = None,
    ) -> None:
        """`namespaces`: as in `call_item`."""
        self.response = response
        self._name = name
        self._logprobs = logprobs
        self._encrypts_reasoning = encrypts_reasoning
        self._namespaces = namespaces or {}
        self._next = 0
        self._done: list[schema.Output] = []
        self._open_item: _OpenItem | None = None

    def begin(self) -> list[schema.StreamEvent]:
        """Return the first events."""
        return self._numbered(
            [schema.Created(response=self.response), schema.InProgress(response=self.response)]
        )

    def piece(self, piece: Piece | ServerToolCall) -> list[schema.StreamEvent]:
        """Return the events of a piece of the reply, possibly none: responses have no tools of the server."""
        match piece:
            case TextPiece():
                return self._numbered(self._text(piece.text, piece.logprobs))
            case ReasoningPiece():
                return self._numbered(self._reasoning(piece.text))
            case ToolCall():
                return self._numbered([*self._close("completed"), *self._call(piece)])
            case ServerToolCall():
                return []

    def end(self, done: Done, model: str, now: int) -> list[schema.StreamEvent]:
        """Return the last events. `now`: Unix seconds."""
        events = list(self._close("completed" if done.reason in _WHOLE else "incomplete"))
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
        events = list(self._close("incomplete"))
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
        item = call_item(call, f"fc_{self._name}_{index}", self._namespaces)
        begun = msgspec.structs.replace(item, status="in_progress", arguments="")
        yield schema.ItemAdded(output_index=index, item=begun)
        yield schema.ArgumentsDelta(item_id=item.id, output_index=index, delta=call.arguments)
        yield schema.ArgumentsDone(
            item_id=item.id, output_index=index, name=item.name, arguments=call.arguments
        )
        self._done.append(item)
        yield schema.ItemDone(output_index=index, item=item)

    def _numbered(
        self, events: Iterator[schema.StreamEvent] | Sequence[schema.StreamEvent]
    ) -> list[schema.StreamEvent]:
        numbered: list[schema.StreamEvent] = [
            msgspec.structs.replace(event, sequence_number=number)
            for number, event in enumerate(events, self._next)
        ]
        self._next += len(numbered)
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


def _tools(given: Sequence[parser.Tool]) -> Iterator[schema.FunctionTool | schema.NamespaceTool]:
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

    `namespaces`: as in `call_item`.
    """

    response: schema.Response
    system: str = ""
    namespaces: dict[str, str] = {}


decode_note = msgspec.json.Decoder(ResponseNote).decode


def items_of(
    record: MessageRecord, conversation_id: str, namespaces: Mapping[str, str] = MappingProxyType({})
) -> list[ItemWithImages]:
    """Return the items of a conversation's message, always with the same ids. An empty reply has none."""
    name = ResponseRef(conversation_id, record.turn_id).name
    if record.role == "user":
        return [(_user_message(record, f"msg_{name}_in"), record.images)]
    outputs = [
        schema.FunctionCallOutput(
            id=f"fco_{name}_{call.index}", call_id=call.call_id, output=result_text(call)
        )
        for call in record.calls
        if call.state.is_settled
    ]
    return [(item, ()) for item in (*output_of(record, name, namespaces), *outputs)]


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
        msgspec.structs.replace(part, image_url=image.url if (image := next(left)).data else None)
        if isinstance(part, schema.InputImage)
        else part
        for part in item.content
    )
    return msgspec.structs.replace(item, content=content)


def output_of(
    reply: MessageRecord,
    name: str,
    namespaces: Mapping[str, str],
    status: schema.ItemStatus = "completed",
) -> tuple[schema.Output, ...]:
    """Return the items of an ended reply, as they were sent: reasoning, text, calls."""
    items: list[schema.Output] = []
    if reply.reasoning:
        content = (schema.ReasoningText(reply.reasoning),)
        items.append(schema.ReasoningItem(id=f"rs_{name}_0", status="completed", content=content))
    if reply.content:
        text = (schema.OutputText(reply.content),)
        items.append(schema.Message(id=f"msg_{name}_{len(items)}", status=status, content=text))
    calls = enumerate(map(as_written, reply.calls), len(items))
    items += [call_item(call, f"fc_{name}_{number}", namespaces) for number, call in calls]
    return tuple(items)


def resource_of(turn: StoredTurn, note: ResponseNote, name: str) -> schema.Response:
    """Return a stored response in its current state."""
    if (done := turn.record.done) is None or turn.reply is None:
        return note.response
    status: schema.ItemStatus = "completed" if done.reason in _WHOLE else "incomplete"
    return ended_response(
        note.response,
        done,
        output_of(turn.reply, name, note.namespaces, status),
        model=done.model or turn.record.writer or note.response.model,
        now=note.response.created_at + round(done.timing.total_ms / 1000),
    )
