"""Ids of responses: they name the turn, and its conversation if it is stored. Clients use ids unchanged. Pure."""

from __future__ import annotations

import re
import secrets

import msgspec

from connections.protocol.frames import Name

IMPLICIT_PREFIX = "response-"
"""Begins the id of a conversation that this endpoint began, without a name from a client."""
CREATED_PREFIX = "conv_"
"""Begins the id of a conversation that a client created, and that exists before its first message."""
_KEPT = re.compile(r"resp_([A-Za-z0-9_-]{1,64})\.(.{1,128})\Z", re.DOTALL)


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
    if (found := _KEPT.match(response_id)) is None or not is_name(found[2]):
        return None
    return ResponseRef(found[2], f"turn_{found[1]}")


def ref_of_item(item_id: str) -> ResponseRef | None:
    """Return the place of the response that an item belongs to; None if it is not stored."""
    _, _, name = item_id.partition("_")
    return conversation_of(f"resp_{name.rpartition('_')[0]}")


def new_conversation(prefix: str = IMPLICIT_PREFIX) -> str:
    """Return an id for a conversation."""
    return f"{prefix}{secrets.token_hex(10)}"


def is_name(text: str) -> bool:
    """Return whether a conversation can have this id."""
    try:
        msgspec.convert(text, Name)
    except msgspec.ValidationError:
        return False
    return True
