"""One session with a server: its handshake, its list of tools, and a call. Knows nothing of other sessions."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any, assert_never, cast

import httpx2
import mcp_types
import msgspec
from mcp import Client, MCPError
from mcp.client import ClientRequestContext
from mcp.client.session import ClientSession, IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter

from sessions.tools.mcp_servers.call_traffic import CURRENT, CallTraffic
from sessions.tools.mcp_servers.guarded_transport import GuardedTransport
from sessions.tools.mcp_servers.listing import Listing, RemoteTool, listing_of
from sessions.tools.mcp_servers.server_file import ServerOptions
from sessions.tools.server_tool import (
    Accepted,
    CallContext,
    Declined,
    Dismissed,
    Elicitation,
    Progress,
    ToolFailed,
)

Outcome = mcp_types.ElicitResult | mcp_types.ErrorData


async def on_elicitation(context: ClientRequestContext, params: mcp_types.ElicitRequestParams) -> Outcome:  # noqa: ARG001 - as the library calls it
    """Ask the user of the call that the question came with. One that came with no call, or too late, is not asked."""
    call = CURRENT.get()
    if call is None or call.over:
        return mcp_types.ElicitResult(action="cancel")
    return await elicit_answer(call, params)


async def elicit_answer(call: CallTraffic, params: mcp_types.ElicitRequestParams) -> Outcome:
    """Ask the user of a call. A request to visit a page is declined, since clients here can't show one."""
    if isinstance(params, mcp_types.ElicitRequestURLParams):
        return mcp_types.ElicitResult(action="decline")
    try:
        schema = msgspec.json.encode(params.requested_schema).decode()
        answer = await call.elicit(Elicitation(message=params.message, schema=schema))
    except (ToolFailed, TypeError, RecursionError) as refusal:
        return mcp_types.ErrorData(code=mcp_types.INVALID_PARAMS, message=str(refusal))
    match answer:
        case Accepted(content=content):
            return mcp_types.ElicitResult(action="accept", content=content)
        case Declined():
            return mcp_types.ElicitResult(action="decline")
        case Dismissed():
            return mcp_types.ElicitResult(action="cancel")
    assert_never(answer)


_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=16)

MOST_PAGES = 32
MOST_LISTED = 2048
"""Tools of a server's list that are read, however few of them are offered."""
MOST_ROUNDS = 16
"""How often a server may answer a call with further requests."""
ROUND_S = 0.25
"""Pause before a call is sent again whose server asked only for that."""

_ANSWER: TypeAdapter[mcp_types.CallToolResult | mcp_types.InputRequiredResult] = TypeAdapter(
    mcp_types.CallToolResult | mcp_types.InputRequiredResult
)


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
        self, name: str, arguments: dict[str, Any], context: CallContext, traffic: CallTraffic
    ) -> mcp_types.CallToolResult:
        """Run a tool by its server's name, and pass the server's questions on to the user.

        Raises ToolFailed, MCPError and pydantic's ValidationError.
        """
        responses: mcp_types.InputResponses | None = None
        state: str | None = None
        for _ in range(MOST_ROUNDS):
            params = mcp_types.CallToolRequestParams(
                name=name,
                arguments=arguments,
                input_responses=responses,
                request_state=state,
                _meta=self._meta(context),
            )
            answer = await _sent(self._client.session, params, context)
            if isinstance(answer, mcp_types.CallToolResult):
                return answer
            responses, state = await _answered(answer, traffic), answer.request_state
        raise ToolFailed(f"The tool's server asked for more input {MOST_ROUNDS} times.")

    def _meta(self, context: CallContext) -> mcp_types.RequestParamsMeta:
        """Return what a server may know of a call besides its arguments."""
        meta: dict[str, Any] = {"midstream/call": context.call_id}
        if self._options.identify:
            meta |= {"midstream/owner": context.owner, "midstream/conversation": context.conversation}
        return cast("mcp_types.RequestParamsMeta", meta)


async def _sent(
    session: ClientSession, params: mcp_types.CallToolRequestParams, context: CallContext
) -> mcp_types.CallToolResult | mcp_types.InputRequiredResult:
    """Send one round of a call.

    `call_tool` is not used: it would match the result against the server's own patterns, however long that takes.
    """

    async def on_message(progress: float, total: float | None, message: str | None) -> None:
        context.progress(Progress(done=progress, total=total, message=message or ""))

    request = mcp_types.CallToolRequest(params=params)
    return await session.send_request(request, _ANSWER, progress_callback=on_message)


async def _answered(needed: mcp_types.InputRequiredResult, traffic: CallTraffic) -> mcp_types.InputResponses:
    """Answer the requests within a result. Raises ToolFailed."""
    if not needed.input_requests:
        await asyncio.sleep(ROUND_S)
    responses: mcp_types.InputResponses = {}
    for key, request in (needed.input_requests or {}).items():
        if not isinstance(request, mcp_types.ElicitRequest):
            raise ToolFailed("The tool's server asked for something that is not supported here.")
        outcome = await elicit_answer(traffic, request.params)
        if isinstance(outcome, mcp_types.ErrorData):
            raise ToolFailed(outcome.message)
        responses[key] = outcome
    return responses


def _remote(tool: mcp_types.Tool) -> RemoteTool:
    hints = tool.annotations
    return RemoteTool(
        name=tool.name,
        description=tool.description or "",
        schema=tool.input_schema,
        read_only=hints is not None and hints.read_only_hint is True,
        idempotent=hints is not None and hints.idempotent_hint is True,
    )


def guard_of(
    options: ServerOptions, *, trust: ssl.SSLContext, on_suspect: Callable[[], None]
) -> GuardedTransport:
    """Make the transport to a server. `trust`: trusted certificates. `on_suspect`: called when the session may have ended."""
    return GuardedTransport(
        httpx2.AsyncHTTPTransport(verify=trust, trust_env=False, limits=_LIMITS),
        most_bytes=options.max_response_bytes,
        connect_s=options.connect_s,
        on_suspect=on_suspect,
    )


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
            elicitation_callback=on_elicitation,
            message_handler=on_message,
            client_info=mcp_types.Implementation(name="midstream", version=version("midstream-server")),
        )
        async with client:
            yield Session(client, options)
