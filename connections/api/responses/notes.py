"""What is stored with a response's turn: its place, how it was requested, and what can be stored at all. Pure."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

import msgspec

from connections.api.chat_requests import MAX_TOOLS
from connections.api.errors import Problem, invalid
from connections.api.fields import is_conversation_id
from connections.api.responses import schema
from connections.api.responses.encoder import (
    ServerToolItems,
    ToolLabels,
    approval_id,
    approval_item,
    call_item,
    ended_response,
    initial_response,
)
from connections.api.responses.parser import Creation, Item, call_id_in, includes_logprobs
from connections.api.responses.schema import McpApprovalResponse, McpItem
from connections.api.stored_replies import ServerToolCall, sum_usage
from connections.protocol.errors import field_message
from connections.protocol.params import MAX_SYSTEM_CHARS
from engine.messages import Message, Params, ReplySpec, ToolCall
from engine.vision.image import Image, in_order, together
from sessions.conversation.history_page import StoredTurn
from sessions.events import CallState, Reason, Usage
from sessions.records import CallRecord, MessageRecord, digest
from sessions.turn.message_request import GenerationConfig, OfferedTool
from sessions.turn.tool_calls import CallAnswer, Decision, Result, as_written, result_text

IMPLICIT_PREFIX = "response-"
"""Begins the id of a conversation that this endpoint began, without a name from a client."""
CREATED_PREFIX = "conv_"
"""Begins the id of a conversation that a client created, and that exists before its first message."""
_KEPT = re.compile(r"resp_([A-Za-z0-9_-]{1,64})\.(.{1,128})\Z", re.DOTALL)
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
ItemWithImages = tuple[schema.InputItem, tuple[Image, ...]]
encode_note = msgspec.json.Encoder().encode
APPROVAL_RESPONSE = "mcp_approval_response"
_SETTLED_REASONS = {
    CallState.DENIED: "was answered before: the call was denied. Continue from the response that followed.",
    CallState.EXPIRED: "was not answered in time. The call was not carried out, and the conversation went on.",
    CallState.CANCELLED: "is of a call that was cancelled. It was not carried out.",
}
_ALLOWED = "was answered before: the call was allowed. Continue from the response that followed."


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

    `labels`: of the servers of tools, by the tools' names; `before`: items that it begins with.
    """

    response: schema.Response
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


def has_same_settings(request: Creation, previous: schema.Response, *, answers_approvals: bool) -> bool:
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
    """Return a user's item with its images, as far as their bytes are there."""
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


def split_approvals(given: str | Sequence[Item]) -> tuple[str | list[Item], list[tuple[int, Item]]]:
    """Separate an input from its answers to approvals, with their places. Answers next to their calls are history."""
    if isinstance(given, str):
        return given, []
    ran = {call_id_in(item.id or "") for item in given if item.type == "mcp_call"}
    answers = [
        (number, item)
        for number, item in enumerate(given)
        if item.type == APPROVAL_RESPONSE and call_id_in(item.approval_request_id or "") not in ran
    ]
    places = {number for number, _ in answers}
    return [item for number, item in enumerate(given) if number not in places], answers


def approval_decisions(
    answers: Sequence[tuple[int, Item]], ref: ResponseRef | None, calls: Sequence[CallRecord]
) -> tuple[Decision, ...]:
    """Return the decisions. `ref`: of the continued response; `calls`: those that it ended with. Raises Problem."""
    decisions: dict[str, Decision] = {}
    for number, item in answers:
        decision = _decision(item, f"input[{number}]", ref, calls)
        if decision.call_id in decisions:
            field = f"input[{number}].approval_request_id"
            raise invalid(field, field_message(field, "is answered twice."))
        decisions[decision.call_id] = decision
    return tuple(decisions.values())


def _decision(item: Item, where: str, ref: ResponseRef | None, calls: Sequence[CallRecord]) -> Decision:
    field = f"{where}.approval_request_id"
    named = item.approval_request_id or ""
    call_id = call_id_in(named)
    found = next((call for call in calls if call.call_id == call_id and needs_approval(call)), None)
    if found is None or ref is None or ref_of_item(named) != ref:
        why = "names no approval that the response before this one asks for: send that as `previous_response_id`."
        raise invalid(field, field_message(field, why), code="approval_not_found")
    shown = named.rpartition("-")[2]
    if shown != digest(found.args):
        raise invalid(
            field, field_message(field, "is of other arguments than the call has."), code="approval_not_found"
        )
    if item.approve is None:
        raise invalid(f"{where}.approve", field_message(f"{where}.approve", "must be true or false."))
    if found.state is not CallState.WAITING:
        why = field_message(field, _SETTLED_REASONS.get(found.state, _ALLOWED))
        raise Problem(409, why, code=_code(found.state), param=field)
    return Decision(call_id=found.call_id, args_sha256=shown, allow=item.approve)


def _code(state: CallState) -> str:
    return "approval_expired" if state is CallState.EXPIRED else "approval_answered"
