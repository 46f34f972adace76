"""The handshake of a client: its URL's query, its subprotocols, and a key in one of those. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

import msgspec

from connections.wire.errors import BadParams
from connections.wire.frames import Name
from connections.wire.sentences import complaint

SUBPROTOCOL = "realtime"
_KEY = "openai-insecure-api-key."
"""Begins the subprotocol with a browser's key: browsers can't set headers."""
_UNSERVED = {
    "call_id": "is of telephone calls, which this server does not take.",
}
TRANSCRIPTION = "transcription"
"""The `intent` of a session that only transcribes."""
_NOTHING_KEPT = "names a part of a conversation, and a transcription session has none: leave it out."


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """`model`: None: the default; `known`: the client named its conversation; `after`: the last item that it has.

    `transcribes`: the session only transcribes.
    """

    model: str | None
    conversation_id: str
    known: bool
    client_id: str | None
    after: str | None
    key: str | None
    subprotocol: str | None
    transcribes: bool = False


def arrival(query: Mapping[str, str], offered: Sequence[str]) -> Arrival:
    """Return what a client requests. Raises BadParams."""
    for field, why in _UNSERVED.items():
        if field in query:
            raise BadParams(why, field=field)
    if (intent := query.get("intent")) not in (None, TRANSCRIPTION):
        raise BadParams(f"must be {TRANSCRIPTION}, or left out.", field="intent")
    for field in ("conversation_id", "after"):
        if intent is not None and field in query:
            raise BadParams(_NOTHING_KEPT, field=field)
    conversation_id = _name(query, "conversation_id")
    return Arrival(
        model=query.get("model"),
        conversation_id=conversation_id or f"conv_{secrets.token_hex(12)}",
        known=conversation_id is not None,
        client_id=_name(query, "client_id"),
        after=query.get("after"),
        key=next((one.removeprefix(_KEY) for one in offered if one.startswith(_KEY)), None),
        subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None,
        transcribes=intent is not None,
    )


def _name(query: Mapping[str, str], field: str) -> str | None:
    if (value := query.get(field)) is None:
        return None
    try:
        return msgspec.convert(value, Name)
    except msgspec.ValidationError as error:
        raise BadParams(complaint(error).why, field=field) from None
