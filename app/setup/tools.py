"""The server's tools: the operator's functions, and MCP servers with the secrets that their tables name."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import structlog

from app.settings import Settings, SettingsError, secret_of
from sessions.tools.function_tools import FunctionTools, InvalidToolFunction, discover_functions
from sessions.tools.mcp_options import InvalidServerFile, ServerOptions, servers_from
from sessions.tools.tool_registry import ToolRegistry, ToolSource

_FUNCTIONS = "MIDSTREAM_TOOLS (--tools)"
_SERVERS = "MIDSTREAM_TOOLS_FILE (--tools-file)"

_log = structlog.get_logger("midstream.tools")


def tool_box_of(settings: Settings) -> ToolRegistry:
    """Return all tools that the settings and the installed packages name. Raises SettingsError."""
    return ToolRegistry([_functions(settings), *_servers(settings)])


def _functions(settings: Settings) -> ToolSource:
    """Return the functions. Raises SettingsError."""
    torch_was_there = "torch" in sys.modules
    try:
        tools = discover_functions(settings.tools)
    except InvalidToolFunction as error:
        raise SettingsError(f"{_FUNCTIONS}: {error}") from error
    if tools:
        _log.info("function tools loaded", offered=[one.tool.name for one in tools])
    if "torch" in sys.modules and not torch_was_there:
        _log.warning("a tool has imported torch into the gateway: garbage collections will stall replies")
    return FunctionTools(tools, limit_s=settings.tool_timeout_s, result_bytes=settings.tool_result_bytes)


def _servers(settings: Settings) -> list[ToolSource]:
    """Return the MCP servers. Raises SettingsError."""
    if settings.tools_file is None:
        return []
    try:
        servers = servers_from(Path(settings.tools_file).expanduser())
    except InvalidServerFile as error:
        raise SettingsError(f"{_SERVERS}: {error}") from error
    return list(_sources(servers, settings.tool_result_bytes))


def _sources(servers: Iterable[ServerOptions], result_bytes: int) -> Iterable[ToolSource]:
    """Yield the servers as sources. Raises SettingsError, also if the library for MCP is missing."""
    try:
        from sessions.tools.mcp_server import McpServer  # noqa: PLC0415 - needed only with a server
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"{_SERVERS}: {error.name} is not installed. Install the part for MCP: pip install 'midstream-server[mcp]'."
        ) from error
    for options in servers:
        try:
            yield McpServer(options, _headers(options), result_bytes=result_bytes)
        except OSError as error:
            raise SettingsError(f"{_SERVERS}: {options.name}: its ca_file can't be used: {error}.") from error


def _headers(options: ServerOptions) -> dict[str, str]:
    """Return all headers of requests to a server. Raises SettingsError."""
    setting = f"{_SERVERS}: {options.name}"
    return options.headers | {
        header: secret_of(name, setting=setting) for header, name in options.headers_from.items()
    }
