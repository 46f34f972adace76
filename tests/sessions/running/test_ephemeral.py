"""Turns without a conversation: a reader, an end for each reply, and nothing kept."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from engine.messages import ChosenToken, Message, Params, Regex, ReplySpec, TokenLogprob, Tool, ToolCall
from engine.scripted import Call, ScriptedEngine, Step, Thought, words_of
from sessions.errors import BadParams, ContextOverflow, Draining, EngineDown, Filtered
from sessions.events import Cause, Done, Reason
from sessions.filters.chain import Filters
from sessions.records import Owner
from sessions.running.ephemeral import (
    AFFINITY_CHARS,
    MAX_PIECE_LOGPROBS,
    MAX_WAITING_BYTES,
    EphemeralReply,
    EphemeralRequest,
    Piece,
    ReasoningPiece,
    ReplyBuffer,
    TextPiece,
)
from sessions.service import Sessions
from sessions.turn.policy import ToolLimits
from tests.sessions.broken_filter import Broken
from tests.sessions.chat_driver import eventually, filtering, serving

ALICE = Owner("anonymous", "alice")
MESSAGES = (Message("user", "Hello!"),)
HELLO = EphemeralRequest(MESSAGES)
LOOK = Tool("look", "Looks around.")
FREE = ReplySpec(tools=(LOOK,))
ROUND = (
    Message("assistant", "", calls=(ToolCall("c1", "look", "{}"),)),
    Message("tool", "A tree.", call_id="c1"),
)


async def start_reply(
    sessions: Sessions, engine: ScriptedEngine, *script: Step, **options: Any
) -> EphemeralReply:
    """A turn that the engine has."""
    engine.script(script or words_of("One two three."))
    begun = len(engine.requests)
    reply = await sessions.ephemeral.answer(ALICE, EphemeralRequest(MESSAGES, **options))
    await eventually(lambda: len(engine.requests) > begun)
    return reply


async def end_of(reply: EphemeralReply) -> Done:
    async for _ in reply:
        pass
    return reply.ended


def text_and_tokens(piece: Piece | None) -> tuple[str, list[str]]:
    """A text, and the names of the tokens that came with it."""
    assert isinstance(piece, TextPiece)
    return piece.text, [one.chosen.token for one in piece.logprobs]


async def test_text_merges_while_the_reader_is_late_and_nothing_of_it_is_stored(
    sessions: Sessions, engine: ScriptedEngine, store: Redis
) -> None:
    before = set(await store.keys())
    reply = await start_reply(sessions, engine)
    assert sessions.statistics().turns == 1
    with pytest.raises(RuntimeError):
        _ = reply.ended
    engine.step(2)
    assert await anext(reply) == TextPiece("One two")
    engine.step(2)
    assert [piece async for piece in reply] == [TextPiece(" three.")]
    assert (reply.ended.reason, reply.ended.chars) == (Reason.STOP, 14)
    assert (reply.ended.usage.prompt_tokens, reply.ended.usage.generated_tokens) == (5, 4)
    assert set(await store.keys()) == before


async def test_a_call_without_a_name_of_its_own_is_given_one(
    sessions: Sessions, engine: ScriptedEngine
) -> None:
    reply = await start_reply(sessions, engine, Call("look"), Call("look"), spec=FREE)
    engine.step(3)
    await eventually(lambda: reply.done is not None)
    ids = [piece.call_id async for piece in reply if isinstance(piece, ToolCall)]
    assert len(set(ids)) == 2
    assert all(re.fullmatch("call_[0-9a-f]{24}", one) for one in ids)


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


@pytest.mark.parametrize("filtered", [False, True])
async def test_an_engine_that_does_not_confirm_holds_no_end_up(
    store: Redis, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, *, filtered: bool
) -> None:
    monkeypatch.setattr("sessions.turn.turn.CONFIRM_S", 0.01)
    engine.hold_cancels = True
    async with serving(store, engine, filters=filtering(outgoing=["two"])) as chat:
        reply = await start_reply(chat.sessions, engine)
        if filtered:
            engine.step(3)
            assert [piece async for piece in reply] == [TextPiece("One ")]
            assert reply.ended.reason is Reason.FILTERED
        else:
            reply.cancel()
            done = await end_of(reply)
            assert done.cancel is not None
            assert done.cancel.steps_after is None
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


@pytest.mark.parametrize("first", ["One", Thought("Let me see."), Call("look")])
async def test_one_that_dies_behind_the_first_word_thought_or_call_is_not(
    first: Step, sessions: Sessions, engine: ScriptedEngine
) -> None:
    reply = await start_reply(sessions, engine, first, "One.")
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
    await eventually(lambda: sessions.admission.draining)
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
    begins = "a" * AFFINITY_CHARS
    asks = [EphemeralRequest((Message("user", text),)) for text in (begins, f"{begins}b", f"b{begins}")]
    for ask in asks:
        await sessions.ephemeral.answer(ALICE, ask)
    await eventually(lambda: len(engine.requests) == len(asks))
    one, same, other = [request.conversation for request in engine.requests]
    assert one == same != other


# ---- tokens, and what waits


async def test_a_late_reader_gets_the_tokens_of_the_text_that_it_takes(
    sessions: Sessions, engine: ScriptedEngine
) -> None:
    reply = await start_reply(sessions, engine, "One", " two", " three.", params=Params(top_logprobs=1))
    engine.step(2)
    assert text_and_tokens(await anext(reply)) == ("One two", ["One", " two"])
    engine.step(2)
    assert text_and_tokens(await anext(reply)) == (" three.", [" three."])
    plain = await start_reply(sessions, engine)  # who does not ask is told of none
    engine.step(4)
    assert text_and_tokens(await anext(plain)) == ("One two three.", [])


async def test_a_token_that_a_filter_ends_is_not_told(store: Redis, engine: ScriptedEngine) -> None:
    """Its space left, and its name would tell the rest."""
    async with serving(store, engine, filters=filtering(outgoing=["darn"])) as chat:
        reply = await start_reply(
            chat.sessions, engine, "One", " two", " darn.", params=Params(top_logprobs=0)
        )
        engine.step(4)
        pieces = [text_and_tokens(piece) async for piece in reply]
    assert "".join(text for text, _ in pieces) == "One two "
    assert [name for _, some in pieces for name in some] == ["One", " two"]
    assert reply.ended.reason is Reason.FILTERED


async def test_no_more_tokens_are_told_at_once_than_may_be(
    sessions: Sessions, engine: ScriptedEngine
) -> None:
    script = ["x"] * (MAX_PIECE_LOGPROBS + 2)
    reply = await start_reply(sessions, engine, *script, params=Params(top_logprobs=20))
    engine.step(MAX_PIECE_LOGPROBS + 3)
    await eventually(lambda: reply.done is not None)
    pieces = [text_and_tokens(piece) async for piece in reply]
    assert [(len(text), len(some)) for text, some in pieces] == [
        (MAX_PIECE_LOGPROBS + 2, MAX_PIECE_LOGPROBS),
        (0, 2),
    ]


LONG = "x" * 16_384


@pytest.mark.parametrize(
    "step", [LONG, Thought(LONG), Call("look", f'"{LONG}"')], ids=["text", "thought", "call"]
)
async def test_a_reader_that_is_too_late_is_cut_off(
    sessions: Sessions, engine: ScriptedEngine, step: Step
) -> None:
    reply = await start_reply(sessions, engine, *[step] * 100, spec=FREE)
    cut: list[str] = []
    reply.cut_off = lambda: cut.append("off")
    for _ in range(100):
        engine.step()
        await asyncio.sleep(0)
    await eventually(lambda: reply.done is not None)
    assert (cut, reply.ended.reason) == (["off"], Reason.CANCELLED)
    assert [piece async for piece in reply] == []


def test_what_is_told_of_tokens_counts_for_what_may_wait() -> None:
    likely = TokenLogprob("x", -1.0, b"x")
    token = ChosenToken(likely, (likely,) * 20, 1)
    waiting = ReplyBuffer()
    for _ in range(1000):
        waiting.put(TextPiece("x", (token,)))
    assert waiting.bytes > MAX_WAITING_BYTES
    assert sum(len(text_and_tokens(piece)[1]) for piece in iter(waiting.take, None)) == 1000
    assert waiting.bytes == 0


async def test_filters_read_thoughts_and_the_arguments_of_calls(store: Redis, engine: ScriptedEngine) -> None:
    async with serving(store, engine, filters=filtering(outgoing=["darn"])) as chat:
        for step in (Thought("Oh darn."), Call("look", '{"at":"darn"}')):
            reply = await start_reply(chat.sessions, engine, "So:", step, "More.", spec=FREE)
            engine.step(4)
            pieces = [piece async for piece in reply]
            assert "darn" not in str(pieces)
            assert "More." not in str(pieces)
            assert reply.ended.reason is Reason.FILTERED


@given(st.lists(st.sampled_from(["text", "thought", "call", "take"])))
def test_pieces_keep_their_order_and_their_memory_is_accounted_for(steps: list[str]) -> None:
    waiting, put, taken = ReplyBuffer(), [], []
    for number, step in enumerate(steps):
        text = f"{number} "
        if step == "take":
            taken.append(waiting.take())
            continue
        pieces = {"text": TextPiece(text), "thought": ReasoningPiece(text)}
        waiting.put(pieces.get(step, ToolCall(text, "look", "{}")))
        put.append(text)
    taken += iter(waiting.take, None)
    assert waiting.bytes == 0
    assert "".join(map(_text_of, taken)) == "".join(put)
    assert waiting.take() is None


def _text_of(piece: Piece | None) -> str:
    match piece:
        case TextPiece(text) | ReasoningPiece(text):
            return text
        case ToolCall(call_id):
            return call_id
        case _:
            return ""


# ---- what a request may ask


async def test_tools_that_a_model_can_not_be_shown_are_ignored_or_refused_as_the_operator_says(
    store: Redis,
) -> None:
    engine = ScriptedEngine(features=())
    for unsupported in ("ignore", "refuse"):
        async with serving(store, engine, unsupported_tools=unsupported) as chat:
            for choice in ("required", "named"):
                spec = ReplySpec(tools=(LOOK,), tool_choice=choice, tool_name="look")  # type: ignore[arg-type]
                with pytest.raises(BadParams) as refused:
                    await chat.sessions.ephemeral.answer(ALICE, EphemeralRequest(MESSAGES, spec=spec))
                assert refused.value.field == "tools"
            free = EphemeralRequest(MESSAGES, spec=ReplySpec(tools=(LOOK,)))
            if unsupported == "refuse":
                with pytest.raises(BadParams):
                    await chat.sessions.ephemeral.answer(ALICE, free)
            else:
                reply = await chat.sessions.ephemeral.answer(ALICE, free)
                assert reply.ignored == ("tools",)
                assert [request.spec for request in engine.requests] in ([], [ReplySpec()])


async def test_a_clients_loop_of_calls_ends_in_words(store: Redis, engine: ScriptedEngine) -> None:
    """The rounds of one message of the user count, and begin anew with the next one."""
    requested = (MESSAGES + ROUND, MESSAGES + ROUND + ROUND + MESSAGES, MESSAGES + ROUND + ROUND)
    async with serving(store, engine, max_turns=99, tools=ToolLimits(max_rounds=2)) as chat:
        replies = [
            await chat.sessions.ephemeral.answer(ALICE, EphemeralRequest(messages, spec=FREE))
            for messages in requested
        ]
        await eventually(lambda: len(engine.requests) == len(requested))
    assert [reply.ignored for reply in replies] == [(), (), ("tools",)]
    assert [request.spec.tool_choice for request in engine.requests] == ["auto", "auto", "none"]


@pytest.mark.parametrize(
    ("unsupported", "spec"),
    [("refuse", FREE), ("ignore", ReplySpec(tools=(LOOK,), tool_choice="required"))],
)
async def test_a_loop_that_can_not_end_in_words_is_refused(
    store: Redis, engine: ScriptedEngine, unsupported: Literal["ignore", "refuse"], spec: ReplySpec
) -> None:
    limits = ToolLimits(max_rounds=2)
    async with serving(store, engine, tools=limits, unsupported_tools=unsupported) as chat:
        with pytest.raises(BadParams, match="2 replies to the last message of the user did") as refused:
            await chat.sessions.ephemeral.answer(ALICE, EphemeralRequest(MESSAGES + ROUND + ROUND, spec=spec))
    assert (refused.value.field, engine.requests) == ("tools", [])


async def test_what_a_client_has_the_model_read_passes_filters_and_fits_the_window(
    store: Redis, engine: ScriptedEngine
) -> None:
    called = Message("assistant", "", calls=(ToolCall("c1", "look", '{"at":"darn"}'),))
    async with serving(store, engine, filters=filtering(incoming=["darn"])) as chat:
        for ask in (
            EphemeralRequest((*MESSAGES, called)),
            EphemeralRequest((Message("assistant", "", reasoning="Oh darn."), *MESSAGES)),
            EphemeralRequest(MESSAGES, spec=ReplySpec(tools=(Tool("look", "A darn tool."),))),
        ):
            with pytest.raises(Filtered):
                await chat.sessions.ephemeral.answer(ALICE, ask)
        with pytest.raises(ContextOverflow):
            await chat.sessions.ephemeral.answer(
                ALICE, EphemeralRequest(MESSAGES, spec=ReplySpec(tools=(Tool("look", "word " * 200),)))
            )
        with pytest.raises(BadParams) as refused:
            await chat.sessions.ephemeral.answer(
                ALICE, EphemeralRequest(MESSAGES, spec=ReplySpec(format=Regex("(")))
            )
        assert refused.value.field == "format"
    assert engine.requests == []
