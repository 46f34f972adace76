"""A server of the Model Context Protocol as a source of tools: its list of tools, and its calls."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, assert_never

import mcp_types
import msgspec
import structlog
from mcp import MCPError
from pydantic import ValidationError

from sessions.tools.calls import Calls, LiveCall, Slots
from sessions.tools.mcp_servers.listing import Listing
from sessions.tools.mcp_servers.server_file import ServerOptions
from sessions.tools.mcp_servers.session import (
    ANSWERS_TIMES,
    CURRENT,
    CallTraffic,
    GuardedTransport,
    Session,
    TooManyTools,
    guard_of,
    opened,
)
from sessions.tools.server_tool import CallContext, ServerTool, ToolFailed, ToolLost
from sessions.tools.tool_registry import REASON_BYTES, RESULT_BYTES, cut_to

CALLS = 64
OWNERS_CALLS = 8
"""Calls that one owner may have running at one server."""
MOST_NAMED = 10
"""Tools that one log line names."""
NAME_CHARS = 64
CONTENT_NAME_CHARS = 200
"""Characters of a name that a server gives a part."""
GOODBYE_S = 2.0
"""How long a session has to end at each of two attempts; its server has half of it to acknowledge that."""
GOODBYES = 3
_log = structlog.get_logger("midstream.tools")


class ReconnectTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. `first`, `longest`: pauses before a session is opened anew; each is twice the one before.

    `apart`: between two reads of a list, however often the server reports changes.
    """

    first: float = 1.0
    longest: float = 60.0
    apart: float = 5.0


class McpServer:
    """One server. Its tools are offered while a session is open."""

    def __init__(
        self,
        options: ServerOptions,
        headers: Mapping[str, str],
        *,
        result_bytes: int = RESULT_BYTES,
        timing: ReconnectTiming | None = None,
    ) -> None:
        """Take all headers of its requests. Raises OSError if `ca_file` can't be read."""
        self._options = options
        self._headers = headers
        self._timing = timing or ReconnectTiming()
        self._trust = ssl.create_default_context(cafile=options.ca_file)
        self._calls = Calls(Slots(total=CALLS, each=OWNERS_CALLS), result_bytes=result_bytes)
        self._session: Session | None = None
        self._listing = Listing()
        self._refresh_due = asyncio.Event()
        self._tried = asyncio.Event()
        self._pause = self._timing.first

    def offered(self) -> tuple[ServerTool, ...]:
        """Return the tools by name; none while the server is away."""
        return self._listing.tools

    async def run(self, name: str, arguments: dict[str, Any], context: CallContext) -> str:
        """Run a call at the server. Raises ToolFailed."""
        session, remote = self._session, self._listing.remote.get(name)
        if session is None or remote is None:
            raise ToolFailed("The tool's server can't be reached now. The tool was not run.")

        async def work(call: LiveCall) -> str:
            return await call_remote_tool(session, remote, arguments, call, self._options)

        return await self._calls.run(name, work, context, limit_s=self._options.call_s)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the session open while the context lasts. It begins once the first handshake has succeeded or failed."""
        keeping = asyncio.create_task(self._keep())
        try:
            await self._tried.wait()
            yield
        finally:
            await self._calls.end()
            await _cancelled(keeping)

    async def _keep(self) -> None:
        """Open one session after another."""
        clock, task = asyncio.get_running_loop(), asyncio.current_task()
        while True:
            begun = clock.time()
            why = await self._ended()
            self._session, self._listing = None, Listing()
            self._tried.set()
            if task is not None and task.cancelling():
                return  # the library may swallow this if a session fails at the same moment
            if clock.time() - begun > self._timing.longest:
                self._pause = self._timing.first
            _log.warning("tool server away", server=self._options.name, why=why, again_in_s=self._pause)
            await asyncio.sleep(self._pause)
            self._pause = min(self._pause * 2, self._timing.longest)

    async def _ended(self) -> str:
        """Hold a session for as long as it lasts; return why it ended."""
        self._refresh_due.clear()
        guard = guard_of(self._options, trust=self._trust, on_suspect=self._refresh_due.set)
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._options.connect_s):
                    session = await stack.enter_async_context(
                        opened(self._options, guard, headers=self._headers, changed=self._refresh_due.set)
                    )
                    listing = await session.listing()
                self._begin(session, listing)
                await self._held(session, guard)
        except Exception as error:  # noqa: BLE001 - a task's boundary: a server can make the library raise anything
            return reason_of(error, guard.trouble)
        return guard.trouble

    def _begin(self, session: Session, listing: Listing) -> None:
        _log.info("tool server connected", server=self._options.name, protocol=session.protocol)
        self._session = session
        self._publish_listing(listing)
        self._tried.set()

    async def _held(self, session: Session, guard: GuardedTransport) -> None:
        """Read the list when the server reports a change, when the session may have ended, and from time to time.

        Returns when the server no longer knows the session. Raises what the library raises if it has ended.
        """
        clock = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            following = group.create_task(self._follow(session))
            while True:
                looked = clock.time()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._options.refresh_s):
                        await self._refresh_due.wait()
                if guard.gone:
                    following.cancel()
                    return
                await asyncio.sleep(looked + self._timing.apart - clock.time())
                self._refresh_due.clear()
                async with asyncio.timeout(self._options.connect_s):
                    self._publish_listing(await session.listing())

    async def _follow(self, session: Session) -> None:
        """Listen for changes; a stream of them that ends is opened again later."""
        while session.has_change_stream:
            await session.changes(self._refresh_due.set)
            await asyncio.sleep(self._timing.longest)

    def _publish_listing(self, listing: Listing) -> None:
        """Offer the listed tools, and log what is new."""
        if listing == self._listing:
            return
        self._listing = listing
        left_out = {name[:NAME_CHARS]: why for name, why in listing.left_out[:MOST_NAMED]}
        _log.info(
            "tools of a server",
            server=self._options.name,
            offered=len(listing.tools),
            left_out=len(listing.left_out),
            why=left_out,
        )


def text_of(result: mcp_types.CallToolResult) -> str:
    """Return the parts in order, then the structured content unless a text part says the same."""
    parts = [_part(block) for block in result.content]
    if result.structured_content is not None and not _is_repeated(result.structured_content, parts):
        parts.append(_json(result.structured_content))
    return "\n".join(part for part in parts if part) or "The tool gave no text."


def _part(block: mcp_types.ContentBlock) -> str:
    match block:
        case mcp_types.TextContent(text=text):
            return text
        case mcp_types.ImageContent(mime_type=kind, data=data):
            return f"[An image, {_short(kind)}, {_bytes_of(data)} bytes. It can't be shown here.]"
        case mcp_types.AudioContent(mime_type=kind, data=data):
            return f"[A sound, {_short(kind)}, {_bytes_of(data)} bytes. It can't be played here.]"
        case mcp_types.ResourceLink(uri=uri, name=name):
            return f"[A link to {_short(name)}: {_short(str(uri))}]"
        case mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents(text=text)):
            return text
        case mcp_types.EmbeddedResource(resource=resource):
            return (
                f"[A file, {_short(resource.mime_type or 'of no known type')}: {_short(str(resource.uri))}]"
            )
    assert_never(block)


def _is_repeated(content: Any, parts: Sequence[str]) -> bool:
    """Return whether a part says the same as the structured content.

    Servers repeat it as JSON for older clients. A plain value, which libraries wrap into `result`, is its own text.
    """
    match content:
        case {"result": value, **more} if not more and (value in parts or _json(value) in parts):
            return True
    return any(part.lstrip()[:1] in {"{", "["} and _read(part) == content for part in parts)


def _read(text: str) -> Any:
    try:
        return msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        return None


def _json(content: Any) -> str:
    return content if isinstance(content, str) else msgspec.json.encode(content).decode()


def _short(name: str) -> str:
    return name if len(name) <= CONTENT_NAME_CHARS else f"{name[:CONTENT_NAME_CHARS]}…"


def _bytes_of(data: str) -> int:
    """Return the number of bytes that base64 stands for."""
    return len(data) * 3 // 4 - data[-2:].count("=")


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


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Cancel a task, once more if that got lost on its way; leave it behind if nothing helps."""
    for _ in range(GOODBYES):
        task.cancel()
        await asyncio.wait({task}, timeout=GOODBYE_S)
        if task.done():
            return
    _log.error("a session with a tool server does not end")


def reason_of(error: Exception, trouble: str) -> str:
    """Return why a session ended, for the operator: the network's failure, else the kind of error."""
    leaf: BaseException = error
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    if isinstance(leaf, TooManyTools):
        return str(leaf)
    if isinstance(leaf, ValidationError):
        return "it violates the protocol"
    if isinstance(leaf, TimeoutError):
        return "it does not answer in time"
    return trouble or f"the MCP library failed: {type(leaf).__name__}"
