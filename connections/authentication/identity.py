"""Who somebody is once a token has shown it, and the token's own facts that matter later. Pure."""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from connections.wire.errors import Unauthenticated

MAX_SUBJECT = 255
"""Characters; what OpenID Connect Core allows a `sub` (section 2)."""


class Identity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who a token stands for. `expires_at`: Unix seconds; `key`: the digest of the API key that it rests on."""

    principal: str
    expires_at: float | None = None
    key: str | None = None


ANONYMOUS = Identity(principal="anonymous")
"""Everybody, where the operator configured no authentication."""


def of_key(name: str, *, digest: str) -> Identity:
    """Whoever has a key of this name."""
    return Identity(principal=f"key:{name}", key=digest)


def of_subject(subject: str, *, expires_at: float) -> Identity:
    """Whom a JWT names. Raises Unauthenticated where the name can't be one.

    A subject may hold anything, and goes into names of the store: all but letters, digits and `_.-~@:|` is percent-encoded,
    so that no two subjects share a name and none closes a hash tag. The prefix keeps them apart from keys.
    """
    if not 0 < len(subject) <= MAX_SUBJECT:
        raise Unauthenticated(why="sub is empty or too long")
    try:
        principal = f"jwt:{quote(subject, safe='@:|')}"
    except UnicodeEncodeError:
        raise Unauthenticated(why="sub is no Unicode text") from None
    return Identity(principal=principal, expires_at=expires_at)
