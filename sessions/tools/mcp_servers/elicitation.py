"""A server's questions to the user of a call: MCP's elicitation in form mode, as requests and as parts of results."""

from __future__ import annotations

from typing import assert_never

import mcp_types
import msgspec
from mcp.client import ClientRequestContext

from sessions.tools.mcp_servers.call_traffic import CURRENT, CallTraffic
from sessions.tools.server_tool import Accepted, Declined, Dismissed, Elicitation, ToolFailed

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
