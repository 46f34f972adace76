"""Reads calls from the JSON that a model wrote. It is checked in one pass, and arguments keep their spelling."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeVar

import msgspec

from engine.parsing.formats import CallRegion, Read
from engine.reply_spec import Tool
from engine.text.pieces import Call

T = TypeVar("T")

LONGEST_NAME = 256
"""The most characters of a tool's name."""

_RAW_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECT = msgspec.json.Decoder(dict[str, object])
_NAME = msgspec.json.Decoder(str)


def json_calls(*keys: str) -> Read:
    """Return a function that reads calls in JSON: an object, or a list of them. `keys`: the names that arguments may have.

    If the opening of the region names the call, the object is its arguments.
    """
    return partial(_read, keys=keys)


def is_object(text: str) -> bool:
    """Return whether a text is a JSON object (RFC 8259)."""
    try:
        _OBJECT.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return False
    return True


def _read(found: CallRegion, _tools: Sequence[Tool], keys: Sequence[str]) -> tuple[Call, ...]:
    inside = found.inside.strip()
    if found.name is not None:
        return (call(found.name, inside),)
    if not inside.startswith("["):
        return (_call_of(inside, keys),)
    calls = tuple(_call_of(bytes(each).decode(), keys) for each in _decoded(_RAW_LIST, inside))
    if not calls:
        raise ValueError("the list of calls is empty")
    return calls


def call(name: str, arguments: str) -> Call:
    """Return a call. Raises ValueError if its name is empty or too long, or its arguments are no JSON object."""
    if not 0 < len(name) <= LONGEST_NAME:
        raise ValueError(f"a call needs a name of at most {LONGEST_NAME} characters")
    if not is_object(arguments):
        raise ValueError("the arguments are no JSON object")
    return Call(name, arguments)


def _call_of(text: str, keys: Sequence[str]) -> Call:
    members = _decoded(_RAW_OBJECT, text)
    arguments = next((members[key] for key in keys if key in members), None)
    if arguments is None or "name" not in members:
        raise ValueError("a call needs a name and arguments")
    return call(_decoded(_NAME, members["name"]), bytes(arguments).decode())


def _decoded(decoder: msgspec.json.Decoder[T], text: str | msgspec.Raw) -> T:
    """Decode. Raises ValueError."""
    try:
        return decoder.decode(text)
    except (RecursionError, UnicodeEncodeError) as error:
        raise ValueError(str(error)) from error
