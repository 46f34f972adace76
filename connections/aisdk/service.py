"""What both endpoints of the AI SDK share: the service, the client of a chat, and the owner of its conversation.

A person's chats are that person's conversations, on every device. With an application's key, or without
authentication, the owner is the client that the URL names. Without a name the chat's id is the name, so
anybody who knows it has the chat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.types import Scope

from connections.aisdk.chat_handler import ChatHandler
from connections.api.request_context import RequestContext
from connections.authentication.access import AccessControl
from connections.authentication.identity import Identity
from connections.authentication.tickets import PREFIX as TICKET
from connections.connection import RateLimiter
from connections.http.query_params import parse_id
from connections.limits.caller import Caller, caller_of
from connections.limits.limiters import Limiters
from connections.manager import ConnectionLifecycle
from connections.native.handler import FrameHandler
from connections.protocol.base import REASONING, TOOLS
from connections.protocol.errors import Unauthenticated
from connections.protocol.scopes import EVERYTHING
from sessions.service import Sessions

FEATURES = frozenset({REASONING, TOOLS})
"""What chats support besides text."""


ANONYMOUS_PREFIX = "/ai-sdk/"
"""Begins the client ids of clients without a name. No client of a native socket has such an id: those have no slash."""


class ClientAuthenticator:
    """Identifies clients by their requests."""

    def __init__(self, access: AccessControl) -> None:
        self.access = access

    async def identity(self, authorization: str | None, ticket: str | None) -> Identity:
        """Return a client's identity. A URL may contain only a ticket. Raises Unauthenticated, Refused."""
        if ticket is not None and not (ticket.startswith(TICKET) or self.access.allows_anonymous):
            raise Unauthenticated("A URL takes tickets only.", why="no ticket in the URL")
        return await self.access.identify(authorization=authorization, token=ticket)


def named_client(query: Mapping[str, str]) -> str | None:
    """Return the client that a URL names. Raises BadParams."""
    return None if (name := query.get("client_id")) is None else parse_id("client_id", name)


def chat_caller(identity: Identity, client_id: str | None, chat_id: str, scope: Scope) -> Caller:
    """Return the owner of a chat."""
    return caller_of(identity, client_id or f"{ANONYMOUS_PREFIX}{chat_id}", scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatService:
    """The service for these endpoints."""

    sessions: Sessions
    request_context: RequestContext
    authenticator: ClientAuthenticator
    lifecycle: ConnectionLifecycle
    limiters: Limiters

    async def chat_handler(self, *, grace_s: float) -> ChatHandler:
        """Make what carries out requests. `grace_s`: how long a reply waits for its client by default. Raises EngineDown."""
        limits = await self.request_context.limits(self.request_context.model(None, EVERYTHING))
        take_read = self.limiters.take_read
        inner = RateLimiter(FrameHandler(self.sessions, limits), self.limiters)
        return ChatHandler(inner=inner, sessions=self.sessions, take_read=take_read, grace_s=grace_s)
