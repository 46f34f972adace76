"""Reads the query of a request's URL. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from connections.protocol.errors import BadParams, validation_problem
from connections.protocol.frames import Name

_DERIVED_CLIENT_ID = re.compile(r"/(openai|ai-sdk)(/[A-Za-z0-9._:-]{1,128}){0,2}")
"""Client ids that endpoints derive from a key, a token or a conversation, if the request names none."""


def parse_client_id(value: str) -> str:
    """Return the client id that a request names, its own or one that an endpoint derived. Raises BadParams."""
    return value if _DERIVED_CLIENT_ID.fullmatch(value) else parse_id("client_id", value)


def parse_id(field: str, value: str) -> str:
    """Return a valid id. Raises BadParams."""
    try:
        return msgspec.convert(value, Name)
    except msgspec.ValidationError as error:
        raise BadParams(validation_problem(error).why, field=field) from None


def optional_id(query: Mapping[str, str], field: str) -> str | None:
    """Return a valid id from a query; None if it is left out. Raises BadParams."""
    return None if (value := query.get(field)) is None else parse_id(field, value)
