"""One call of a server's tool, from its arguments to its text, with a message for each possible failure."""

from __future__ import annotations

import asyncio
from typing import Any

import mcp_types
from mcp import MCPError
from pydantic import ValidationError

from sessions.tools.live_call import LiveCall
from sessions.tools.mcp_servers.call_traffic import ANSWERS_TIMES, CURRENT, CallTraffic
from sessions.tools.mcp_servers.content_text import text_of
from sessions.tools.mcp_servers.server_file import ServerOptions
from sessions.tools.mcp_servers.session import Session
from sessions.tools.result_text import REASON_BYTES, cut_to
from sessions.tools.server_tool import ToolFailed, ToolLost


async def call_remote_tool(
    session: Session, name: str, arguments: dict[str, Any], call: LiveCall, options: ServerOptions
) -> str:
    """Run a tool by its server's name. Raises ToolFailed as soon as it is known that no answer will come.

    A cancelled caller leaves at once. The server is told of it meanwhile, and the call keeps its place until then.
    """
    traffic = CallTraffic(call.context.elicit, most_bytes=ANSWERS_TIMES * options.max_response_bytes)
    CURRENT.set(traffic)
    exchange = asyncio.ensure_future(session.call(name, arguments, call.context, traffic))
    call.slot.hold()
    exchange.add_done_callback(lambda _: call.slot.release())
    exchange.add_done_callback(_retrieve_error)
    try:
        await asyncio.wait((exchange, traffic.fault), return_when=asyncio.FIRST_COMPLETED)
        if traffic.fault.done():
            raise traffic.fault.result()
        return _text(exchange)
    finally:
        traffic.end()
        exchange.cancel()


def _retrieve_error(exchange: asyncio.Future[mcp_types.CallToolResult]) -> None:
    """Retrieve an error that nobody waits for: it was reported, or is no longer of interest."""
    if not exchange.cancelled():
        exchange.exception()


def _text(exchange: asyncio.Future[mcp_types.CallToolResult]) -> str:
    """Return the result of a call. Raises ToolFailed."""
    try:
        result = exchange.result()
    except MCPError as error:
        raise _refused(error) from None
    except ValidationError:
        raise ToolFailed("The tool's server did not answer with a tool result.") from None
    if result.is_error:
        raise ToolFailed(cut_to(text_of(result), REASON_BYTES))
    return text_of(result)


def _refused(error: MCPError) -> ToolFailed:
    if error.code in {mcp_types.CONNECTION_CLOSED, mcp_types.PARSE_ERROR}:
        return ToolLost("The tool's server gave no answer. It is not known whether the tool did its work.")
    return ToolFailed(f"The tool's server refused the call: {cut_to(error.message, REASON_BYTES)}")
