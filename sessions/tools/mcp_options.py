"""The MCP servers that the operator names, and which of their tools are offered.

What a server says is checked, never trusted. Needs none of the libraries for MCP.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from sessions.tools.tool_registry import NAME, Approval, ServerTool

ALL = "*"
"""Stands for every tool of a server."""
RESPONSE_BYTES = 1 << 20
MOST_TOOLS = 128
"""Tools of one server."""
DESCRIPTION_BYTES = 4096
SCHEMA_BYTES = 32 * 1024
LIST_BYTES = 256 * 1024
"""Bytes of all names, descriptions and schemas of one server, since each prompt has them."""
SCHEMA_DEPTH = 64
_ODD = re.compile(r"[^A-Za-z0-9_-]")
Names = tuple[Annotated[str, Meta(min_length=1, max_length=128)], ...]


class InvalidServers(Exception):
    """The servers can't be used. The message tells the operator which, and why."""


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One server. `tools`: the offered ones, by the server's names; `prefix` precedes each name.

    `headers` are sent as they are; `headers_from` names the environment variables that hold others. `always_ask`, `never_ask`:
    whether users have to allow calls; by default they do, unless a tool is annotated read-only. `idempotent`: tools that may be
    run again, besides those annotated so. `identify`: calls name their owner. `connect_s`, `call_s`: seconds of a handshake and
    of a call; `refresh_s`: between two reads of the list of tools. `max_response_bytes`: of one message of the server.
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


Servers = Annotated[tuple[ServerOptions, ...], Meta(min_length=1, max_length=64)]


def servers_from(tables: Any) -> tuple[ServerOptions, ...]:
    """Return the servers of an operator's tables, in their order. Raises InvalidServers."""
    try:
        servers: tuple[ServerOptions, ...] = msgspec.convert(tables, Servers)
    except msgspec.ValidationError as error:
        raise InvalidServers(str(error)) from error
    for why in _wrong(servers):
        raise InvalidServers(f"{why}.")
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


class RemoteTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as its server describes it. `read_only`, `idempotent`: its annotations."""

    name: str
    description: str
    schema: dict[str, Any]
    read_only: bool
    idempotent: bool


class Listing(msgspec.Struct, frozen=True):
    """The offered tools of a server. `remote`: each tool's name at the server; `left_out`: names, each with the reason.

    A tool beyond a limit is left out whole: half of a description may say the opposite of the whole.
    """

    tools: tuple[ServerTool, ...] = ()
    remote: dict[str, str] = {}
    left_out: tuple[tuple[str, str], ...] = ()


class _LeftOut(Exception):
    """Why a tool is not offered."""


def listing_of(tools: Iterable[RemoteTool], options: ServerOptions) -> Listing:
    """Return the tools that the options allow, sorted by name. Takes milliseconds per schema: not for the event loop."""
    found: dict[str, tuple[ServerTool, str]] = {}
    left_out: list[tuple[str, str]] = []
    size = 0
    for tool in tools:
        if not {ALL, tool.name} & {*options.tools}:
            continue
        try:
            offered = _offered(tool, options, taken=found)
        except _LeftOut as why:
            left_out.append((tool.name, str(why)))
            continue
        if len(found) < MOST_TOOLS and size + _size(offered) <= LIST_BYTES:
            size += _size(offered)
            found[offered.name] = (offered, tool.name)
        else:
            left_out.append(
                (tool.name, f"a server may offer {MOST_TOOLS} tools and {LIST_BYTES} bytes in all")
            )
    seen = {ALL, *(tool for _, tool in found.values()), *(name for name, _ in left_out)}
    left_out += [(name, "the server does not have this tool") for name in options.tools if name not in seen]
    names = sorted(found)
    return Listing(
        tools=tuple(found[name][0] for name in names),
        remote={name: found[name][1] for name in names},
        left_out=tuple(left_out),
    )


def _offered(tool: RemoteTool, options: ServerOptions, *, taken: dict[str, Any]) -> ServerTool:
    """Return a tool as it is offered. Raises _LeftOut."""
    name = options.prefix + _ODD.sub("_", tool.name)
    if re.fullmatch(NAME, name) is None:
        raise _LeftOut("its name has more than 64 characters, or none")
    if name in taken:
        raise _LeftOut("another of the server's tools has its name")
    if len(tool.description.encode("utf-8", "replace")) > DESCRIPTION_BYTES:
        raise _LeftOut(f"its description has more than {DESCRIPTION_BYTES} bytes")
    return ServerTool(
        name=name,
        description=tool.description.encode("utf-8", "replace").decode(),
        parameters=_checked(tool.schema),
        approval=_approval(tool, options),
        idempotent=tool.idempotent or tool.read_only or bool({ALL, tool.name} & {*options.idempotent}),
    )


def _approval(tool: RemoteTool, options: ServerOptions) -> Approval:
    """Return the operator's rule for this tool, else the rule for all tools, else what the server says."""
    for name in (tool.name, ALL):
        if name in options.always_ask:
            return Approval.ALWAYS
        if name in options.never_ask:
            return Approval.NEVER
    return Approval.NEVER if tool.read_only else Approval.ALWAYS


def load_schema_checks() -> None:
    """Import what checks schemas. Importing at the first listing would hold up the event loop."""
    import jsonschema.validators  # noqa: F401, PLC0415 - only services with MCP servers need it


def _checked(schema: dict[str, Any]) -> str:
    """Return a schema as text. Raises _LeftOut unless it is a self-contained JSON Schema of an object."""
    from jsonschema.exceptions import SchemaError  # noqa: PLC0415 - only services with MCP servers need it
    from jsonschema.validators import Draft202012Validator, validator_for  # noqa: PLC0415

    for part in _parts(schema, SCHEMA_DEPTH):
        for word in ("$ref", "$dynamicRef"):
            if isinstance(target := part.get(word), str) and not target.startswith("#"):
                raise _LeftOut("its schema refers to another document")
    try:
        text = msgspec.json.encode(schema).decode()
    except (TypeError, ValueError):
        raise _LeftOut("its schema is not JSON") from None
    if len(text) > SCHEMA_BYTES:
        raise _LeftOut(f"its schema has more than {SCHEMA_BYTES} bytes")
    if schema.get("type") != "object":
        raise _LeftOut("its schema is not of an object")
    try:
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
    except (SchemaError, RecursionError, TypeError):  # TypeError: a `$schema` that is not text
        raise _LeftOut("its schema is not valid JSON Schema") from None
    return text


def _parts(value: Any, depth: int) -> Iterator[dict[str, Any]]:
    """Yield every object in a schema. Raises _LeftOut if it is nested too deeply."""
    if depth == 0:
        raise _LeftOut(f"its schema is more than {SCHEMA_DEPTH} deep")
    if isinstance(value, dict):
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        yield from _parts(one, depth - 1)


def _size(tool: ServerTool) -> int:
    return len(tool.name) + len(tool.description.encode()) + len(tool.parameters)
