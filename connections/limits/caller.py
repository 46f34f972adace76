"""The caller of a request: the owner of the history, the client, and the key or address behind it."""

from __future__ import annotations

import msgspec
from starlette.types import Scope

from connections.authentication.identity import ANONYMOUS, Identity
from connections.limits.groups import group_of
from connections.wire.scopes import EVERYTHING, Grant
from sessions.records import Client, Owner
from sessions.shares import Subject


class Caller(msgspec.Struct, frozen=True):
    """`owner`: whose conversations it sees; `client`: the subject of limits; `group`: the key or the address, or empty.

    `grant`: the token's rights; `identity`: the token's identity, with its expiry.
    """

    owner: Owner
    client: Client
    group: str = ""
    grant: Grant = EVERYTHING
    identity: Identity = ANONYMOUS

    @property
    def subject(self) -> Subject:
        """The keys under which shares are counted."""
        return Subject(str(self.owner), self.group)


def caller_of(identity: Identity, client_id: str, scope: Scope) -> Caller:
    """Return the caller of a request or a handshake."""
    return Caller(
        identity.owner(client_id),
        identity.client(client_id),
        group_of(identity, scope),
        identity.grant,
        identity,
    )
