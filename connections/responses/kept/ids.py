"""What a response is called: its turn, and the conversation that keeps it, where one does. Clients take a name as it is. Pure."""

from __future__ import annotations

import re
import secrets

import msgspec

from connections.wire.frames import Name

BEGUN_HERE = "response-"
"""Begins the id of a conversation that this door began: nobody gave it a name."""
_KEPT = re.compile(r"resp_([A-Za-z0-9_-]{1,64})\.(.{1,128})\Z", re.DOTALL)


class Place(msgspec.Struct, frozen=True):
    """Where a response is kept."""

    conversation_id: str
    turn_id: str

    @property
    def name(self) -> str:
        """What ids of the response and its items have in common."""
        return f"{self.turn_id.removeprefix('turn_')}.{self.conversation_id}"

    @property
    def response_id(self) -> str:
        """The response's id."""
        return f"resp_{self.name}"


def place_of(response_id: str) -> Place | None:
    """Where a response is kept; None where its name says that it is not."""
    if (found := _KEPT.match(response_id)) is None or not is_name(found[2]):
        return None
    return Place(found[2], f"turn_{found[1]}")


def place_of_item(item_id: str) -> Place | None:
    """Where the response is kept that an item belongs to; None where none is."""
    _, _, name = item_id.partition("_")
    return place_of(f"resp_{name.rpartition('_')[0]}")


def new_conversation() -> str:
    """A name for a conversation."""
    return f"{BEGUN_HERE}{secrets.token_hex(10)}"


def is_name(text: str) -> bool:
    """Whether a conversation can be called so."""
    try:
        msgspec.convert(text, Name)
    except msgspec.ValidationError:
        return False
    return True
