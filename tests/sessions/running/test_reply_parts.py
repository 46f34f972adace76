"""A reply's pieces come to its reader in the order in which they were made, whatever they are."""

from __future__ import annotations

import asyncio
import re

from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from engine.messages import Message, ReplySpec, Tool, ToolCall
from engine.scripted import Call, ScriptedEngine, Step
from engine.scripted import Thought as Thinks
from sessions.events import Reason
from sessions.filters.chain import ReleasedText
from sessions.records import Owner
from sessions.running.ephemeral import (
    MAX_WAITING_BYTES,
    EphemeralReply,
    EphemeralRequest,
    Piece,
    ReasoningPiece,
    ReplyBuffer,
    TextPiece,
)
from sessions.service import Sessions
from tests.sessions.chat_driver import eventually, filtering, serving

ALICE = Owner("anonymous", "alice")
HELLO = (Message("user", "Hello!"),)
LOOK = ReplySpec(tools=(Tool("look", "Looks for the heck of it."),))
KINDS = st.sampled_from(["text", "thought", "call", "take"])


async def start_reply(sessions: Sessions, engine: ScriptedEngine, *script: Step) -> EphemeralReply:
    """A turn that the engine has."""
    engine.script(script)
    reply = await sessions.ephemeral.answer(ALICE, EphemeralRequest(HELLO, spec=LOOK))
    await eventually(lambda: bool(engine.requests))
    return reply


async def test_neighbours_of_one_kind_merge_while_the_reader_is_late(
    sessions: Sessions, engine: ScriptedEngine
) -> None:
    reply = await start_reply(
        sessions,
        engine,
        Thinks("Let me"),
        Thinks(" see."),
        "I",
        " look:",
        Call("look", '{"at":1}', "c1"),
        "Well.",
    )
    engine.step(7)
    await eventually(lambda: reply.done is not None)
    assert [piece async for piece in reply] == [
        ReasoningPiece("Let me see."),
        TextPiece("I look:"),
        ToolCall("c1", "look", '{"at":1}'),
        TextPiece("Well."),
    ]
    assert (reply.ended.reason, reply.ended.chars) == (Reason.TOOLS, 12)
    assert (reply.ended.usage.generated_tokens, reply.ended.usage.reasoning_tokens) == (7, 2)


async def test_a_call_without_a_name_of_its_own_is_given_one(
    sessions: Sessions, engine: ScriptedEngine
) -> None:
    reply = await start_reply(sessions, engine, Call("look"), Call("look"))
    engine.step(3)
    await eventually(lambda: reply.done is not None)
    ids = [piece.call_id async for piece in reply if isinstance(piece, ToolCall)]
    assert len(set(ids)) == 2
    assert all(re.fullmatch("call_[0-9a-f]{24}", one) for one in ids)


async def test_calls_that_nobody_takes_cut_their_reader_off(
    sessions: Sessions, engine: ScriptedEngine
) -> None:
    """The bound of what waits holds for calls and for thoughts, too."""
    for step in (Call("look", f'"{"x" * 16_384}"'), Thinks("x" * 16_384)):
        reply = await start_reply(sessions, engine, *[step] * 100)
        cut: list[str] = []
        reply.cut_off = lambda cut=cut: cut.append("off")  # type: ignore[misc]
        for _ in range(100):
            engine.step()
            await asyncio.sleep(0)
        await eventually(lambda reply=reply: reply.done is not None)  # type: ignore[misc]
        assert (cut, reply.ended.reason) == (["off"], Reason.CANCELLED)
        engine.requests.clear()


async def test_filters_read_thoughts_and_the_arguments_of_calls(store: Redis, engine: ScriptedEngine) -> None:
    async with serving(store, engine, filters=filtering(outgoing=["darn"])) as chat:
        for step in (Thinks("Oh darn."), Call("look", '{"at":"darn"}')):
            reply = await start_reply(chat.sessions, engine, "So:", step, "More.")
            engine.step(4)
            await eventually(lambda reply=reply: reply.done is not None)  # type: ignore[misc]
            pieces = [piece async for piece in reply]
            assert "darn" not in str(pieces)
            assert "More." not in str(pieces)
            assert reply.ended.reason is Reason.FILTERED
            engine.requests.clear()


@given(st.lists(KINDS))
def test_pieces_keep_their_order_and_their_memory_is_accounted_for(steps: list[str]) -> None:
    waiting, put, taken = ReplyBuffer(), [], []
    for number, step in enumerate(steps):
        text = f"{number} "
        match step:
            case "text":
                waiting.add_text(ReleasedText(text, 1))
            case "thought":
                waiting.add_reasoning(ReleasedText(text, 1))
            case "call":
                waiting.call(ToolCall(text, "look", "{}"))
            case _:
                taken.append(waiting.take())
                continue
        put.append((step, text))
    taken += iter(waiting.take, None)
    assert waiting.bytes == 0
    assert "".join(map(_text_of, taken)) == "".join(text for _, text in put)
    assert waiting.take() is None


def _text_of(piece: Piece | None) -> str:
    match piece:
        case TextPiece(text) | ReasoningPiece(text):
            return text
        case ToolCall(call_id):
            return call_id
        case _:
            return ""


def test_a_million_small_thoughts_are_too_many() -> None:
    waiting = ReplyBuffer()
    while waiting.bytes <= MAX_WAITING_BYTES:
        waiting.add_reasoning(ReleasedText("x", 1))
    assert waiting.take() == ReasoningPiece("x" * (MAX_WAITING_BYTES // 50 + 1))
