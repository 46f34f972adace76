"""Refusals in the Realtime protocol's terms: a type, a code, and the field's name. Pure."""

from __future__ import annotations

import re

from connections.api.realtime.server_events import ErrorDetails, ErrorEvent
from connections.protocol.errors import field_message, shorten
from connections.protocol.frames import Error
from sessions.errors import Refused

_FIELD = re.compile(r"`([A-Za-z_]+(?:\.[A-Za-z_]+|\[(?:\d+|\.\.\.)\])*)`(: )?")
"""Begins a message about a field; before a colon it is not part of the sentence."""
_FIELDS = {
    "params.system": "response.instructions",
    "params.max_new_tokens": "response.max_output_tokens",
    "params.temperature": "response.temperature",
    "reasoning": "response.reasoning",
    "tools": "response.tools",
    "tool_choice": "response.tool_choice",
    "attachments": "item.content",
}
"""This endpoint's names of a turn's fields."""
_CODES = {
    "bad_frame": "invalid_event",
    "bad_params": "invalid_value",
    "busy": "conversation_already_has_active_response",
    "context_overflow": "context_length_exceeded",
    "rate_limited": "rate_limit_exceeded",
}
_TYPES = {
    "forbidden": "permission_error",
    "rate_limited": "rate_limit_error",
    "store_full": "rate_limit_error",
    "session_expired": "authentication_error",
    "unauthenticated": "authentication_error",
    "draining": "server_error",
    "engine_unavailable": "server_error",
    "events_lost": "server_error",
    "internal": "server_error",
    "overloaded": "server_error",
    "store_unavailable": "server_error",
}


class InvalidEvent(Refused):
    """An event that can't be carried out. `why` follows the name of the field, or is a whole sentence."""

    def __init__(self, why: str, *, field: str | None = None, code: str = "invalid_value") -> None:
        starts_anew = why[:1].isupper()
        named = why if field is None else f"`{field}`: {why}" if starts_anew else field_message(field, why)
        super().__init__(shorten(named))
        self.code = code  # type: ignore[misc]  # one class for all that this endpoint refuses by itself


def error_event(error: Error) -> ErrorEvent:
    """Return a refusal as an event."""
    message, param = _named(error.message)
    return ErrorEvent(
        error=ErrorDetails(
            type=type_of(error.code),
            code=code_of(error.code),
            message=message,
            param=param,
            event_id=error.ref,
        )
    )


def type_of(code: str) -> str:
    """Return the error's type, which says whose fault it is."""
    return _TYPES.get(code, "invalid_request_error")


def code_of(code: str) -> str:
    """Return the code that clients know."""
    return _CODES.get(code, code)


def _named(message: str) -> tuple[str, str | None]:
    found = _FIELD.match(message)
    if found is None:
        return message, None
    field, rest = _FIELDS.get(found[1], found[1]), message[found.end() :]
    return rest if found[2] else f"`{field}`{rest}", field
