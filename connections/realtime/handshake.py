"""The handshake of a client: its URL's query, its subprotocols, and a key in one of those. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

import msgspec

from connections.protocol.errors import BadParams, validation_problem
from connections.protocol.frames import Name

SUBPROTOCOL = "realtime"
_KEY = "openai-insecure-api-key."
"""Begins the subprotocol with a browser's key: browsers can't set headers."""
_UNSUPPORTED_FIELDS = {
    "call_id": "is of telephone calls, which this server does not take.",
}
TRANSCRIPTION = "transcription"
"""The `intent` of a session that only transcribes."""
_NO_HISTORY = "names a part of a conversation, and a transcription session has none: leave it out."


class HandshakeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`model`: None: the default; `has_conversation`: the client named its conversation; `after`: the last item that it has.

    `transcribes`: the session only transcribes.
    """

    model: str | None
    conversation_id: str
    has_conversation: bool
    client_id: str | None
    after: str | None
    key: str | None
    subprotocol: str | None
    transcribes: bool = False


def parse_handshake(query: Mapping[str, str], subprotocols: Sequence[str]) -> HandshakeRequest:
    """Return what a client requests. Raises BadParams."""
    for field, why in _UNSUPPORTED_FIELDS.items():
        if field in query:
            raise BadParams(why, field=field)
    if (intent := query.get("intent")) not in (None, TRANSCRIPTION):
        raise BadParams(f"must be {TRANSCRIPTION}, or left out.", field="intent")
    for field in ("conversation_id", "after"):
        if intent is not None and field in query:
            raise BadParams(_NO_HISTORY, field=field)
    conversation_id = _name(query, "conversation_id")
    return HandshakeRequest(
        model=query.get("model"),
        conversation_id=conversation_id or f"conv_{secrets.token_hex(12)}",
        has_conversation=conversation_id is not None,
        client_id=_name(query, "client_id"),
        after=query.get("after"),
        key=next((one.removeprefix(_KEY) for one in subprotocols if one.startswith(_KEY)), None),
        subprotocol=SUBPROTOCOL if SUBPROTOCOL in subprotocols else None,
        transcribes=intent is not None,
    )


def _name(query: Mapping[str, str], field: str) -> str | None:
    if (value := query.get(field)) is None:
        return None
    try:
        return msgspec.convert(value, Name)
    except msgspec.ValidationError as error:
        raise BadParams(validation_problem(error).why, field=field) from None
