"""Calls of a reply, and their outcomes, as items. Pure."""

from __future__ import annotations

from connections.realtime.items import Item
from sessions.events import ShownCall, ToolCall


def item_id(turn_id: str) -> str:
    """Return the id of the item of a reply's text."""
    return f"item_{turn_id.removeprefix('turn_')}"


def call_of(call: ToolCall | ShownCall, turn_id: str, *, exchange: str) -> Item:
    """Return a complete call as an item of its turn's reply."""
    return Item(
        item_id=f"{item_id(turn_id)}_{call.index}",
        role="assistant",
        text=call.args,
        turn_id=turn_id,
        exchange=exchange,
        call_id=call.call_id,
        name=call.name,
        off=call.off,
    )


def outcome_of(call: Item, output: str) -> Item:
    """Return the outcome of a call that did not come from this session."""
    return Item(
        item_id=f"{call.item_id}_output",
        role="tool",
        text=output,
        turn_id=call.turn_id,
        exchange=call.exchange,
        message_id=call.message_id,
        call_id=call.call_id,
    )
