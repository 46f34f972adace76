"""The root of the events of a response's stream. Only a type."""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The root of a stream's events. `stream_id`: which of several on one WebSocket."""

    sequence_number: int = 0
    stream_id: str | msgspec.UnsetType = msgspec.UNSET
