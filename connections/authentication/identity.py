"""The identity that a token proves, and the token's facts that matter later. Pure."""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from connections.authentication.api_keys import ApiKey, Kind
from connections.protocol.errors import Unauthenticated
from connections.protocol.scopes import EVERYTHING, Grant
from sessions.records import ANONYMOUS_PRINCIPAL, KEY, Client, Owner

MAX_SUBJECT = 255
"""Characters; OpenID Connect Core's limit for a `sub` (section 2)."""
_SUBJECT = "jwt:"


class Identity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who a token stands for. `expires_at`: Unix seconds; `key`, `kind`, `grant`: the digest, the kind and the rights of the API key that it rests on.

    Tickets are kept as this in the store, where those of an older version name no kind: their keys are applications'.
    """

    principal: str
    expires_at: float | None = None
    key: str | None = None
    kind: Kind = Kind.APPLICATION
    grant: Grant = EVERYTHING

    @property
    def is_person(self) -> bool:
        """Whether the principal is one person, whose clients are devices: a JWT's subject, or a personal key."""
        return self.kind is Kind.PERSONAL or self.principal.startswith(_SUBJECT)

    @property
    def name(self) -> str:
        """The principal's name for its operator: a key's name."""
        return self.principal.removeprefix(KEY)

    def client(self, client_id: str) -> Client:
        """Return the client with this id, as limits count it."""
        return Client(self.principal, client_id)

    def owner(self, client_id: str) -> Owner:
        """Return the owner of a client's conversations: a person, on every device, or else the client alone."""
        return Owner(self.principal, "" if self.is_person else client_id)


ANONYMOUS = Identity(principal=ANONYMOUS_PRINCIPAL)
"""Every client, if the operator configured no authentication."""


def of_key(key: ApiKey) -> Identity:
    """Return the identity of a key."""
    return Identity(principal=f"{KEY}{key.name}", key=key.digest, kind=key.kind, grant=key.policy.grant)


def of_subject(subject: str, *, expires_at: float) -> Identity:
    """Whom a JWT names. Raises Unauthenticated where the name can't be one.

    A subject may hold anything, and goes into names of the store: all but letters, digits and `_.-~@:|` is percent-encoded,
    so that no two subjects share a name and none closes a hash tag. The prefix keeps them apart from keys.
    """
    if not 0 < len(subject) <= MAX_SUBJECT:
        raise Unauthenticated(why="sub is empty or too long")
    try:
        principal = f"{_SUBJECT}{quote(subject, safe='@:|')}"
    except UnicodeEncodeError:
        raise Unauthenticated(why="sub is no Unicode text") from None
    return Identity(principal=principal, expires_at=expires_at)
