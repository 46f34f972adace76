"""Who asks, as this floor counts them: whose history it is, which client it is, and by which key or address it came."""

from __future__ import annotations

import msgspec
from starlette.types import Scope

from connections.authentication.identity import ANONYMOUS, Identity
from connections.limits.groups import group_of
from connections.wire.scopes import EVERYTHING, Grant
from sessions.records import Client, Owner
from sessions.running.shares import Subject


class Caller(msgspec.Struct, frozen=True):
    """`owner`: whose conversations it sees; `client`: whom limits count; `group`: the key or the address, or empty.

    `grant`: what its token may do; `identity`: who it is by that token, and so until when.
    """

    owner: Owner
    client: Client
    group: str = ""
    grant: Grant = EVERYTHING
    identity: Identity = ANONYMOUS

    @property
    def subject(self) -> Subject:
        """For whom shares are counted."""
        return Subject(str(self.owner), self.group)


def caller_of(identity: Identity, client_id: str, scope: Scope) -> Caller:
    """Who asks by a request or a handshake."""
    return Caller(
        identity.owner(client_id),
        identity.client(client_id),
        group_of(identity, scope),
        identity.grant,
        identity,
    )
