"""`POST /v1/responses/input_tokens` and `…/compact`: the length of an input, and a shorter one to use instead."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import ClassVar, Literal

import msgspec

from connections.api.errors import Problem
from connections.api.request_context import RequestContext
from connections.http.exchange import Exchange
from connections.http.json_responses import json_response
from connections.limits.caller import Caller
from connections.protocol.codec import FrameCost
from connections.responses.creator import ResponseCreator
from connections.responses.endpoint import ResponseRequestEndpoint
from connections.responses.output import wire
from connections.responses.output.encoder import problem_at_end
from connections.responses.output.response_fields import usage_of
from connections.responses.requests.items import encode_opaque
from connections.responses.requests.models import Creation
from engine.messages import Message, ToolCall
from engine.reply_spec import ReplySpec
from sessions.running.ephemeral import EphemeralRequest, TextPiece
from sessions.service import Sessions

_SUMMARY_PROMPT = (
    "Write a summary of the conversation above for an assistant that goes on with it and can't read it: "
    "what was asked, what is known, what was decided, and what is still to be done. Write the summary alone."
)


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """The length of an input, with all that the model reads around it."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class CompactionItem(msgspec.Struct, frozen=True, kw_only=True, tag="compaction"):
    """A summary. `encrypted_content`: for the client to send back unchanged."""

    id: str
    encrypted_content: str


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """A replacement for an input."""

    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: tuple[CompactionItem, ...]
    usage: wire.Usage


class InputTokensEndpoint(ResponseRequestEndpoint):
    """Counts tokens. It begins no turn, so it is a read."""

    counts: ClassVar[FrameCost] = FrameCost.READ

    def __init__(self, sessions: Sessions, creator: ResponseCreator, request_context: RequestContext) -> None:
        super().__init__(creator, request_context)
        self._sessions = sessions

    async def serve(
        self, exchange: Exchange, caller: Caller, request: Creation, body_lease: ExitStack
    ) -> None:
        """Answer one. Raises Refused."""
        ask = await self.creator.ask(caller, request, exchange)
        tokens = await self._sessions.ephemeral.count(caller.owner, ask)
        body_lease.close()
        await exchange.answer(json_response(Counted(input_tokens=tokens)))


class CompactionEndpoint(ResponseRequestEndpoint):
    """Has the model write a summary, in a turn like others: counted, filtered, and stopped if its client leaves."""

    def __init__(self, sessions: Sessions, creator: ResponseCreator, request_context: RequestContext) -> None:
        super().__init__(creator, request_context)
        self._sessions = sessions

    async def serve(
        self, exchange: Exchange, caller: Caller, request: Creation, body_lease: ExitStack
    ) -> None:
        """Answer one. Raises Refused."""
        ask = summary_request(await self.creator.ask(caller, request, exchange), request.instructions)
        await self.request_context.count(caller)
        reply = await self._sessions.ephemeral.answer(caller.owner, ask)
        body_lease.close()
        try:
            summary = "".join([piece.text async for piece in reply if isinstance(piece, TextPiece)])
        finally:
            reply.cancel()
        if (problem := problem_at_end(reply.ended)) is not None:
            raise problem
        if not summary.strip():
            raise Problem(503, "The model wrote no summary; try again.", code="empty_summary")
        name = reply.turn_id.removeprefix("turn_")
        item = CompactionItem(id=f"cmp_{name}", encrypted_content=encode_opaque(summary.strip()))
        compaction = Compaction(
            id=f"resp_{name}",
            created_at=int(time.time()),
            output=(item,),
            usage=usage_of(reply.ended.usage),
        )
        await exchange.answer(json_response(compaction))


def summary_request(ask: EphemeralRequest, instructions: str | None) -> EphemeralRequest:
    """Return what is asked for a summary of an ask. `instructions`: its client's instructions for the summary."""
    messages_to_summarize = ask.messages[1:] if instructions else ask.messages
    prompt = f"{_SUMMARY_PROMPT}\n\n{instructions}" if instructions else _SUMMARY_PROMPT
    return msgspec.structs.replace(
        ask,
        messages=(*map(_without_tools, messages_to_summarize), Message("user", prompt)),
        spec=ReplySpec(reasoning="off"),
    )


def _without_tools(message: Message) -> Message:
    """Return a message for a model that is offered no tools."""
    if message.role == "tool":
        return Message("user", f"Result of a call: {message.content}")
    calls = "".join(f"\nCalled {_call_text(call)}." for call in message.calls)
    return Message(message.role, f"{message.content}{calls}".strip()) if calls else message


def _call_text(call: ToolCall) -> str:
    return f"{call.name} with {call.arguments}"
