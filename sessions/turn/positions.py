"""The place of a turn in the tree of a conversation. Pure; `sessions.commands.branches` checks it against the history."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from sessions.records import digest


class Behind(msgspec.Struct, frozen=True, tag="behind"):
    """A new message after a reply; None: at the root; unset: after the active leaf."""

    parent_id: str | UnsetType | None = UNSET


class Beside(msgspec.Struct, frozen=True, tag="beside"):
    """A new message in place of a user's message, which stays as its sibling: an edit."""

    message_id: str


class Again(msgspec.Struct, frozen=True, tag="again"):
    """Another reply beside an existing one, to the same user's message. `is_last`: only if nothing follows that reply."""

    reply_id: str
    is_last: bool = False


class Onward(msgspec.Struct, frozen=True, tag="onward"):
    """The rest of a reply that was stopped or cut: the same message continues."""

    reply_id: str


Place = Behind | Beside | Again | Onward


def digest_of(content: str, place: Place, images: Sequence[str] = ()) -> str:
    """Return a digest that tells apart requests with one `client_msg_id`. No content has a NUL."""
    content = "\0".join((content, *images))
    match place:
        case Behind():
            return digest(content)
        case Beside(message_id):
            return digest(f"edit\0{message_id}\0{content}")
        case Again(reply_id):
            return digest(f"regenerate\0{reply_id}")
        case Onward(reply_id):
            return digest(f"continue\0{reply_id}")
