"""What both doors of the AI SDK stand on: the service, who comes in to a chat, and whose conversation it is.

A person's chats are conversations of that person, on every device. Of an application's key, and where nobody is asked who
they are, the owner is the client that the URL names; without a name the chat's id is the name, so whoever knows it has the chat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.types import Scope

from connections.aisdk.answering import Answering
from connections.authentication.access import AccessControl
from connections.authentication.identity import Identity
from connections.authentication.tickets import PREFIX as TICKET
from connections.http.queries import name_of
from connections.limits.caller import Caller, caller_of
from connections.limits.limiters import Limiters
from connections.line.presence import Presence
from connections.line.rate_limiting import RateLimiter
from connections.native.handler import FrameHandler
from connections.openai.reception import Reception
from connections.wire.errors import Unauthenticated
from connections.wire.features import REASONING, TOOLS
from connections.wire.scopes import EVERYTHING
from sessions.service import Sessions

FEATURES = frozenset({REASONING, TOOLS})
"""What chats are told of beside text."""


NAMED_AFTER = "/ai-sdk/"
"""Begins the client id of who names none. None on a native socket can be the same, since those have no slash."""


class Guests:
    """Knows who comes by what a request shows."""

    def __init__(self, access: AccessControl) -> None:
        self.access = access

    async def identity(self, authorization: str | None, ticket: str | None) -> Identity:
        """Who comes. What lasts has no place in a URL. Raises Unauthenticated, Refused."""
        if ticket is not None and not (ticket.startswith(TICKET) or self.access.asks_nobody):
            raise Unauthenticated("A URL takes tickets only.", why="no ticket in the URL")
        return await self.access.identify(authorization=authorization, token=ticket)


def named_client(query: Mapping[str, str]) -> str | None:
    """The client that a URL names. Raises BadParams."""
    return None if (name := query.get("client_id")) is None else name_of("client_id", name)


def guest_of(identity: Identity, client_id: str | None, chat_id: str, scope: Scope) -> Caller:
    """Whose chat it is."""
    return caller_of(identity, client_id or f"{NAMED_AFTER}{chat_id}", scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The service as these doors need it."""

    sessions: Sessions
    reception: Reception
    guests: Guests
    presence: Presence
    limiters: Limiters

    async def answering(self, *, grace_s: float) -> Answering:
        """What carries requests out. `grace_s`: how long a reply waits for its client by default. Raises EngineDown."""
        limits = await self.reception.limits(self.reception.model(None, EVERYTHING))
        take_read = self.limiters.take_read
        inner = RateLimiter(FrameHandler(self.sessions, limits), self.limiters)
        return Answering(inner=inner, sessions=self.sessions, take_read=take_read, grace_s=grace_s)
