"""The caller of a request: the owner of the history, the client, and the group that is counted together.

A group is a key, or without authentication an address.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address

import msgspec
from starlette.requests import Request
from starlette.types import Scope

from connections.authentication.access import bearer
from connections.authentication.api_keys import ANONYMOUS, Identity
from connections.http import parse_client_id
from connections.middleware import Network, client_address_of
from connections.protocol.base import Grant
from connections.protocol.errors import BadParams
from sessions.limits.shares import ADDRESS, Subject, site_of
from sessions.records import Client, Owner

CLIENT = "/openai"
"""The client id of requests that name no client. No client of a WebSocket has it, since those ids have no slash."""
_UNIDENTIFIED = f"{CLIENT}/-"
"""Begins the client id of clients that nobody can tell from others: without authentication, and without a secret token."""
SECRET_CHARS = 22
"""Least length of a token that names an owner: 128 random bits in base64."""
_SECRET_DISTINCT = 8
"""Least number of different characters in such a token; random base64 has fewer once in trillions."""
_LOOPBACK = (IPv4Address("127.0.0.1"), IPv6Address("::1"))
"""Addresses of this machine's own clients. A local proxy's clients have others, or none that is known."""
_UNKNOWN = "unknown"


class Caller(msgspec.Struct, frozen=True):
    """`owner`: whose conversations it sees; `client`: whose quotas count; `group`: the key or the address, or empty.

    `identity`: the token's identity, with its rights and its expiry.
    """

    owner: Owner
    client: Client
    group: str = ""
    identity: Identity = ANONYMOUS

    @property
    def grant(self) -> Grant:
        """The token's rights."""
        return self.identity.grant

    @property
    def store_group(self) -> str:
        """On whose behalf the store is asked."""
        return self.group or self.client.client_id

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
        identity,
    )


def named_caller(identity: Identity, request: Request) -> Caller:
    """Return the caller that a request names by its `client_id`. Raises BadParams.

    Without authentication, an owner named by a token's hash needs that token as proof: the hash is not secret.
    """
    named = request.query_params.get("client_id")
    name = "" if named is None else parse_client_id(named)
    if identity == ANONYMOUS and (named is None or name == CLIENT or name.startswith(f"{CLIENT}/")):
        own = client_id_of(identity, bearer(request.headers.get("authorization")))
        if own.startswith(_UNIDENTIFIED) and named is None:
            raise BadParams("is missing.", field="client_id")
        if own.startswith(_UNIDENTIFIED) or not f"{name or own}/".startswith(f"{own}/"):
            raise BadParams("belongs to an API key: send that key in `Authorization`.", field="client_id")
        name = name or own
    elif named is None and not identity.is_person:
        raise BadParams("is missing.", field="client_id")
    return caller_of(identity, name, request.scope)


def client_id_of(identity: Identity, token: str | None, scope: Scope | None = None) -> str:
    """Return the client id of a request that names none, as from OpenAI's clients.

    Without authentication, a secret token stands for its client. Tokens that others may send as well ("none", "EMPTY") stand
    for nobody. With a `scope`, one such token from one address is one id: its prompts share keys and values; nothing is kept.
    """
    if identity.principal != ANONYMOUS.principal:
        return CLIENT
    if token and is_secret(token):
        return f"{CLIENT}/{_digest(token)}"
    if token and scope is not None and client_address_of(scope) is not None:
        return _UNIDENTIFIED + _digest(f"{group_of(identity, scope)} {token}")
    return _UNIDENTIFIED + secrets.token_hex(16)


def can_reconnect(caller: Caller) -> bool:
    """Return whether this client can come back for stored data: one without a secret token can't."""
    return not caller.client.client_id.startswith(_UNIDENTIFIED)


def is_secret(token: str) -> bool:
    """Return whether a token may be random: it is long, and not a phrase, a number or a repetition. Pure."""
    kinds = (any(map(kind, token)) for kind in (str.islower, str.isupper, str.isdigit))
    return len(token) >= SECRET_CHARS and len(set(token)) >= _SECRET_DISTINCT and sum(kinds) > 1


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def group_of(identity: Identity, scope: Scope) -> str:
    """Return the group of a request's owner; empty for clients of this machine."""
    if identity.principal != ANONYMOUS.principal:
        return identity.principal
    return address_group(scope)


def address_group(scope: Scope) -> str:
    """Return the group by address alone, before authentication. Clients whose address is not known are one group."""
    address = client_address_of(scope)
    if address in _LOOPBACK:
        return ""
    return f"{ADDRESS}{_UNKNOWN if address is None else site_of(address)}"


def peer_group(peer: str, proxies: Iterable[Network] = ()) -> str:
    """Return the group of a socket's peer, before anything is parsed; empty if it stands for all clients of a proxy."""
    try:
        address = ip_address(peer)
    except ValueError:
        return peer
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    is_proxy = address in _LOOPBACK or any(address in network for network in proxies)
    return "" if is_proxy else str(site_of(address))
