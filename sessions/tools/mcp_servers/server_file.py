"""The MCP servers that the operator names in a file. Needs none of the libraries for MCP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

ALL = "*"
"""Stands for every tool of a server."""


RESPONSE_BYTES = 1 << 20


Names = tuple[Annotated[str, Meta(min_length=1, max_length=128)], ...]


class InvalidServerFile(Exception):
    """The file can't be used. The message tells the operator where, and why."""


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One server. `tools`: the offered ones, by the server's names; `prefix` precedes each name.

    `headers` are sent as they are; `headers_from` names the environment variables that hold others.
    `always_ask`, `never_ask`: whether users have to allow calls; by default they do, unless a tool is annotated read-only.
    `idempotent`: tools that may be run again, besides those annotated so. `identify`: calls say whose they are.
    `connect_s`, `call_s`: seconds of a handshake and of a call; `refresh_s`: between two reads of the list of tools.
    `max_response_bytes`: of one message of the server.
    """

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,32}\Z")]
    url: Annotated[str, Meta(pattern=r"^https?://[^/\s]")]
    tools: Annotated[Names, Meta(min_length=1, max_length=256)]
    prefix: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{0,32}\Z")] = ""
    headers: dict[str, str] = {}
    headers_from: dict[str, str] = {}
    ca_file: str | None = None
    always_ask: Names = ()
    never_ask: Names = ()
    idempotent: Names = ()
    identify: bool = False
    connect_s: Annotated[float, Meta(gt=0, le=120)] = 10.0
    call_s: Annotated[float, Meta(gt=0, le=3600)] = 60.0
    refresh_s: Annotated[float, Meta(ge=1)] = 300.0
    max_response_bytes: Annotated[int, Meta(ge=4096, le=16 << 20)] = RESPONSE_BYTES


class ServerFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file: one table `[[server]]` per server."""

    server: Annotated[tuple[ServerOptions, ...], Meta(min_length=1, max_length=64)]


def servers_from(path: Path) -> tuple[ServerOptions, ...]:
    """Return the servers of a file, in its order. Raises InvalidServerFile."""
    try:
        servers = msgspec.toml.decode(path.read_bytes(), type=ServerFile).server
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise InvalidServerFile(f"{path}: {error}") from error
    for why in _wrong(servers):
        raise InvalidServerFile(f"{path}: {why}.")
    return servers


def _wrong(servers: tuple[ServerOptions, ...]) -> Iterator[str]:
    """Yield the contradictions in the tables."""
    names = [server.name for server in servers]
    for server in servers:
        if names.count(server.name) > 1:
            yield f"two servers have the name {server.name!r}"
        for both in sorted({*server.always_ask} & {*server.never_ask}):
            yield f"{server.name}: {both!r} is in always_ask and in never_ask"
        for both in sorted(
            {name.lower() for name in server.headers} & {name.lower() for name in server.headers_from}
        ):
            yield f"{server.name}: the header {both!r} is in headers and in headers_from"
        if ALL not in server.tools:
            for name in (*server.always_ask, *server.never_ask, *server.idempotent):
                if name not in (*server.tools, ALL):
                    yield f"{server.name}: {name!r} is none of its tools"
