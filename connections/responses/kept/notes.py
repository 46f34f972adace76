"""What is kept of a response beside its turn, and what can be: how it was asked for, and where it goes in a conversation. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from connections.openai.requests.tools import MAX_TOOLS
from connections.responses.answers import wire
from connections.responses.answers.resource import asked_for
from connections.responses.answers.telling import ended
from connections.responses.requests.asking import shows_logprobs
from connections.responses.requests.fields import Creation
from connections.wire.params import MAX_SYSTEM_CHARS
from engine.messages import Message, Params
from engine.reply_spec import ReplySpec
from sessions.conversation.kept import KeptTurn
from sessions.events import Reason
from sessions.records import MessageRecord
from sessions.turn.calls import as_written, read_as
from sessions.turn.sends import Generation, OfferedTool

BETWEEN = "\n\n"
MAX_NOTE_BYTES = 256 * 1024
_WISHES = (
    "instructions",
    "tools",
    "text",
    "reasoning",
    "max_output_tokens",
    "temperature",
    "top_p",
    "truncation",
)


class Note(msgspec.Struct, frozen=True):
    """How a response was asked for. `system`: what the input of its conversation said as system, from the beginning on."""

    response: wire.Response
    system: str = ""


class Outputs(msgspec.Struct, frozen=True):
    """What came of calls, by their ids."""

    by_call: dict[str, str]


class Said(msgspec.Struct, frozen=True):
    """What a user says, and what is to be read as system from now on."""

    content: str
    system: str


Input = Said | Outputs

encode_note = msgspec.json.Encoder().encode
decode_note = msgspec.json.Decoder(Note).decode


def fitting(
    request: Creation, given: Sequence[Message], before: Note | None, open_calls: Sequence[str]
) -> Input | None:
    """An input as a conversation's next message, or as what came of its calls. None: it can't be kept as such.

    A conversation is what its user and its model said in turn. What a client brings of a reply has no place in it.
    """
    is_one_by_one = bool(request.tools) and request.parallel_tool_calls is False
    if request.store is False or shows_logprobs(request) or is_one_by_one:
        return None
    roles = {message.role for message in given}
    if open_calls:
        outputs = {message.call_id: message.content for message in given}
        return Outputs(outputs) if roles == {"tool"} and set(outputs) == set(open_calls) else None
    has_images = any(message.images for message in given)
    if has_images or not roles <= {"user", "system"} or "user" not in roles:
        return None
    content = BETWEEN.join(message.content for message in given if message.role == "user")
    named = [before.system if before is not None else ""]
    named += [message.content for message in given if message.role == "system"]
    said = Said(content, BETWEEN.join(text for text in named if text))
    if "\0" in content or not content or len(system_of(request, said)) > MAX_SYSTEM_CHARS:
        return None
    return said


def system_of(request: Creation, said: Said) -> str:
    """What the model reads first: the instructions are for one response alone."""
    return BETWEEN.join(text for text in (request.instructions or "", said.system) if text)


def generation_of(request: Creation, said: Said, params: Params, spec: ReplySpec, model: str) -> Generation:
    """How the reply of a turn that is kept is made."""
    return Generation(
        params,
        system_of(request, said),
        model,
        tools=tuple(OfferedTool(tool=tool) for tool in spec.tools[:MAX_TOOLS]),
        tool_choice=spec.tool_name if spec.tool_choice == "named" else spec.tool_choice,
        format=spec.format,
        reasoning=spec.reasoning,
        paces_thoughts=True,
        keeps_all=request.truncation != "auto",
    )


def goes_on_alike(request: Creation, asked: wire.Response) -> bool:
    """Whether a request wants the reply behind calls to be made as the one was that called: it is a part of that."""
    new = asked_for(request, response_id="", model="", created=0)
    return all(encode_note(getattr(new, wish)) == encode_note(getattr(asked, wish)) for wish in _WISHES)


def open_in(kept: KeptTurn) -> tuple[str, ...]:
    """The calls of a response that wait for their outputs."""
    return tuple(call.call_id for call in kept.reply.calls if not call.state.is_settled) if kept.reply else ()


def read_in(path: Sequence[MessageRecord], note: Note) -> tuple[Message, ...]:
    """The messages of a path as a model reads them; what came of calls that are open is still to come."""
    messages = [Message("system", note.system)] if note.system else []
    for record in path:
        calls = tuple(map(as_written, record.calls))
        if record.role == "user" or record.content or calls:
            messages.append(Message(record.role, record.content, reasoning=record.reasoning, calls=calls))
        messages += [
            Message("tool", read_as(call), call_id=call.call_id)
            for call in record.calls
            if call.state.is_settled
        ]
    return tuple(messages)


def items_in(path: Sequence[MessageRecord], name: str) -> list[wire.FunctionCallOutput | wire.Output]:
    """The items of a path, the oldest first, but for the response at its end."""
    items: list[wire.FunctionCallOutput | wire.Output] = []
    for number, record in enumerate(path[:-1] if path and path[-1].role == "assistant" else path):
        if record.role == "user":
            content = (wire.InputText(record.content),)
            items.append(
                wire.Message(id=f"msg_{name}_in{number}", status="completed", role="user", content=content)
            )
        else:
            items += output_of(record, f"{name}_in{number}")
        items += [
            wire.FunctionCallOutput(
                id=f"fco_{name}_in{number}_{call.index}", call_id=call.call_id, output=read_as(call)
            )
            for call in record.calls
            if call.state.is_settled
        ]
    return items


def output_of(
    reply: MessageRecord, name: str, status: wire.ItemStatus = "completed"
) -> tuple[wire.Output, ...]:
    """The items of a reply that has ended, as they were told: thoughts, then text, then calls."""
    items: list[wire.Output] = []
    if reply.reasoning:
        content = (wire.ReasoningText(reply.reasoning),)
        items.append(wire.ReasoningItem(id=f"rs_{name}_{len(items)}", status="completed", content=content))
    if reply.content:
        text = (wire.OutputText(reply.content),)
        items.append(wire.Message(id=f"msg_{name}_{len(items)}", status=status, content=text))
    for call in reply.calls:
        item_id, args = f"fc_{name}_{len(items)}", call.args
        items.append(
            wire.FunctionCall(
                id=item_id, status="completed", call_id=call.call_id, name=call.name, arguments=args
            )
        )
    return tuple(items)


def resource_of(kept: KeptTurn, note: Note, name: str) -> wire.Response:
    """A kept response as it stands."""
    done, reply = kept.record.done, kept.reply
    if done is None or reply is None:
        return note.response
    is_whole = done.reason in (Reason.STOP, Reason.TOOLS)
    output = output_of(reply, name, "completed" if is_whole else "incomplete")
    seconds = note.response.created_at + round(done.timing.total_ms / 1000)
    return ended(
        note.response,
        done,
        output,
        model=done.model or kept.record.writer or note.response.model,
        now=seconds,
    )
