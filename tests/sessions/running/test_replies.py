"""Several replies of one request: one prompt, one reader, an end for each."""

from __future__ import annotations

from typing import Literal

import pytest
from redis.asyncio import Redis

from engine.messages import Message, Params, Regex, ReplySpec, Tool, ToolCall
from engine.scripted import Call, ScriptedEngine
from sessions.errors import BadParams, ContextOverflow, Filtered, Overloaded
from sessions.events import Reason
from sessions.records import Owner
from sessions.running.ephemeral import EphemeralRequest, Piece, ReplySet, TextPiece
from sessions.service import Sessions
from sessions.turn.policy import ToolLimits
from tests.sessions.chat_driver import eventually, filtering, serving

ALICE = Owner("anonymous", "alice")
HELLO = (Message("user", "Hello!"),)
LOOK = Tool("look", "Looks around.")
FREE = ReplySpec(tools=(LOOK,))
ROUND = (
    Message("assistant", "", calls=(ToolCall("c1", "look", "{}"),)),
    Message("tool", "A tree.", call_id="c1"),
)


async def start_replies(sessions: Sessions, engine: ScriptedEngine, *requests: EphemeralRequest) -> ReplySet:
    replies = await sessions.ephemeral.answers(ALICE, requests)
    await eventually(lambda: len(engine.requests) == len(replies))
    return replies


async def test_they_are_read_as_one_and_take_turns(sessions: Sessions, engine: ScriptedEngine) -> None:
    for reply in ("One two", "Three four"):
        engine.script(reply)
    replies = await start_replies(sessions, engine, EphemeralRequest(HELLO, replies=2))
    reported: list[tuple[int, Piece | None]] = []
    for _ in range(3):
        engine.step()
        reported += [await anext(replies), await anext(replies)]
    assert reported == [
        (0, TextPiece("One")),
        (1, TextPiece("Three")),
        (0, TextPiece(" two")),
        (1, TextPiece(" four")),
        (0, None),
        (1, None),
    ]
    with pytest.raises(StopAsyncIteration):
        await anext(replies)
    assert [replies[number].ended.reason for number in range(2)] == [Reason.STOP, Reason.STOP]


async def test_a_seed_makes_each_another_one(sessions: Sessions, engine: ScriptedEngine) -> None:
    largest = 2**63 - 1
    await start_replies(sessions, engine, EphemeralRequest(HELLO, Params(seed=largest), replies=2))
    assert [request.params.seed for request in engine.requests] == [largest, 0]
    assert engine.requests[0].cache_salt == engine.requests[1].cache_salt


async def test_who_leaves_ends_them_all(sessions: Sessions, engine: ScriptedEngine) -> None:
    replies = await start_replies(sessions, engine, EphemeralRequest(HELLO, replies=3))
    engine.step()
    replies.cancel()
    async for _ in replies:
        pass
    assert [replies[number].ended.reason for number in range(3)] == [Reason.CANCELLED] * 3
    assert sessions.statistics().turns == 0


async def test_a_request_that_is_refused_leaves_nothing_of_any(
    sessions: Sessions, engine: ScriptedEngine
) -> None:
    with pytest.raises(ContextOverflow):
        await sessions.ephemeral.answers(
            ALICE, [EphemeralRequest(HELLO), EphemeralRequest((Message("user", "word " * 200),), replies=2)]
        )
    assert (sessions.statistics().turns, engine.requests) == (0, [])


async def test_each_takes_a_place(store: Redis, engine: ScriptedEngine) -> None:
    async with serving(store, engine, max_turns=2) as chat:
        with pytest.raises(Overloaded):
            await chat.sessions.ephemeral.answers(ALICE, [EphemeralRequest(HELLO, replies=3)])
        assert chat.sessions.statistics().turns == 0


async def test_a_raw_prompt_has_no_system_prompt(store: Redis, engine: ScriptedEngine) -> None:
    async with serving(store, engine, system_prompt="Be kind.") as chat:
        await start_replies(chat.sessions, engine, EphemeralRequest(HELLO, spec=ReplySpec(raw=True)))
        (request,) = engine.requests
    assert (request.messages, request.spec.raw, request.shares_system) == (HELLO, True, False)


async def test_tools_that_a_model_can_not_be_shown_are_ignored_or_refused_as_the_operator_says(
    store: Redis,
) -> None:
    engine = ScriptedEngine(features=())
    for unsupported in ("ignore", "refuse"):
        async with serving(store, engine, unsupported_tools=unsupported) as chat:
            for choice in ("required", "named"):
                spec = ReplySpec(tools=(LOOK,), tool_choice=choice, tool_name="look")  # type: ignore[arg-type]
                with pytest.raises(BadParams) as refused:
                    await chat.sessions.ephemeral.answer(ALICE, EphemeralRequest(HELLO, spec=spec))
                assert refused.value.field == "tools"
            free = EphemeralRequest(HELLO, spec=ReplySpec(tools=(LOOK,)))
            if unsupported == "refuse":
                with pytest.raises(BadParams):
                    await chat.sessions.ephemeral.answer(ALICE, free)
            else:
                reply = await chat.sessions.ephemeral.answer(ALICE, free)
                assert reply.ignored == ("tools",)
                assert [request.spec for request in engine.requests] in ([], [ReplySpec()])


async def test_a_clients_loop_of_calls_ends_in_words(store: Redis, engine: ScriptedEngine) -> None:
    """The rounds of one message of the user count, and begin anew with the next one."""
    requested = (HELLO + ROUND, HELLO + ROUND + ROUND + HELLO, HELLO + ROUND + ROUND)
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
            await chat.sessions.ephemeral.answer(ALICE, EphemeralRequest(HELLO + ROUND + ROUND, spec=spec))
    assert (refused.value.field, engine.requests) == ("tools", [])


async def test_results_of_tools_are_not_told_to_a_model_that_has_none(store: Redis) -> None:
    engine = ScriptedEngine(features=())
    called = Message("assistant", "", calls=(ToolCall("c1", "look", "{}"),))
    async with serving(store, engine) as chat:
        for messages, field in (
            ((*HELLO, called), "tool_calls"),
            ((*HELLO, Message("tool", "A tree.", call_id="c1")), "role"),
        ):
            with pytest.raises(BadParams) as refused:
                await chat.sessions.ephemeral.answer(ALICE, EphemeralRequest(messages))
            assert refused.value.field == field
    assert engine.requests == []


async def test_what_a_client_has_the_model_read_passes_filters_and_fits_the_window(
    store: Redis, engine: ScriptedEngine
) -> None:
    called = Message("assistant", "", calls=(ToolCall("c1", "look", '{"at":"darn"}'),))
    async with serving(store, engine, filters=filtering(incoming=["darn"])) as chat:
        for ask in (
            EphemeralRequest((*HELLO, called)),
            EphemeralRequest((Message("assistant", "", reasoning="Oh darn."), *HELLO)),
            EphemeralRequest(HELLO, spec=ReplySpec(tools=(Tool("look", "A darn tool."),))),
        ):
            with pytest.raises(Filtered):
                await chat.sessions.ephemeral.answer(ALICE, ask)
        with pytest.raises(ContextOverflow):
            await chat.sessions.ephemeral.answer(
                ALICE, EphemeralRequest(HELLO, spec=ReplySpec(tools=(Tool("look", "word " * 200),)))
            )
        with pytest.raises(BadParams) as refused:
            await chat.sessions.ephemeral.answer(
                ALICE, EphemeralRequest(HELLO, spec=ReplySpec(format=Regex("(")))
            )
        assert refused.value.field == "format"
    assert engine.requests == []


async def test_a_reply_that_calls_waits_for_its_tools_and_others_do_not(
    sessions: Sessions, engine: ScriptedEngine
) -> None:
    engine.script([Call("look")])
    engine.script("One.")
    replies = await start_replies(
        sessions, engine, EphemeralRequest(HELLO, spec=ReplySpec(tools=(LOOK,)), replies=2)
    )
    engine.step(3)
    async for _ in replies:
        pass
    assert [replies[number].ended.reason for number in range(2)] == [Reason.TOOLS, Reason.STOP]
