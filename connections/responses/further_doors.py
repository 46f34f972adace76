"""`POST /v1/responses/input_tokens` and `…/compact`: the length of an input, and a shorter one to use instead."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import ClassVar, Literal

import msgspec

from connections.http.exchange import Exchange
from connections.http.json_answers import answer
from connections.limits.caller import Caller
from connections.openai.problems import Problem
from connections.openai.reception import Reception
from connections.responses.answers import wire
from connections.responses.answers.resource import usage_of
from connections.responses.answers.telling import problem_at
from connections.responses.creating import Creator
from connections.responses.door import BodyDoor
from connections.responses.requests.fields import Creation
from connections.responses.requests.items import sealed
from connections.wire.table import Counts
from engine.messages import Message, ToolCall
from engine.reply_spec import ReplySpec
from sessions.running.ephemeral import Ask
from sessions.running.waiting_pieces import Text
from sessions.service import Sessions

_SHORTEN = (
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


class CountDoor(BodyDoor):
    """Counts tokens. It begins no turn, so it is a read."""

    counts: ClassVar[Counts] = Counts.READ

    def __init__(self, sessions: Sessions, creator: Creator, reception: Reception) -> None:
        super().__init__(creator, reception)
        self._sessions = sessions

    async def serve(self, exchange: Exchange, caller: Caller, request: Creation, place: ExitStack) -> None:
        """Answer one. Raises Refused."""
        ask = await self.creator.ask(caller, request, exchange)
        tokens = await self._sessions.count(caller.owner, ask)
        place.close()
        await exchange.answer(answer(Counted(input_tokens=tokens)))


class CompactDoor(BodyDoor):
    """Has the model write a summary, in a turn like others: counted, filtered, and stopped if its client leaves."""

    def __init__(self, sessions: Sessions, creator: Creator, reception: Reception) -> None:
        super().__init__(creator, reception)
        self._sessions = sessions

    async def serve(self, exchange: Exchange, caller: Caller, request: Creation, place: ExitStack) -> None:
        """Answer one. Raises Refused."""
        ask = shortening(await self.creator.ask(caller, request, exchange), request.instructions)
        await self.reception.count(caller)
        reply = await self._sessions.answer(caller.owner, ask)
        place.close()
        try:
            summary = "".join([piece.text async for piece in reply if isinstance(piece, Text)])
        finally:
            reply.cancel()
        if (problem := problem_at(reply.ended)) is not None:
            raise problem
        if not summary.strip():
            raise Problem(503, "The model wrote no summary; try again.", code="empty_summary")
        name = reply.turn_id.removeprefix("turn_")
        item = CompactionItem(id=f"cmp_{name}", encrypted_content=sealed(summary.strip()))
        told = Compaction(
            id=f"resp_{name}",
            created_at=int(time.time()),
            output=(item,),
            usage=usage_of(reply.ended.usage),
        )
        await exchange.answer(answer(told))


def shortening(ask: Ask, wishes: str | None) -> Ask:
    """Return what is asked for a summary of an ask. `wishes`: its client's instructions for the summary."""
    said = ask.messages[1:] if wishes else ask.messages
    wish = f"{_SHORTEN}\n\n{wishes}" if wishes else _SHORTEN
    return msgspec.structs.replace(
        ask, messages=(*map(_in_words, said), Message("user", wish)), spec=ReplySpec(reasoning="off")
    )


def _in_words(message: Message) -> Message:
    """Return a message for a model that is offered no tools."""
    if message.role == "tool":
        return Message("user", f"Result of a call: {message.content}")
    calls = "".join(f"\nCalled {_call(call)}." for call in message.calls)
    return Message(message.role, f"{message.content}{calls}".strip()) if calls else message


def _call(call: ToolCall) -> str:
    return f"{call.name} with {call.arguments}"
