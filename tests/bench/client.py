"""The interface of a client of any server. Each endpoint implements it."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple, Protocol


class ServerMisbehaved(Exception):
    """A server refused a prompt, failed, or ended a stream without an end."""


class Kind(Enum):
    """Kinds of news that a client receives."""

    TEXT = auto()
    CANCELLED = auto()
    END = auto()


class ClientEvent(NamedTuple):
    """News that a client received; `tokens` and `steps_after` come with an END, if the server reports them."""

    kind: Kind
    tokens: int = 0
    steps_after: int | None = None


class ServerClient(Protocol):
    """One client with one connection, asking for one reply at a time."""

    async def ask(self, content: str, max_new_tokens: int) -> None:
        """Send a prompt as a conversation of its own."""

    async def receive(self) -> ClientEvent:
        """Wait for the next news. Raises ServerMisbehaved."""

    async def cancel(self) -> None:
        """Stop the reply in the way of this endpoint."""

    async def close(self) -> None:
        """Leave."""
