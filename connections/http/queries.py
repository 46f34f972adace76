"""Reads the query of a request's URL. Pure."""

from __future__ import annotations

import re

import msgspec

from connections.wire.errors import BadParams
from connections.wire.frames import Name
from connections.wire.sentences import complaint

_MADE_UP = re.compile(r"/(openai|ai-sdk)(/[A-Za-z0-9._:-]{1,128}){0,2}")
"""Client ids that doors derive from a key, a token or a conversation, if the request names none."""


def client_named(value: str) -> str:
    """Return the client id that a request names, its own or one that a door derived. Raises BadParams."""
    return value if _MADE_UP.fullmatch(value) else name_of("client_id", value)


def name_of(field: str, value: str) -> str:
    """Return a valid id. Raises BadParams."""
    try:
        return msgspec.convert(value, Name)
    except msgspec.ValidationError as error:
        raise BadParams(complaint(error).why, field=field) from None
