"""Items that a client names instead of sending them, and inputs that repeat a stored response."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from connections.api.errors import Problem, invalid
from connections.protocol.server_info import Limits
from connections.responses.output import wire
from connections.responses.output.mcp_wire import McpApprovalRequest, McpCall, McpListTools
from connections.responses.requests.items import messages_of
from connections.responses.requests.models import Creation, Item, Part
from connections.responses.stored.ids import ResponseRef, ref_of_item
from connections.responses.stored.notes import SEPARATOR, resource_of
from connections.responses.stored.response_store import ResponseStore
from engine.messages import Message
from sessions.records import Owner

MAX_REFERENCED_RESPONSES = 64
"""Responses whose items one request may name."""
REFERENCE = "item_reference"


async def resolve_references(
    response_store: ResponseStore, owner: Owner, request: Creation, limits: Limits
) -> Creation:
    """Return the request with the items that it names.

    If its items up to the last one of a stored response are that response's conversation, it continues from there. So a
    client that repeats its conversation has one stored conversation. Raises Problem, StoreDown.
    """
    given = request.input
    if isinstance(given, str):
        return request
    items = await _items(response_store, owner, given)
    whole = msgspec.structs.replace(request, input=items)
    refs = [(number, ref) for number, item in enumerate(given) if (ref := ref_of_item(item.id or ""))]
    is_continuation = request.previous_response_id is not None or request.conversation is not None
    if not refs or is_continuation or request.store is False:
        return whole
    last, ref = refs[-1]
    end = _end_of_reply(items, last)
    kept = await response_store.find(owner, ref.response_id, with_path=True)
    beginning = messages_of(items[:end], limits)
    if kept is None or not kept.has_ended or not _same_conversation(beginning, kept.messages):
        return whole
    return msgspec.structs.replace(request, input=items[end:], previous_response_id=ref.response_id)


def _end_of_reply(items: Sequence[Item], last: int) -> int:
    """Return the end of the reply that an item belongs to: some clients send its calls without their ids."""
    end = last + 1
    while end < len(items) and items[end].type == "function_call":
        end += 1
    return end


async def _items(response_store: ResponseStore, owner: Owner, given: Sequence[Item]) -> list[Item]:
    """Return all items. Raises Problem, StoreDown."""
    known: dict[ResponseRef, dict[str, Item]] = {}
    items: list[Item] = []
    for number, item in enumerate(given):
        if item.type != REFERENCE:
            items.append(item)
            continue
        ref = ref_of_item(item.id or "")
        if ref is not None and ref not in known:
            known[ref] = await _stored_items(response_store, owner, ref)
        if len(known) > MAX_REFERENCED_RESPONSES:
            why = f"`input` may name items of {MAX_REFERENCED_RESPONSES} responses: send the others as they are."
            raise invalid("input", why)
        if ref is None or (found := known[ref].get(item.id or "")) is None:
            raise _unknown(f"input[{number}].id")
        items.append(found)
    return items


async def _stored_items(response_store: ResponseStore, owner: Owner, ref: ResponseRef) -> dict[str, Item]:
    """Return the items of a response, by their ids."""
    kept = await response_store.find(owner, ref.response_id)
    if kept is None:
        return {}
    output = resource_of(kept.turns, kept.note, ref.name, waits=kept.waits).output
    return {item.id: _input_item(item) for item in output}


def _input_item(item: wire.Output) -> Item:
    match item:
        case wire.Message():
            texts = [part for part in item.content if not isinstance(part, wire.InputImage)]
            parts = [Part("output_text", part.text) for part in texts]
            return Item("message", role="assistant", content=parts)
        case wire.ReasoningItem():
            parts = [Part("reasoning_text", part.text) for part in item.content]
            return Item("reasoning", content=parts)
        case wire.FunctionCall():
            return Item(
                "function_call",
                call_id=item.call_id,
                name=item.name,
                namespace=item.namespace or None,
                arguments=item.arguments,
            )
        case McpListTools():
            return Item("mcp_list_tools", id=item.id)
        case McpApprovalRequest():
            return Item("mcp_approval_request", id=item.id, name=item.name, arguments=item.arguments)
        case McpCall():
            return Item(
                "mcp_call",
                id=item.id,
                name=item.name,
                arguments=item.arguments,
                output=item.output,
                error=msgspec.Raw(msgspec.json.encode(item.error)),
            )


def _same_conversation(given: Sequence[Message], stored: Sequence[Message]) -> bool:
    """Return whether two conversations say the same; system messages count as one, at any place."""
    return _split_roles(given) == _split_roles(stored)


def _split_roles(messages: Sequence[Message]) -> tuple[str, list[Message], dict[str, str]]:
    """Return the system text, the messages in turn, and results of calls, by their ids.

    All that the model said until the user spoke again counts as one: items do not show which turn called.
    """
    system = SEPARATOR.join(one.content for one in messages if one.role == "system" and one.content)
    turns: list[list[Message]] = []
    for one in map(_normalized, messages):
        if one.role == "assistant" and turns and turns[-1][-1].role == "assistant":
            turns[-1].append(one)
        elif one.role in ("user", "assistant"):
            turns.append([one])
    return (
        system,
        list(map(_joined, turns)),
        {one.call_id: one.content for one in messages if one.role == "tool"},
    )


def _joined(messages: Sequence[Message]) -> Message:
    return msgspec.structs.replace(
        messages[0],
        content="".join(one.content for one in messages),
        reasoning="".join(one.reasoning for one in messages),
        calls=tuple(call for one in messages for call in one.calls),
    )


def _normalized(message: Message) -> Message:
    """Return a message with its calls' arguments in one spelling: clients parse them and write them anew.

    An image is known by its digest, and its place counts.
    """
    calls = tuple(
        msgspec.structs.replace(call, arguments=_normalized_json(call.arguments)) for call in message.calls
    )
    return msgspec.structs.replace(message.without_data(), calls=calls)


def _normalized_json(arguments: str) -> str:
    return msgspec.json.encode(msgspec.json.decode(arguments)).decode()


def _unknown(field: str) -> Problem:
    return invalid(field, "There is no such item, or it was not kept: send it as it is.", code="not_found")
