"""Refusals of this layer, and what ends a connection; texts for msgspec's errors.

Refused (sessions/errors.py)
├── BadFrame        the frame violates the protocol; the connection stays open
├── BadParams       the request asks for something impossible; the connection stays open
└── Unauthenticated   the token is not valid; the connection ends
InvalidList         an operator's list (of keys, origins) can't be used
Close               the connection ends with a code from `CloseCode`
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import TypeVar

import msgspec

from sessions.errors import BadParams as ImpossibleParams
from sessions.errors import Refused

_E = TypeVar("_E", bound=Exception)
_MESSAGE_CHARS = 300


class CloseCode(IntEnum):
    """Why a connection ends. PROTOCOL.md says after which codes clients reconnect."""

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


class BadFrame(Refused):
    """The sender's frame violates the protocol. `ref`: the frame's, if it could be read."""

    code = "bad_frame"

    def __init__(self, message: str, *, ref: str | None = None) -> None:
        super().__init__(shorten(message))
        self.ref = ref


class BadParams(ImpossibleParams):
    """The same, found by this layer. `why`: the text after the name of the field, if there is one."""

    def __init__(self, why: str, *, field: str | None = None) -> None:
        super().__init__(shorten(field_message(field, why) if field else why), field=field)
        self.why = why


class InvalidList(Exception):
    """A list can't be used. The message is for the operator, without secrets."""


class Unauthenticated(Refused):
    """The token identifies nobody. The message is for the client, `why` for the log; neither quotes the token."""

    code = "unauthenticated"

    def __init__(self, message: str = "The token is not valid.", *, why: str) -> None:
        super().__init__(message)
        self.why = why


class Close(Exception):
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


_PATH = re.compile(r" - at `(?:key in )?\$\.?(.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(.*)`$", re.DOTALL)
_TYPE = re.compile(r"^Expected `([^`]*)`, got `[^`]*`$")
_LENGTH = re.compile(r"^Expected `(\w+)` of length (<=|>=) (\d+)$")
_RANGE = re.compile(r"^Expected `\w+` (<=|>=|<|>) (\S+)$")
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
_MEMBERS = {"str": "characters", "array": "items", "object": "fields"}
_ENDS = {"<=": "at most {}", ">=": "at least {}", "<": "less than {}", ">": "more than {}"}
_NAME = "[A-Za-z0-9._:-]"
"""The start of the only pattern that strings are checked against."""


class ValidationProblem(msgspec.Struct, frozen=True, kw_only=True):
    """`field`: the wrong field; None: the whole value; `why` follows its name."""

    field: str | None
    why: str
    is_missing: bool = False

    def full_message(self, *, whole: str) -> str:
        """Return the sentence. `whole`: the name of the value if no field is wrong."""
        return field_message(self.field, self.why) if self.field else f"{whole} {self.why}"


def validation_problem(error: msgspec.ValidationError) -> ValidationProblem:
    """Return what is wrong with an invalid value."""
    text = str(error)
    path = _PATH.search(text)
    what, field = (text, "") if path is None else (text[: path.start()], path[1])
    if missing := _MISSING.match(what):
        return ValidationProblem(
            field=f"{field}.{missing[1]}" if field else missing[1], why="is missing.", is_missing=True
        )
    return ValidationProblem(field=field or None, why=_why(what))


def field_message(field: str, why: str) -> str:
    """Return a sentence about a field."""
    return f"`{field}` {why}"


def _why(what: str) -> str:
    """Return the text after the name of the field."""
    if wrong := _TYPE.match(what):
        types = [_TYPES[name] for name in wrong[1].split(" | ") if name in _TYPES]
        return f"must be {' or '.join(types)}." if types else "has an unsupported type."
    if wrong := _LENGTH.match(what):
        many = _ENDS[wrong[2]].format(wrong[3])
        return f"must have {many} {_MEMBERS.get(wrong[1], 'members')}."
    if wrong := _RANGE.match(what):
        return f"must be {_ENDS[wrong[1]].format(wrong[2])}."
    if _NAME in what:
        return "may contain only letters, digits, and . _ : -"
    if "out of range" in what:
        return "is out of range."
    return "has an unknown value."
