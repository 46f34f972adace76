"""What a client of any of the servers can do. Each door implements it."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple, Protocol


class ServerMisbehaved(Exception):
    """A server refused a prompt, failed, or ended a stream without an end."""


class Kind(Enum):
    """Kinds of what a client hears."""

    TEXT = auto()
    CANCELLED = auto()
    END = auto()


class Heard(NamedTuple):
    """Something that a client heard; `tokens` and `steps_after` come with an END, where the server tells them."""

    kind: Kind
    tokens: int = 0
    steps_after: int | None = None


class Peer(Protocol):
    """One client with one connection, asking for one reply at a time."""

    async def ask(self, content: str, max_new_tokens: int) -> None:
        """Sends a prompt as a conversation of its own."""

    async def hear(self) -> Heard:
        """Waits for what comes next. Raises ServerMisbehaved."""

    async def cancel(self) -> None:
        """Stops the reply in the way of this door."""

    async def close(self) -> None:
        """Leaves."""
