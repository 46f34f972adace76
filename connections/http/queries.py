"""What stands in the URL of a request. Pure."""

from __future__ import annotations

import msgspec

from connections.wire.errors import BadParams
from connections.wire.frames import Name
from connections.wire.sentences import complaint


def name_of(field: str, value: str) -> str:
    """Return what something may be called by. Raises BadParams."""
    try:
        return msgspec.convert(value, Name)
    except msgspec.ValidationError as error:
        raise BadParams(complaint(error).why, field=field) from None
