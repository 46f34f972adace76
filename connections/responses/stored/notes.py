"""The note that is stored with a response's turn, and what can be stored: how it was requested, and its place. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from connections.openai.requests.tools import MAX_TOOLS
from connections.protocol.params import MAX_SYSTEM_CHARS
from connections.replies.server_tool_calls import ServerToolCall
from connections.replies.stored_reply import sum_usage
from connections.responses.output import wire
from connections.responses.output.encoder import ServerToolItems, ended_response
from connections.responses.output.mcp_items import ToolLabels, approval_id, approval_item, call_item
from connections.responses.output.mcp_wire import McpApprovalResponse, McpItem
from connections.responses.output.response_fields import initial_response
from connections.responses.requests.models import Creation
from connections.responses.requests.parser import includes_logprobs
from connections.responses.stored.ids import ResponseRef
from engine.messages import Message, Params, ToolCall
from engine.reply_spec import ReplySpec
from engine.vision.image import Image, in_order, together
from sessions.conversation.stored_turns import StoredTurn
from sessions.events import CallState, Reason, Usage
from sessions.records import CallRecord, MessageRecord
from sessions.turn.message_request import GenerationConfig, OfferedTool
from sessions.turn.tool_calls import CallAnswer, Decision, Result, as_written, result_text

SEPARATOR = "\n\n"
MAX_NOTE_BYTES = 256 * 1024
_GENERATION_FIELDS = (
    "instructions",
    "tools",
    "text",
    "reasoning",
    "max_output_tokens",
    "temperature",
    "top_p",
    "truncation",
)


class ResponseNote(msgspec.Struct, frozen=True):
    """How a response was requested. `system`: the system messages in its conversation's inputs, from the beginning.

    `labels`: of the servers of tools, by the tools' names; `before`: items that it begins with.
    """

    response: wire.Response
    system: str = ""
    labels: ToolLabels = ToolLabels()
    before: tuple[McpItem, ...] = ()

    @property
    def calls(self) -> ServerToolItems:
        """What it shows of server tools."""
        return ServerToolItems(self.labels, self.before)


class CallAnswers(msgspec.Struct, frozen=True):
    """Answers to calls: results, and decisions. `same_settings`: the reply after them is generated as the one that called."""

    answers: tuple[CallAnswer, ...]
    same_settings: bool = True


class UserInput(msgspec.Struct, frozen=True):
    """What a user says and shows, and the system text from now on."""

    content: str
    system: str
    images: tuple[Image, ...] = ()


Input = UserInput | CallAnswers
ItemWithImages = tuple[wire.InputItem, tuple[Image, ...]]

encode_note = msgspec.json.Encoder().encode
decode_note = msgspec.json.Decoder(ResponseNote).decode


def storable_input(
    request: Creation,
    given: Sequence[Message],
    before: ResponseNote | None,
    open_calls: Sequence[CallRecord],
    decisions: Sequence[Decision] = (),
) -> Input | None:
    """Return an input as a conversation's next message, or as answers to its calls. None: it can't be stored.

    A conversation has what its user and its model said in turn. There is no place for a reply from a client.
    """
    is_one_by_one = bool(request.tools) and request.parallel_tool_calls is False
    if request.store is False or includes_logprobs(request) or is_one_by_one:
        return None
    roles = {message.role for message in given}
    named = [before.system if before is not None else ""]
    if len(system_of(request, UserInput("", named[0]))) > MAX_SYSTEM_CHARS:
        return None
    if open_calls:
        results = [Result(call_id=message.call_id, content=message.content) for message in given]
        answers: tuple[CallAnswer, ...] = (*decisions, *results)
        is_all = {answer.call_id for answer in answers} == {call.call_id for call in open_calls}
        return CallAnswers(answers) if roles <= {"tool"} and is_all else None
    if not roles <= {"user", "system"} or "user" not in roles:
        return None
    user_parts = [(message.content, message.images) for message in given if message.role == "user"]
    content, images = together(user_parts, SEPARATOR)
    named += [message.content for message in given if message.role == "system"]
    user_input = UserInput(content, SEPARATOR.join(text for text in named if text), images)
    if "\0" in content or not (content or images) or len(system_of(request, user_input)) > MAX_SYSTEM_CHARS:
        return None
    return user_input


def system_of(request: Creation, user_input: UserInput) -> str:
    """Return what the model reads first; the instructions are for one response only."""
    return SEPARATOR.join(text for text in (request.instructions or "", user_input.system) if text)


def generation_of(
    request: Creation,
    user_input: UserInput,
    params: Params,
    spec: ReplySpec,
    servers: Sequence[OfferedTool] = (),
) -> GenerationConfig:
    """Return how to generate a stored turn's reply. `servers`: those of its server tools."""
    run_here = {offered.tool.name: offered for offered in servers}
    return GenerationConfig(
        params,
        system_of(request, user_input),
        tools=tuple(run_here.get(tool.name) or OfferedTool(tool=tool) for tool in spec.tools[:MAX_TOOLS]),
        tool_choice=spec.tool_name if spec.tool_choice == "named" else spec.tool_choice,
        format=spec.format,
        reasoning=spec.reasoning,
        paces_thoughts=True,
        keeps_all=request.truncation != "auto",
        user=request.cached_for,
    )


def has_same_settings(request: Creation, previous: wire.Response, *, answers_approvals: bool) -> bool:
    """Return whether a request wants the reply after calls generated as the one that called.

    `answers_approvals`: the request answers approvals, so all that it leaves out is as before.
    """
    if not answers_approvals and request.model != previous.model:
        return False
    new = initial_response(request, response_id="", model="", created=0)
    plain = initial_response(Creation(model=""), response_id="", model="", created=0)
    for field_name in _GENERATION_FIELDS if answers_approvals else (*_GENERATION_FIELDS, "tool_choice"):
        here = encode_note(getattr(new, field_name))
        is_left_out = answers_approvals and here == encode_note(getattr(plain, field_name))
        if not is_left_out and here != encode_note(getattr(previous, field_name)):
            return False
    return True


def needs_approval(call: CallRecord) -> bool:
    """Return whether a server tool's call needed an approval."""
    return call.where == "server" and call.needs == "approval"


def continues_automatically(turn: StoredTurn) -> bool:
    """Return whether another turn follows by itself, since the server runs all of its calls."""
    done, reply = turn.record.done, turn.reply
    if done is None or reply is None or done.reason is not Reason.TOOLS or not reply.calls:
        return False
    return all(call.where == "server" and call.needs == "none" for call in reply.calls)


def pending_calls(kept: StoredTurn) -> tuple[CallRecord, ...]:
    """Return the calls of a turn that wait for its client."""
    calls = () if kept.reply is None else kept.reply.calls
    return tuple(
        call
        for call in calls
        if (needs_approval(call) and call.state is CallState.WAITING)
        or (call.where == "client" and not call.state.is_settled)
    )


def model_messages(path: Sequence[MessageRecord], note: ResponseNote) -> tuple[Message, ...]:
    """Return the messages of a path for a model; results of open calls are still missing."""
    messages = [Message("system", note.system)] if note.system else []
    for record in path:
        calls = tuple(map(as_written, record.calls))
        if record.role == "user" or record.content or calls:
            message = Message(
                record.role, record.content, reasoning=record.reasoning, calls=calls, images=record.images
            )
            messages.append(message)
        messages += [
            Message("tool", result_text(call), call_id=call.call_id)
            for call in record.calls
            if call.state.is_settled
        ]
    return tuple(messages)


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
    """Return the items of a message of a conversation, whose ids stay the same. An empty reply has none."""
    name = ResponseRef(conversation_id, record.turn_id).name
    if record.role == "user":
        return [(_user_message(record, f"msg_{name}_in"), record.images)]
    items = [(item, ()) for item in output_of(record, name, ToolLabels())]
    return [*items, *((_outcome_item(call, name), ()) for call in record.calls if _has_outcome_item(call))]


def _user_message(record: MessageRecord, item_id: str) -> wire.Message:
    parts = in_order(record.content, record.images)
    content = tuple(
        wire.InputText(part) if isinstance(part, str) else wire.InputImage(None, part.detail or "auto")
        for part in parts
    )
    return wire.Message(
        id=item_id, status="completed", role="user", content=content or (wire.InputText(record.content),)
    )


def with_images(item: wire.InputItem, images: Sequence[Image]) -> wire.InputItem:
    """Return a user's item with its images, as far as their bytes are there."""
    if not isinstance(item, wire.Message):
        return item
    left = iter(images)
    content = tuple(
        msgspec.structs.replace(part, image_url=_url(next(left)))
        if isinstance(part, wire.InputImage)
        else part
        for part in item.content
    )
    return msgspec.structs.replace(item, content=content)


def _url(image: Image) -> str | None:
    return image.url if image.data else None


def _has_outcome_item(call: CallRecord) -> bool:
    """Return whether the outcome of a call is an item of its own."""
    return call.state.is_settled and (call.where == "client" or needs_approval(call))


def _outcome_item(call: CallRecord, named: str) -> wire.InputItem:
    if needs_approval(call):
        return McpApprovalResponse(
            id=f"mcpa_{named}_{call.index}",
            approval_request_id=approval_id(ServerToolCall.for_approval(call), named),
            approve=call.state not in (CallState.DENIED, CallState.EXPIRED, CallState.CANCELLED),
        )
    return wire.FunctionCallOutput(
        id=f"fco_{named}_{call.index}", call_id=call.call_id, output=result_text(call)
    )


def output_of(
    reply: MessageRecord,
    name: str,
    labels: ToolLabels,
    status: wire.ItemStatus = "completed",
    *,
    first: int = 0,
    is_over: bool = True,
) -> tuple[wire.Output, ...]:
    """Return the items of an ended reply, as they were sent: reasoning, text, calls. `first`: how many come before."""
    items: list[wire.Output] = []

    def named(kind: str) -> str:
        return f"{kind}_{name}_{first + len(items)}"

    if reply.reasoning:
        content = (wire.ReasoningText(reply.reasoning),)
        items.append(wire.ReasoningItem(id=named("rs"), status="completed", content=content))
    if reply.content:
        text = (wire.OutputText(reply.content),)
        items.append(wire.Message(id=named("msg"), status=status, content=text))
    for call in reply.calls:
        if needs_approval(call):
            items.append(approval_item(ServerToolCall.for_approval(call), name, labels))
        elif call.where == "server":
            items.append(call_item(ServerToolCall.kept(call), name, labels, is_cut=is_over))
        else:
            items.append(labels.call(ToolCall(call.call_id, call.name, call.args), named("fc")))
    return tuple(items)


def resource_of(turns: Sequence[StoredTurn], note: ResponseNote, name: str, *, waits: bool) -> wire.Response:
    """Return a stored response in its current state. `waits`: another turn of it will follow."""
    done, reply = turns[-1].record.done, turns[-1].reply
    if waits or done is None or reply is None:
        return note.response
    items: list[wire.Output] = list(note.before)
    usage: Usage | None = None
    for turn in turns:
        if (end := turn.record.done) is None or turn.reply is None:
            continue
        is_whole = end.reason in (Reason.STOP, Reason.TOOLS)
        status: wire.ItemStatus = "completed" if is_whole else "incomplete"
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
