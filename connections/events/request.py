"""Reads a request for an event stream: the conversation, and the position to resume from. Pure.

The `id` of an event is its epoch and its seq. EventSource sends the last one in `Last-Event-ID` when it comes back by
itself; a page that has to make a new one, because a ticket opens one stream, puts it into the query as `last_event_id`.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request

from connections.http.query_params import optional_id, parse_id
from connections.protocol.base import Features
from connections.protocol.errors import BadParams, validation_problem
from connections.protocol.frames import MAX_SEQ
from sessions.commands.resumption import ReaderPosition

UNKNOWN_POSITION = ReaderPosition("", 0)
"""A position that no conversation has: resuming from it gives a gap."""


class EventsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`position` None: the reader comes for the first time; `client_id` None: it gave none.

    `features`: what it understands beyond the base.
    """

    conversation_id: str
    client_id: str | None
    ticket: str | None
    position: ReaderPosition | None
    features: Features = ()


def parse_request(request: Request) -> EventsRequest:
    """Read a request. Raises BadParams."""
    query = request.query_params
    last = request.headers.get("last-event-id") or query.get("last_event_id")
    return EventsRequest(
        conversation_id=parse_id("conversation_id", request.path_params["conversation_id"]),
        client_id=optional_id(query, "client_id"),
        ticket=query.get("ticket"),
        position=position(last) if last else None,
        features=_features(query.get("features", "")),
    )


def event_id(epoch: str, seq: int) -> str:
    """Return the id of an event."""
    return f"{epoch}:{seq}"


def position(shown: str) -> ReaderPosition:
    """Return the position after the event of this id; NOWHERE for an unknown id."""
    epoch, _, digits = shown.rpartition(":")
    if not (epoch and digits.isascii() and digits.isdigit() and len(digits) <= len(str(MAX_SEQ))):
        return UNKNOWN_POSITION
    return ReaderPosition(epoch, min(int(digits), MAX_SEQ))


def _features(named: str) -> Features:
    """Read names that are separated by commas. Raises BadParams."""
    try:
        return msgspec.convert(tuple(filter(None, named.split(","))), Features)
    except msgspec.ValidationError as error:
        raise BadParams(validation_problem(error).why, field="features") from None
