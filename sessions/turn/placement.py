"""The place of a turn in the tree of a conversation. Pure; `sessions.commands.branches` checks it against the history."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from sessions.records import digest


class Append(msgspec.Struct, frozen=True, tag="behind"):
    """A new message after a reply; None: at the root; unset: after the active leaf."""

    parent_id: str | UnsetType | None = UNSET


class Edit(msgspec.Struct, frozen=True, tag="beside"):
    """A new message in place of a user's message, which stays as its sibling: an edit."""

    message_id: str


class Regenerate(msgspec.Struct, frozen=True, tag="again"):
    """Another reply beside an existing one, to the same user's message. `is_last`: only if nothing follows that reply."""

    reply_id: str
    is_last: bool = False


class Continue(msgspec.Struct, frozen=True, tag="onward"):
    """The rest of a reply that was stopped or cut: the same message continues."""

    reply_id: str


Placement = Append | Edit | Regenerate | Continue


def digest_of(content: str, placement: Placement, images: Sequence[str] = ()) -> str:
    """Return a digest that tells apart requests with one `client_msg_id`. No content has a NUL."""
    content = "\0".join((content, *images))
    match placement:
        case Append():
            return digest(content)
        case Edit(message_id):
            return digest(f"edit\0{message_id}\0{content}")
        case Regenerate(reply_id):
            return digest(f"regenerate\0{reply_id}")
        case Continue(reply_id):
            return digest(f"continue\0{reply_id}")
