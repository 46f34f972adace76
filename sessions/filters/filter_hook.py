"""What a filter is: the lists of the settings are ones, and an operator's own class may be one."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Passed(msgspec.Struct, frozen=True):
    """What of a reply may leave now. `filtered`: nothing more may, the reply ends there."""

    text: str
    filtered: bool = False


class ReplyFilter(Protocol):
    """Reads one reply as it is written. Called from the event loop: it never waits, and does little at a time.

    All that it passes, joined, is a beginning of all that it was fed.
    """

    def feed(self, text: str) -> Passed:
        """Takes the next whole characters, none perhaps; gives what is known to be harmless."""
        ...

    def finish(self) -> Passed:
        """The reply has no more text: gives the rest, or the end of it."""
        ...


class Filter:
    """A filter that lets everything pass; derive from it to refuse messages, to end replies, or both."""

    async def refuses(self, message: str) -> bool:  # noqa: ARG002 - for those who derive from it
        """Whether a user's message, whole, may not come in. May wait, for a service that judges it."""
        return False

    def reply(self) -> ReplyFilter | None:
        """What reads one reply; None where this filter has nothing to say to it."""
        return None
