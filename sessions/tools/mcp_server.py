"""A server of the Model Context Protocol as a source of tools: its sessions, its calls, and bounds on what it may send."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from contextvars import ContextVar
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, assert_never, cast

import httpx2
import mcp_types
import msgspec
import structlog
from mcp import Client, MCPError
from mcp.client.session import IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from sessions.limits.bounds import Rate
from sessions.limits.rates import TokenBucket
from sessions.limits.slots import FairSlots
from sessions.tools.calls import Calls, LiveCall
from sessions.tools.mcp_options import Listing, RemoteTool, ServerOptions, listing_of, load_schema_checks
from sessions.tools.tool_registry import (
    REASON_BYTES,
    RESULT_BYTES,
    CallContext,
    Progress,
    ServerTool,
    ToolFailed,
    ToolLost,
    cut_to,
)

CALLS = 64
OWNERS_CALLS = 8
"""Calls that one owner may have running at one server."""
MOST_NAMED = 10
"""Tools that one log line names."""
NAME_CHARS = 64
CONTENT_NAME_CHARS = 200
"""Characters of a name that a server gives a part of a result."""
GOODBYE_S = 2.0
"""How long a session has to end at each attempt; its server has half of that time to acknowledge the end."""
GOODBYES = 3
MOST_PAGES = 32
MOST_LISTED = 2048
"""Tools of a server's list that are read, however few of them are offered."""
GRACE_S = 2.0
"""How long a server has to end its answer to a call that is over."""
ANSWERS_TIMES = 4
"""All answers to one call may have this many times the maximum bytes of one message."""
EVENT_COSTS = 8192
"""Bytes that an event counts in addition to its own: it is parsed and checked several times, however short it is."""
RATE = 512 * 1024
"""Bytes per second: 64 events."""
ANSWER_S = 10.0
"""How long a server may take to answer anything but a call: a notification, or the opening of a stream."""
RESUME_S = 0.5
"""Pause before a broken answer is resumed, however soon its server wants that."""
BURST_TIMES = 2
"""How many messages of the maximum size are read at full speed."""
_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=16)
_SESSION = "mcp-session-id"
_EVENTS = "text/event-stream"
_RESUMED = "last-event-id"
_EVENT_END = re.compile(rb"(?>\r\n?|\n){2}")
_log = structlog.get_logger("midstream.tools")
_RESULT = TypeAdapter(mcp_types.CallToolResult)


class ReconnectTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. `first`, `longest`: pauses before a session is reopened; each is twice the one before.

    `apart`: the least time between two reads of a list, however often the server reports changes.
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
        load_schema_checks()
        self._options = options
        self._headers = headers
        self._timing = timing or ReconnectTiming()
        self._trust = ssl.create_default_context(cafile=options.ca_file)
        self._calls = Calls(FairSlots(CALLS, each=OWNERS_CALLS), result_bytes=result_bytes)
        self._session: Session | None = None
        self._listing = Listing()
        self._refresh_due = asyncio.Event()
        self._tried = asyncio.Event()
        self._pause = self._timing.first

    def offered(self) -> tuple[ServerTool, ...]:
        """Return the tools, sorted by name; none while the server is away."""
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
        """Keep a session open while the context lasts. The block begins once the first handshake has succeeded or failed."""
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
        guard = GuardedTransport(
            httpx2.AsyncHTTPTransport(verify=self._trust, trust_env=False, limits=_LIMITS),
            most_bytes=self._options.max_response_bytes,
            connect_s=self._options.connect_s,
            on_suspect=self._refresh_due.set,
        )
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

        Returns when the server no longer knows the session. Raises what the library raises if the session has ended.
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


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Cancel a task, once more if the cancellation got lost on its way; leave the task behind if nothing helps."""
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


async def call_remote_tool(
    session: Session, name: str, arguments: dict[str, Any], call: LiveCall, options: ServerOptions
) -> str:
    """Run a tool, by its name at the server. Raises ToolFailed as soon as it is known that no answer will come.

    A cancelled caller returns at once. The server is notified meanwhile, and the call keeps its place until then.
    """
    traffic = CallTraffic(most_bytes=ANSWERS_TIMES * options.max_response_bytes)
    CURRENT.set(traffic)
    exchange = asyncio.ensure_future(session.call(name, arguments, call.context))
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
    """Retrieve the error of a task that nobody waits for: it was reported, or is no longer of interest."""
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


@asynccontextmanager
async def opened(
    options: ServerOptions,
    guard: GuardedTransport,
    *,
    headers: Mapping[str, str],
    changed: Callable[[], None],
) -> AsyncIterator[Session]:
    """Open a session for as long as the context lasts. `changed` is called when the list of tools changes.

    Raises what the library raises.
    """

    async def on_message(message: IncomingMessage) -> None:
        if isinstance(message, mcp_types.ToolListChangedNotification):
            changed()

    async with httpx2.AsyncClient(transport=guard, headers=dict(headers), trust_env=False) as http:
        client = Client(
            streamable_http_client(
                options.url, http_client=http, max_sse_event_size=options.max_response_bytes
            ),
            cache=None,
            message_handler=on_message,
            client_info=mcp_types.Implementation(name="midstream", version=version("midstream")),
        )
        async with client:
            yield Session(client, options)


class TooManyTools(Exception):
    """A server's list of tools has no end, or is too long."""


class Session:
    """An open session."""

    def __init__(self, client: Client, options: ServerOptions) -> None:
        self._client = client
        self._options = options

    @property
    def protocol(self) -> str:
        """The version of MCP that both sides use."""
        return self._client.protocol_version

    async def listing(self) -> Listing:
        """Request the list of tools. Raises MCPError, TooManyTools and pydantic's ValidationError."""
        found: list[mcp_types.Tool] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            params = mcp_types.PaginatedRequestParams(cursor=cursor) if cursor else None
            page = await self._client.session.list_tools(params=params)
            found += page.tools
            cursor = page.next_cursor
            if len(found) > MOST_LISTED:
                break
            if cursor is None:
                return await asyncio.to_thread(listing_of, [_remote(tool) for tool in found], self._options)
        raise TooManyTools(f"its list has more than {MOST_LISTED} tools or {MOST_PAGES} pages")

    @property
    def has_change_stream(self) -> bool:
        """Whether changes of the list come over a stream that has to be requested."""
        return self.protocol in MODERN_PROTOCOL_VERSIONS

    async def changes(self, changed: Callable[[], None]) -> None:
        """Follow the server's reports about its list until the stream ends."""
        try:
            async with self._client.listen(tools_list_changed=True) as events:
                async for _ in events:
                    changed()
        except (MCPError, SubscriptionLost):
            return  # the list is read from time to time anyway

    async def call(
        self, name: str, arguments: dict[str, Any], context: CallContext
    ) -> mcp_types.CallToolResult:
        """Run a tool, by its name at the server. Raises MCPError and pydantic's ValidationError.

        The library's `call_tool` would match the result against the server's own patterns, however long that takes.
        """

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            context.progress(Progress(done=progress, total=total, message=message or ""))

        params = mcp_types.CallToolRequestParams(name=name, arguments=arguments, _meta=self._meta(context))
        request = mcp_types.CallToolRequest(params=params)
        return await self._client.session.send_request(request, _RESULT, progress_callback=on_progress)

    def _meta(self, context: CallContext) -> mcp_types.RequestParamsMeta:
        """Return what a server is sent about a call besides its arguments."""
        meta: dict[str, Any] = {"midstream/call": context.call_id}
        if self._options.identify:
            meta |= {"midstream/owner": context.owner, "midstream/conversation": context.conversation}
        return cast("mcp_types.RequestParamsMeta", meta)


def _remote(tool: mcp_types.Tool) -> RemoteTool:
    hints = tool.annotations
    return RemoteTool(
        name=tool.name,
        description=tool.description or "",
        schema=tool.input_schema,
        read_only=hints is not None and hints.read_only_hint is True,
        idempotent=hints is not None and hints.idempotent_hint is True,
    )


class CallTraffic:
    """The state of a call on the wire. `most_bytes`: of all that the server sends for it.

    A session has calls of many users at once. The work for each is done in tasks that carry the call in their context.
    """

    def __init__(self, *, most_bytes: int) -> None:
        self.over = False
        self.fault: asyncio.Future[ToolFailed] = asyncio.get_running_loop().create_future()
        """Set once it is useless to wait for the answer."""
        self._left = most_bytes
        self._cut_off: float | None = None
        self._reading: set[asyncio.Timeout] = set()

    def fail(self, words: str, *, ran: bool) -> None:
        """End the call. `ran`: the server may have done its work. Only the first failure counts."""
        if not self.fault.done():
            self.fault.set_result(ToolLost(words) if ran else ToolFailed(words))

    def spend(self, size: int) -> None:
        """Count received bytes of the call."""
        self._left -= size
        if self._left < 0:
            self.fail("The tool's answer has more bytes than are read.", ran=False)

    def end(self) -> None:
        """Note that nobody waits any more: what is still being read is soon cut off."""
        self.over = True
        self._cut_off = asyncio.get_running_loop().time() + GRACE_S
        for limit in self._reading:
            limit.reschedule(self._cut_off)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Raise TimeoutError from the block once the call has been over for a while."""
        async with asyncio.timeout_at(self._cut_off) as limit:
            self._reading.add(limit)
            try:
                yield
            finally:
                self._reading.discard(limit)


CURRENT: ContextVar[CallTraffic | None] = ContextVar("current call of a tool", default=None)
"""The call that a task works for; None in tasks of the session as a whole."""


class GuardedTransport(httpx2.AsyncBaseTransport):
    """One session's transport. `most_bytes`: of one message. `on_suspect`: called if the session may have ended.

    The library ends a whole session if one connection breaks. So a failed exchange gets an answer here instead, and
    only the call that it belongs to notices.
    """

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport,
        *,
        most_bytes: int,
        connect_s: float,
        on_suspect: Callable[[], None],
    ) -> None:
        self.trouble = ""
        """The last failure, for the operator."""
        self.gone = False
        """Whether the server no longer knows the session."""
        self._inner = inner
        self._most_bytes = most_bytes
        self._connect_s = connect_s
        self._on_suspect = on_suspect
        self._has_listened = False
        self._bucket = TokenBucket(Rate(RATE, BURST_TIMES * most_bytes))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Exchange a request for an answer. A failure gives an answer with a status of 5xx, or 410 if the call is over."""
        call = CURRENT.get()
        if call is not None and request.method == "GET" and (call.over or call.fault.done()):
            return httpx2.Response(HTTPStatus.GONE)  # nobody waits for the rest of that answer
        if request.method == "GET" and (self._has_listened or _RESUMED in request.headers):
            # with `retry: 0`, the library would ask again and again without a pause
            await asyncio.sleep(RESUME_S)
        self._has_listened = self._has_listened or request.method == "GET"
        request.headers["accept-encoding"] = "identity"
        request.extensions = {**request.extensions, "timeout": self._times(request)}
        try:
            async with call.reading() if call is not None else nullcontext():
                response = await self._inner.handle_async_request(request)
        except (httpx2.TransportError, TimeoutError) as error:
            return self._broken(call, error)
        return await self._checked(request, response, call)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()

    def _times(self, request: httpx2.Request) -> dict[str, float | None]:
        """Return the time limits: a call has its own, an open stream none, anything else a short one."""
        times: dict[str, float | None] = dict.fromkeys(("connect", "pool", "write"), self._connect_s)
        if request.method == "DELETE":
            return dict.fromkeys((*times, "read"), GOODBYE_S / 2)
        if request.method == "GET":
            return times | {"read": None}
        sent = msgspec.json.decode(request.content, type=_Envelope)
        return times | {"read": None if sent.id is not None and sent.method is not None else ANSWER_S}

    def _broken(self, call: CallTraffic | None, error: Exception) -> httpx2.Response:
        reached = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
        self.trouble = f"{'the connection broke' if reached else 'it is unreachable'}: {type(error).__name__}"
        if call is not None:
            words = (
                "The connection to the tool's server broke. It is not known whether the tool did its work."
                if reached
                else "The tool's server can't be reached. The tool was not run."
            )
            call.fail(words, ran=reached)
        self._on_suspect()
        return httpx2.Response(HTTPStatus.SERVICE_UNAVAILABLE)

    async def _checked(
        self, request: httpx2.Request, response: httpx2.Response, call: CallTraffic | None
    ) -> httpx2.Response:
        """Return the answer for the library."""
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            self.trouble = "its answers are compressed, although that was not requested"
            if call is not None:
                call.fail("The tool's answer can't be read.", ran=True)
            return httpx2.Response(HTTPStatus.BAD_GATEWAY)
        self._note(request, response, call)
        response.headers.pop("set-cookie", None)
        if response.headers.get("content-type", "").lower().startswith(_EVENTS):
            response.headers["content-type"] = (
                _EVENTS  # its ends are counted as bytes: no codec of the server's choice
            )
        response.stream = GuardedBody(response, call, bucket=self._bucket, most_bytes=self._most_bytes)
        return response

    def _note(self, request: httpx2.Request, response: httpx2.Response, call: CallTraffic | None) -> None:
        """Note the meaning of a refusal, since the library reports its status to nobody."""
        status = response.status_code
        if status < HTTPStatus.BAD_REQUEST or request.method != "POST":
            return
        self.trouble = f"it answers with HTTP status {status}"
        words = f"The tool's server answered with HTTP status {status}."
        if status == HTTPStatus.NOT_FOUND and _SESSION in request.headers:
            self.trouble, self.gone = "it no longer knows the session", True
            words = "The tool's server has restarted. The tool was not run."
            self._on_suspect()
        elif response.headers.get("content-type", "").startswith("application/json"):
            return  # the library reads the reason there
        if call is not None:
            call.fail(words, ran=status >= HTTPStatus.INTERNAL_SERVER_ERROR)


class BodyCutOff(httpx2.StreamError):
    """The rest of a body is not read. The library takes it as the end of this exchange alone."""


class _Envelope(msgspec.Struct):
    """The parts of a message that matter here: a request has a method and an id."""

    id: str | int | None = None
    method: str | None = None


class GuardedBody(httpx2.AsyncByteStream):
    """A body that is read at a limited pace, up to its limits, and only while somebody waits for it."""

    def __init__(
        self,
        response: httpx2.Response,
        call: CallTraffic | None,
        *,
        bucket: TokenBucket,
        most_bytes: int,
    ) -> None:
        self._inner = cast("httpx2.AsyncByteStream", response.stream)
        self._has_events = response.headers.get("content-type", "").lower().startswith(_EVENTS)
        self._call = call
        self._bucket = bucket
        self._most_bytes = most_bytes
        self._size = 0  # of the current message, before `_end`
        self._end = b""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield what may pass. Raises BodyCutOff."""
        parts = aiter(self._inner)
        while (part := await self._next(parts)) is not None:
            events = self._count(part)
            yield part
            await self._wait(len(part) + events * EVENT_COSTS)

    async def aclose(self) -> None:
        """Close the connection if the body was not read to its end."""
        await self._inner.aclose()

    async def _next(self, parts: AsyncIterator[bytes]) -> bytes | None:
        try:
            async with self._call.reading() if self._call is not None else nullcontext():
                return await anext(parts, None)
        except (httpx2.TransportError, TimeoutError) as error:
            raise BodyCutOff(f"The body broke off: {type(error).__name__}.") from error

    def _count(self, part: bytes) -> int:
        """Return how many events end in a part. Raises BodyCutOff if the server sends more than it may."""
        known = self._end + part
        *ended, rest = _EVENT_END.split(known) if self._has_events else [known]
        sizes = [*map(len, ended), len(rest)]
        sizes[0] += self._size
        self._end = rest[-3:]  # an event may end within it
        self._size = sizes[-1] - len(self._end)
        if self._call is not None:
            self._call.spend(len(part))
        if max(sizes) > self._most_bytes:
            if self._call is not None:
                self._call.fail("The tool's answer has more bytes than are read.", ran=False)
            raise BodyCutOff(f"A message has more than {self._most_bytes} bytes.")
        if self._call is not None and self._call.fault.done():
            raise BodyCutOff("The call has failed.")
        return len(ended)

    async def _wait(self, cost: float) -> None:
        now = asyncio.get_running_loop().time()
        self._bucket.take(cost, now)
        if (pause := self._bucket.wait_s(now)) > 0:
            await asyncio.sleep(pause)
