"""The interface of filters, for the built-in lists and for operators' own classes."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Passed(msgspec.Struct, frozen=True):
    """The part of a reply that may leave now. `filtered`: the reply ends there."""

    text: str
    filtered: bool = False


class ReplyFilter(Protocol):
    """Reads one reply as it is written. It runs on the event loop: it never waits, and does little at a time.

    The joined output is always a beginning of the joined input.
    """

    def feed(self, text: str) -> Passed:
        """Take the next whole characters, possibly none; return what is known to be harmless."""
        ...

    def finish(self) -> Passed:
        """End the reply: return the rest, or end it there."""
        ...


class Filter:
    """A filter that passes everything. Derive from it to refuse messages, to end replies, or both."""

    async def refuses(self, message: str) -> bool:  # noqa: ARG002 - for those who derive from it
        """Return whether to refuse a whole text for the prompt: a message, or a tool's name, description or schema.

        It may wait, as for a service that judges it.
        """
        return False

    def reply(self) -> ReplyFilter | None:
        """Return a reader of one reply, or None if this filter does not read replies."""
        return None
