"""Turns without a conversation: one reader, one end, nothing kept."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from engine.messages import Message, Params
from engine.scripted import Call, ScriptedEngine, Step, Thought
from sessions.errors import BadParams, ContextOverflow, Draining, EngineDown, Filtered
from sessions.events import Cause, Done, Reason
from sessions.filters.chain import Filters
from sessions.records import Owner
from sessions.running.ephemeral import AFFINITY_CHARS, EphemeralReply, EphemeralRequest, TextPiece
from sessions.service import Sessions
from tests.sessions.broken_filter import Broken
from tests.sessions.chat_driver import eventually, filtering, serving

ALICE = Owner("anonymous", "alice")
HELLO = EphemeralRequest((Message("user", "Hello!"),))


async def start_reply(
    sessions: Sessions, engine: ScriptedEngine, reply: str = "One two three."
) -> EphemeralReply:
    """A turn that the engine has."""
    engine.script(reply)
    started = await sessions.ephemeral.answer(ALICE, HELLO)
    await eventually(lambda: bool(engine.requests))
    return started


async def conversation_of(sessions: Sessions, engine: ScriptedEngine, content: str) -> str:
    """What an engine that keeps caches knows the chat of a message by."""
    engine.script("Well.")
    reply = await sessions.ephemeral.answer(ALICE, EphemeralRequest((Message("user", content),)))
    await eventually(lambda: bool(engine.requests))
    place = engine.requests.pop().conversation
    reply.cancel()
    await end_of(reply)
    return place


async def end_of(reply: EphemeralReply) -> Done:
    async for _ in reply:
        pass
    return reply.ended


async def test_text_merges_while_the_reader_is_late(sessions: Sessions, engine: ScriptedEngine) -> None:
    reply = await start_reply(sessions, engine)
    with pytest.raises(RuntimeError):
        _ = reply.ended
    engine.step(2)
    assert await anext(reply) == TextPiece("One two")
    engine.step(2)
    assert [piece async for piece in reply] == [TextPiece(" three.")]
    assert (reply.ended.reason, reply.ended.chars) == (Reason.STOP, 14)
    assert (reply.ended.usage.prompt_tokens, reply.ended.usage.generated_tokens) == (5, 4)


async def test_a_long_prompt_is_waited_for(sessions: Sessions, engine: ScriptedEngine) -> None:
    engine.prefill_tokens = 2
    reply = await start_reply(sessions, engine, "One.")
    for _ in range(5):
        engine.step()
        await asyncio.sleep(0)
    assert [piece async for piece in reply] == [TextPiece("One.")]
    assert reply.ended.timing.queued_ms is not None


async def test_nothing_of_it_is_stored(sessions: Sessions, engine: ScriptedEngine, store: Redis) -> None:
    before = set(await store.keys())
    reply = await start_reply(sessions, engine)
    assert sessions.statistics().turns == 1
    engine.step(4)
    await end_of(reply)
    assert set(await store.keys()) == before


async def test_a_reader_that_leaves_stops_it(sessions: Sessions, engine: ScriptedEngine) -> None:
    reply = await start_reply(sessions, engine)
    engine.step()
    await anext(reply)
    reply.cancel()
    reply.cancel()
    done = await end_of(reply)
    assert done.reason is Reason.CANCELLED
    assert done.cancel is not None
    assert (done.cancel.cause, done.cancel.steps_after) == (Cause.DISCONNECT, 0)


async def test_an_engine_that_does_not_confirm_holds_no_end_up(
    sessions: Sessions, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions.turn.turn.CONFIRM_S", 0.01)
    engine.hold_cancels = True
    reply = await start_reply(sessions, engine)
    reply.cancel()
    done = await end_of(reply)
    assert done.cancel is not None
    assert done.cancel.steps_after is None
    engine.step()


async def test_nor_the_end_that_a_filter_makes(
    store: Redis, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions.turn.turn.CONFIRM_S", 0.01)
    engine.hold_cancels = True
    async with serving(store, engine, filters=filtering(outgoing=["two"])) as chat:
        reply = await start_reply(chat.sessions, engine)
        engine.step(3)
        assert [piece async for piece in reply] == [TextPiece("One ")]
        assert reply.ended.reason is Reason.FILTERED
        engine.step()


async def test_a_filter_with_a_defect_ends_this_turn_alone(store: Redis, engine: ScriptedEngine) -> None:
    async with serving(store, engine, filters=Filters([Broken()])) as chat:
        reply = await start_reply(chat.sessions, engine)
        engine.step()
        done = await end_of(reply)
        assert (done.reason, done.error and done.error.code) == (Reason.ERROR, "internal")
        await eventually(lambda: engine.statistics().cancels == 1)


async def test_what_can_not_be_answered_is_refused(store: Redis, engine: ScriptedEngine) -> None:
    async with serving(store, engine, filters=filtering(incoming=["darn"])) as chat:
        sessions = chat.sessions
        for messages, refusal in (
            ([Message("user", "word " * 200)], ContextOverflow),
            ([Message("assistant", "Oh darn."), Message("user", "What?")], Filtered),
            ([Message("system", "")], BadParams),
        ):
            with pytest.raises(refusal):
                await sessions.ephemeral.answer(ALICE, EphemeralRequest(tuple(messages), Params()))
        engine.fail()
        with pytest.raises(EngineDown):
            await sessions.ephemeral.answer(ALICE, HELLO)
        assert sessions.statistics().turns == 0
    assert engine.requests == []


async def test_an_engine_that_fails_behind_the_answer_ends_it(
    sessions: Sessions, engine: ScriptedEngine
) -> None:
    reply = await sessions.ephemeral.answer(ALICE, HELLO)
    engine.stop()
    done = await end_of(reply)
    assert (done.reason, done.error and done.error.code) == (Reason.INTERRUPTED, "engine_unavailable")


async def test_an_engine_that_dies_before_the_first_word_is_asked_again(
    sessions: Sessions, engine: ScriptedEngine
) -> None:
    reply = await start_reply(sessions, engine)
    engine.die()
    await eventually(lambda: len(engine.requests) == 2)
    engine.step(20)
    assert (await end_of(reply)).reason is Reason.STOP


async def test_one_that_dies_behind_it_is_not(sessions: Sessions, engine: ScriptedEngine) -> None:
    reply = await start_reply(sessions, engine)
    engine.step()
    await anext(reply)
    engine.die()
    assert (await end_of(reply)).reason is Reason.INTERRUPTED
    assert len(engine.requests) == 1


@pytest.mark.parametrize("first", [Thought("Let me see."), Call("look")])
async def test_nor_is_one_that_dies_behind_its_first_thought_or_call(
    first: Step, sessions: Sessions, engine: ScriptedEngine
) -> None:
    engine.script([first, "One."])
    reply = await sessions.ephemeral.answer(ALICE, HELLO)
    await eventually(lambda: bool(engine.requests))
    engine.step()
    await anext(reply)
    engine.die()
    assert (await end_of(reply)).reason is Reason.INTERRUPTED
    assert len(engine.requests) == 1


async def test_a_drain_waits_and_then_ends_it(sessions: Sessions, engine: ScriptedEngine) -> None:
    reply = await start_reply(sessions, engine)
    draining = asyncio.create_task(sessions.drain(0.05))
    done = await end_of(reply)
    assert (done.reason, done.cancel and done.cancel.cause) == (Reason.INTERRUPTED, Cause.DRAIN)
    await draining
    with pytest.raises(Draining):
        await sessions.ephemeral.answer(ALICE, HELLO)


async def test_a_drain_ends_what_waits_for_the_engine(sessions: Sessions, engine: ScriptedEngine) -> None:
    engine.die(revive=False)
    answering = asyncio.create_task(sessions.ephemeral.answer(ALICE, HELLO))
    await eventually(lambda: sessions.statistics().turns == 1)
    draining = asyncio.create_task(sessions.drain(0.0))
    await eventually(lambda: sessions.parts.admission.draining)
    await asyncio.sleep(0)
    engine.revive()
    done = await end_of(await answering)
    assert done.reason is Reason.INTERRUPTED
    await draining
    assert engine.requests == []


async def test_who_leaves_before_the_engine_was_asked_leaves_nothing(
    sessions: Sessions, engine: ScriptedEngine
) -> None:
    engine.die(revive=False)
    answering = asyncio.create_task(sessions.ephemeral.answer(ALICE, HELLO))
    await eventually(lambda: sessions.statistics().turns == 1)
    answering.cancel()
    await asyncio.wait([answering])
    assert sessions.statistics().turns == 0
    engine.revive()


async def test_chats_meet_by_how_their_first_message_begins(
    sessions: Sessions, engine: ScriptedEngine
) -> None:
    """Megabytes of it would be read while everybody's text waits."""
    one = await conversation_of(sessions, engine, "a" * AFFINITY_CHARS)
    assert await conversation_of(sessions, engine, "a" * AFFINITY_CHARS + "b") == one
    assert await conversation_of(sessions, engine, "b" + "a" * AFFINITY_CHARS) != one
