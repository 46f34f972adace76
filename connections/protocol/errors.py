"""Errors that end a request or a connection, and their names in the protocol.

ConnectionsError
├── BadFrame    this frame is answered by `error{bad_frame}`, the connection stays
├── BadParams   this frame is answered by `error{bad_params}`, the connection stays
├── InvalidList     a list of the operator (keys, origins) can't be used
├── Unauthenticated   the token is not valid: `error{unauthenticated}`, and the connection ends
└── Close       the connection ends with a code from `CloseCode`
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

from connections.protocol.validation_errors import field_message

_E = TypeVar("_E", bound=Exception)
_MESSAGE_CHARS = 300


class CloseCode(IntEnum):
    """Why a connection ends. Clients reconnect after 1011, 1012 and 1013."""

    BYE = 1000
    POLICY = 1008
    FRAME_TOO_LARGE = 1009
    INTERNAL = 1011
    DRAIN = 1012
    OVERLOAD = 1013
    UNAUTHENTICATED = 4401
    FORBIDDEN = 4403
    NO_HELLO = 4408
    TOO_MANY_CONNECTIONS = 4429


class ConnectionsError(Exception):
    """The root of the errors of this floor."""


class BadFrame(ConnectionsError):
    """The sender's frame violates the protocol. `ref`: if it could be read."""

    code = "bad_frame"

    def __init__(self, message: str, *, ref: str | None = None) -> None:
        super().__init__(shorten(message))
        self.ref = ref


class BadParams(ConnectionsError):
    """A well-formed frame requests something impossible. `why` follows the name of the field, if there is one."""

    code = "bad_params"

    def __init__(self, why: str, *, field: str | None = None) -> None:
        super().__init__(shorten(field_message(field, why) if field else why))
        self.field = field
        self.why = why


class InvalidList(ConnectionsError):
    """A list can't be used. The message is for the operator, without secrets."""


class Unauthenticated(ConnectionsError):
    """The token stands for nobody. The message is for the client, `why` for the log; neither quotes the token."""

    code = "unauthenticated"

    def __init__(self, message: str = "The token is not valid.", *, why: str) -> None:
        super().__init__(message)
        self.why = why


class Close(ConnectionsError):
    """Ends the connection."""

    def __init__(self, code: CloseCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def shorten(message: str) -> str:
    """Return a message of limited length, since it may repeat a part of the sender's text."""
    return message if len(message) <= _MESSAGE_CHARS else f"{message[:_MESSAGE_CHARS]}…"


def leaves(group: ExceptionGroup[_E]) -> list[_E]:
    """Return the exceptions in a group and in the groups within it."""
    return [
        leaf
        for one in group.exceptions
        for leaf in (leaves(one) if isinstance(one, ExceptionGroup) else [one])
    ]
