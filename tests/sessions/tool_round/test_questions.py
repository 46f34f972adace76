"""A tool asks the user while it runs: any device answers, once, and the tool goes on with the first answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from redis.asyncio import Redis

from engine.scripted import ScriptedEngine
from sessions.errors import BadParams, Conflict, NotFound
from sessions.events import CallState, Question, ShownCall, ToolState
from sessions.records import Owner
from sessions.tool_round import AnswerOutcome
from sessions.tools.tool_registry import Accepted, Answer, Declined, Dismissed, Elicitation, ToolFailed
from sessions.turn.policy import ToolLimits
from sessions.turn.tool_calls import Decision
from tests.sessions.chat_driver import CONVERSATION_ID, Chat, eventually, filtering
from tests.sessions.recorder import Recorder, continuous
from tests.sessions.tool_round.sample_tools import CLOCK
from tests.sessions.tool_round.test_server_tools import TICK, Bench, die, replica

FORM = '{"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]}'
WHICH = Elicitation(message="Which zone?", schema=FORM)
UTC = '{"zone": "UTC"}'


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
async def served(store: Redis, owner: Owner, engine: ScriptedEngine, bench: Bench) -> AsyncIterator[Chat]:
    async with replica(store, owner, engine, bench) as chat:
        yield chat


async def open_question(chat: Chat, bench: Bench) -> tuple[str, asyncio.Future[Answer], Question]:
    """A call that runs, what its tool waits for, and what the user's devices were told."""
    done = await chat.play("Time?", TICK, tools=[CLOCK])
    await eventually(lambda: bool(bench.contexts))
    answer = asyncio.ensure_future(bench.contexts[0].elicit(WHICH))
    return done.open[0], answer, await question(chat)


async def question(chat: Chat, count: int = 1) -> Question:
    def questions() -> list[Question]:
        return [one.question for one in chat.reader.of(ToolState) if one.question is not None]

    await chat.reader.until(lambda: len(questions()) >= count)
    return questions()[-1]


async def answer_question(
    chat: Chat, call_id: str, to: Question, content: str | None = UTC, *, allow: bool = True
) -> AnswerOutcome:
    decision = Decision(call_id=call_id, args_sha256=to.sha256, allow=allow, args=content)
    outcome = await chat.sessions.answer_call(chat.owner, chat.reader, CONVERSATION_ID, decision)
    return AnswerOutcome(outcome.state, already=outcome.already)


async def test_the_user_is_asked_and_the_tool_goes_on_with_the_answer(served: Chat, bench: Bench) -> None:
    call_id, answer, which = await open_question(served, bench)
    assert (which.message, which.schema) == ("Which zone?", FORM)
    assert await answer_question(served, call_id, which) == AnswerOutcome(CallState.RUNNING, already=False)
    assert await answer == Accepted({"zone": "UTC"})
    bench.ends(call_id, "Noon.")
    await served.follow("It is noon.")
    states = [(one.state, one.question is not None) for one in served.reader.of(ToolState)]
    running, done = CallState.RUNNING, CallState.DONE
    assert states == [(running, False), (running, True), (running, False), (done, False)]
    assert continuous(served.reader.events)


async def test_a_user_may_decline(served: Chat, bench: Bench) -> None:
    call_id, answer, which = await open_question(served, bench)
    await answer_question(served, call_id, which, None, allow=False)
    assert await answer == Declined()
    bench.ends(call_id, "Noon.")
    await served.follow("So.")


async def test_what_does_not_fit_the_form_is_refused_and_the_question_stays(
    served: Chat, bench: Bench
) -> None:
    call_id, answer, which = await open_question(served, bench)
    for content in (None, "{}", '{"zone": 7}', '{"zone": "UTC", "disk": 2}'):
        with pytest.raises(BadParams, match="does not fit"):
            await answer_question(served, call_id, which, content)
    await answer_question(served, call_id, which)
    assert await answer == Accepted({"zone": "UTC"})
    bench.ends(call_id, "Noon.")
    await served.follow("So.")


async def test_the_same_answer_again_is_told_so_and_another_is_a_conflict(served: Chat, bench: Bench) -> None:
    call_id, answer, which = await open_question(served, bench)
    await answer_question(served, call_id, which)
    await answer
    assert (await answer_question(served, call_id, which)).already
    for content, allow in (('{"zone": "CET"}', True), (UTC, False)):
        with pytest.raises(Conflict, match="another answer"):
            await answer_question(served, call_id, which, content, allow=allow)
    bench.ends(call_id, "Noon.")
    await served.follow("So.")
    assert (await answer_question(served, call_id, which)).already


async def test_an_answer_to_the_first_question_is_none_to_the_same_question_asked_anew(
    served: Chat, bench: Bench
) -> None:
    call_id, answer, first = await open_question(served, bench)
    await answer_question(served, call_id, first)
    await answer
    again = asyncio.ensure_future(bench.contexts[0].elicit(WHICH))
    second = await question(served, count=2)
    assert (await answer_question(served, call_id, first)).already
    assert not again.done()
    await answer_question(served, call_id, second, '{"zone": "CET"}')
    assert await again == Accepted({"zone": "CET"})
    bench.ends(call_id, "Noon.")
    await served.follow("So.")


async def test_questions_that_one_call_asks_at_once_come_one_after_the_other(
    served: Chat, bench: Bench
) -> None:
    call_id, answer, first = await open_question(served, bench)
    later = asyncio.ensure_future(bench.contexts[0].elicit(msgspec.structs.replace(WHICH, message="Sure?")))
    await answer_question(served, call_id, first)
    assert await answer == Accepted({"zone": "UTC"})
    second = await question(served, count=2)
    assert second.message == "Sure?"
    await answer_question(served, call_id, second, None, allow=False)
    assert await later == Declined()
    bench.ends(call_id, "Noon.")
    await served.follow("So.")


async def test_another_device_sees_the_question_and_answers(served: Chat, bench: Bench) -> None:
    call_id, answer, which = await open_question(served, bench)
    phone = Recorder()
    page = await served.history(phone)
    assert isinstance(page.messages[1].calls, tuple)
    shown = page.messages[1].calls[0]
    assert isinstance(shown, ShownCall)
    assert shown.question == which
    await answer_question(Chat(served.sessions, served.engine, served.owner, phone), call_id, which)
    assert await answer == Accepted({"zone": "UTC"})
    bench.ends(call_id, "Noon.")
    await served.follow("So.")


async def test_nobody_else_may_answer(served: Chat, bench: Bench) -> None:
    call_id, _, which = await open_question(served, bench)
    stranger = Chat(served.sessions, served.engine, Owner("stranger", "web"), Recorder())
    with pytest.raises(NotFound):
        await answer_question(stranger, call_id, which)


async def test_a_cancel_takes_the_question_back_and_a_late_answer_is_refused(
    served: Chat, bench: Bench
) -> None:
    call_id, answer, which = await open_question(served, bench)
    served.cancel()
    assert await asyncio.wait({answer})
    await served.wait_idle()
    assert bench.cancelled == 1
    last = served.reader.of(ToolState)[-1]
    assert (last.state, last.question) == (CallState.CANCELLED, None)
    with pytest.raises(Conflict):
        await answer_question(served, call_id, which)


async def test_a_question_that_nobody_answers_expires_and_the_tool_goes_on(
    store: Redis, owner: Owner, engine: ScriptedEngine, bench: Bench
) -> None:
    async with replica(store, owner, engine, bench, tools=ToolLimits(wait_s=0.05)) as chat:
        call_id, answer, which = await open_question(chat, bench)
        assert await answer == Dismissed()
        with pytest.raises(Conflict, match="expired"):
            await answer_question(chat, call_id, which)
        bench.ends(call_id, "Noon.")
        await chat.follow("So.")
        assert chat.reader.of(ToolState)[-1].state is CallState.DONE


async def test_a_question_that_its_tool_gave_up_is_taken_back(served: Chat, bench: Bench) -> None:
    call_id, answer, which = await open_question(served, bench)
    answer.cancel()
    await served.reader.until(lambda: served.reader.of(ToolState)[-1].question is None)
    assert served.reader.of(ToolState)[-1].state is CallState.RUNNING
    with pytest.raises(Conflict, match="expired"):
        await answer_question(served, call_id, which)
    bench.ends(call_id, "Noon.")
    await served.follow("So.")


async def test_a_filter_holds_a_question_back(
    store: Redis, owner: Owner, engine: ScriptedEngine, bench: Bench
) -> None:
    async with replica(store, owner, engine, bench, filters=filtering(incoming=["zone"])) as chat:
        done = await chat.play("Time?", TICK, tools=[CLOCK])
        await eventually(lambda: bool(bench.contexts))
        with pytest.raises(ToolFailed, match="holds the question back"):
            await bench.contexts[0].elicit(WHICH)
        bench.ends(done.open[0], "Noon.")
        await chat.follow("So.")


async def test_a_call_that_runs_again_elsewhere_asks_again(
    store: Redis, owner: Owner, engine: ScriptedEngine
) -> None:
    here, there = Bench(idempotent=True), Bench(idempotent=True)
    async with (
        replica(store, owner, engine, here) as chat,
        replica(store, owner, ScriptedEngine(by_hand=True), there, alone=False) as other,
    ):
        call_id, _, first = await open_question(chat, here)
        await other.history()
        await die(chat, store)
        await other.sessions.parts.reaper.reap()
        await eventually(lambda: bool(there.started))
        with pytest.raises(Conflict):
            await answer_question(other, call_id, first)
        again = asyncio.ensure_future(there.contexts[0].elicit(WHICH))
        await other.reader.until(lambda: bool(other.reader.of(ToolState)[-1].question))
        second = other.reader.of(ToolState)[-1].question
        assert second is not None
        await answer_question(other, call_id, second)
        assert await again == Accepted({"zone": "UTC"})
        there.ends(call_id, "Noon.")
        await other.follow("So.")
        here.ends(call_id, "Too late.")
        await chat.wait_idle()
        assert continuous(other.reader.events)
