"""What stands in the URL of a request. Pure."""

from __future__ import annotations

import re

import msgspec

from connections.wire.errors import BadParams
from connections.wire.frames import Name
from connections.wire.sentences import complaint

_MADE_UP = re.compile(r"/(openai|ai-sdk)(/[A-Za-z0-9._:-]{1,128}){0,2}")
"""Clients that doors name after a key, a token or a conversation, where these name none themselves."""


def client_named(value: str) -> str:
    """Return the client whose conversations are meant: one that gave its name, or that a door gave one. Raises BadParams."""
    return value if _MADE_UP.fullmatch(value) else name_of("client_id", value)


def name_of(field: str, value: str) -> str:
    """Return what something may be called by. Raises BadParams."""
    try:
        return msgspec.convert(value, Name)
    except msgspec.ValidationError as error:
        raise BadParams(complaint(error).why, field=field) from None
