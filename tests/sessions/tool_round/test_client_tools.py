"""A reply calls tools of its client; once all calls are settled the next turn begins by itself."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from redis.asyncio import Redis

from engine.scripted import ScriptedEngine, Thought
from sessions import tool_round
from sessions.conversation.history_page import ShownMessage
from sessions.errors import BadParams, Conflict, ContentTooLong, NotFound, StoreDown
from sessions.events import (
    Accepted,
    CallState,
    Cause,
    Done,
    Reason,
    Removed,
    ShownCall,
    Snapshot,
    ToolCall,
    ToolState,
)
from sessions.records import digest
from sessions.turn.message_request import Regenerate
from sessions.turn.policy import ToolLimits
from sessions.turn.tool_calls import RESULTS_CHARS
from sessions.turn.turn import Cancelled
from tests.sessions.chat_driver import Chat, eventually, running_turns_in_store, serving
from tests.sessions.recorder import WAIT_S, Recorder, continuous, seqs
from tests.sessions.tool_round.sample_tools import BERN, FIFTY, ROME, TOOLS, WEATHER
from tests.store_faults import refusing_writes


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was refused is tried again soon."""
    monkeypatch.setattr(tool_round, "AGAIN_S", 0.02)


def calls_of(message: ShownMessage) -> tuple[ShownCall, ...]:
    assert message.calls is not msgspec.UNSET
    return message.calls


async def states(chat: Chat) -> list[list[CallState]]:
    """Of the calls of each reply, as the history has them."""
    page = await chat.history(Recorder())
    return [
        [call.state for call in calls_of(message)]
        for message in page.messages
        if message.calls is not msgspec.UNSET
    ]


async def test_calls_settle_in_any_order_and_all_are_waited_for(chat: Chat) -> None:
    """History and next prompt have calls, results and reasoning as the model wrote them, under one salt."""
    done = await chat.play("Weather?", Thought("Hm."), "I look.", BERN, ROME, BERN, tools=TOOLS)
    for call_id in (done.open[2], done.open[0]):
        await chat.result(call_id, call_id)
    assert len(chat.engine.requests) == 1
    page = await chat.history(Recorder())
    called = page.messages[1]
    assert (called.status, called.reasoning, called.content) == ("complete", "Hm.", "I look.")
    assert [(call.state, call.content) for call in calls_of(called)] == [
        (CallState.DONE, done.open[0]),
        (CallState.WAITING, None),
        (CallState.DONE, done.open[2]),
    ]
    assert page.seq == chat.live_conversation.published.seq
    await chat.result(done.open[1], error="Closed.")
    await chat.follow("Rain in Bern.")
    page = await chat.history(Recorder())
    assert [message.role for message in page.messages] == ["user", "assistant", "assistant"]
    assert page.messages[2].parent_id == called.message_id
    assert calls_of(page.messages[1])[1].error == "Closed."
    assert continuous(chat.reader.events)
    first, second = chat.engine.requests
    assert (first.cache_salt, first.conversation, first.client) == (
        second.cache_salt,
        second.conversation,
        second.client,
    )
    message, written, *results = second.messages
    assert (message, written.reasoning, written.content) == (first.messages[0], "Hm.", "I look.")
    assert [call.arguments for call in written.calls] == [one.arguments for one in (BERN, ROME, BERN)]
    assert [one.content for one in results] == [done.open[0], "Error: Closed.", done.open[2]]


async def test_results_that_come_together_begin_one_turn(chat: Chat, reader: Recorder) -> None:
    done = await chat.play("Weather?", *([BERN] * 20), tools=TOOLS)
    await asyncio.gather(*(chat.result(call_id, "Rain.") for call_id in done.open))
    await chat.follow("So.")
    assert len(reader.of(Accepted)) == 2
    assert len(chat.engine.requests) == 2


async def test_the_same_result_again_is_answered_as_before_and_another_is_a_conflict(chat: Chat) -> None:
    done = await chat.play("Weather?", BERN, ROME, tools=TOOLS)
    await chat.result(done.open[0], "Rain.")
    again = await chat.result(done.open[0], "Rain.")
    assert (again.state, again.already) == (CallState.DONE, True)
    for content, error in (("Sun.", None), (None, "Rain.")):
        with pytest.raises(Conflict):
            await chat.result(done.open[0], content, error=error)
    assert len(chat.reader.of(ToolState)) == 1
    await chat.result(done.open[1], "Sun.")
    await chat.follow("So.")
    for place in ("room", None):
        assert (await chat.result(done.open[0], "Rain.", place=place)).already
        with pytest.raises(Conflict):
            await chat.result(done.open[0], "Snow.", place=place)
        with pytest.raises(NotFound):
            await chat.result("call_of_nobody", "Rain.", place=place)


async def test_a_result_may_come_while_the_reply_is_still_written(chat: Chat) -> None:
    chat.engine.script([BERN, ROME, "So", " far."])
    accepted = await chat.running("Weather?", tools=TOOLS)
    await chat.step()
    call = await chat.reader.next(ToolCall)
    assert (await chat.result(call.call_id, "Rain.")).state is CallState.DONE
    done = await chat.finish(accepted.turn_id)
    assert done.open == (chat.reader.of(ToolCall)[1].call_id,)
    assert await states(chat) == [[CallState.DONE, CallState.WAITING]]
    await chat.result(done.open[0], "Sun.")
    await chat.follow("So.")
    results = [message.content for message in chat.engine.requests[-1].messages if message.role == "tool"]
    assert results == ["Rain.", "Sun."]
    assert continuous(chat.reader.events)


async def test_rounds_are_counted_and_the_last_turn_answers_in_words(
    store: Redis, engine: ScriptedEngine
) -> None:
    async with serving(store, engine, tools=ToolLimits(max_rounds=2)) as chat:
        done = await chat.play("Weather?", BERN, tools=TOOLS, tool_choice="required")
        await chat.result(done.open[0], "Rain.")
        again = await chat.follow(ROME)
        await chat.result(again.open[0], "Sun.")
        end = await chat.follow(ROME, "So.")
        assert [requested.spec.tool_choice for requested in engine.requests] == ["required", "auto", "none"]
        assert (end.reason, end.open) == (Reason.STOP, ())
        assert (await states(chat))[-1] == [CallState.CANCELLED]


# ---- cancels


async def test_a_cancel_settles_every_open_call_and_the_next_prompt_is_well_formed(chat: Chat) -> None:
    """A result that comes late is refused with a clear word."""
    done = await chat.play("Weather?", BERN, ROME, tools=TOOLS)
    await chat.result(done.open[0], "Rain.")
    met = chat.cancel(done.turn_id)  # it may name the turn that called
    with pytest.raises(Conflict, match="cancelled"):
        await chat.result(done.open[1], "Sun.")
    end = await chat.reader.next(Done, count=2)
    await chat.wait_idle()
    with pytest.raises(Conflict, match="cancelled"):
        await chat.result(done.open[1], "Sun.")
    assert (met.already, end.turn_id, end.reason) == (False, met.turn_id, Reason.CANCELLED)
    assert end.cancel is not None
    assert (end.cancel.cause, end.usage.generated_tokens) == (Cause.CLIENT, 0)
    assert [state.state for state in chat.reader.of(ToolState)] == [CallState.DONE, CallState.CANCELLED]
    assert await states(chat) == [[CallState.DONE, CallState.CANCELLED]]
    assert continuous(chat.reader.events)
    await chat.exchange("And now?", "Well.")
    messages = chat.engine.requests[-1].messages
    assert [message.role for message in messages] == ["user", "assistant", "tool", "tool", "user"]
    assert messages[3].content == "The call was cancelled."


@pytest.mark.parametrize("by", ["turn", "message"])
async def test_a_cancel_that_comes_behind_the_results_ends_the_turn_that_goes_on_from_them(
    chat: Chat, reader: Recorder, engine: ScriptedEngine, by: str
) -> None:
    """Of that turn nothing was seen, however much was seen of the reply that called."""
    done = await chat.play("Weather?", "I look.", BERN, tools=TOOLS, client_msg_id="weather")
    engine.script("It rains in Bern.")
    await chat.result(done.open[0], "Rain.")
    following = await reader.next(Accepted, count=2)
    await eventually(lambda: len(engine.requests) == 2)
    await chat.step()
    message = "weather" if by == "message" else None
    met = chat.cancel(done.turn_id, client_msg_id=message, seen_off=7, is_placed=True)
    assert met == Cancelled(following.turn_id, already=False)
    end = await reader.next(Done, count=2)
    assert (end.reason, end.chars) == (Reason.CANCELLED, 0)
    await chat.wait_idle()
    assert await chat.texts() == ["Weather?", "I look.", ""]


async def test_calls_of_a_reply_that_is_stopped_are_cancelled_with_it(
    chat: Chat, reader: Recorder, engine: ScriptedEngine
) -> None:
    engine.script(["I look.", BERN, " And", " on."])
    accepted = await chat.running("Weather?", "I look.", tools=TOOLS)
    for _ in range(2):
        await chat.step()
    done = await chat.stop()
    assert (done.turn_id, done.reason, done.open) == (accepted.turn_id, Reason.CANCELLED, ())
    assert await states(chat) == [[CallState.CANCELLED]]
    with pytest.raises(Conflict):
        await chat.result(reader.of(ToolCall)[0].call_id, "Rain.")
    await chat.exchange("And now?", "Well.")
    assert [message.role for message in engine.requests[-1].messages] == ["user", "assistant", "tool", "user"]


async def test_a_call_behind_what_was_seen_is_not_kept(chat: Chat) -> None:
    chat.engine.script(["I look", " around.", BERN, " And", " on."])
    await chat.running("Weather?", "I look around.", tools=TOOLS)
    for _ in range(2):
        await chat.step()
    done = await chat.stop(seen_off=6)
    page = await chat.history(Recorder())
    assert (done.chars, page.messages[1].content, page.messages[1].calls) == (6, "I look", msgspec.UNSET)
    back = Recorder()
    await chat.resume(back, 1)
    assert back.of(ToolCall) == []
    assert back.text(done.turn_id) == "I look"
    assert continuous(back.events[1:])


async def test_a_reply_that_ends_by_its_length_calls_nobody(chat: Chat, reader: Recorder) -> None:
    done = await chat.play("Weather?", BERN, " And", tools=TOOLS, max_new_tokens=2)
    assert (done.reason, done.open) == (Reason.LENGTH, ())
    assert await states(chat) == [[CallState.CANCELLED]]


async def test_whoever_leaves_takes_the_open_calls_along(chat: Chat, reader: Recorder, store: Redis) -> None:
    await chat.play("Weather?", BERN, tools=TOOLS)
    chat.sessions.disconnect(reader)
    await chat.wait_idle()
    assert await states(chat) == [[CallState.CANCELLED]]
    assert await running_turns_in_store(store) == 0


async def test_calls_stay_open_with_nobody_there_where_that_was_asked_for(chat: Chat) -> None:
    done = await chat.play("Weather?", BERN, tools=TOOLS, on_disconnect="continue")
    chat.sessions.disconnect(chat.reader)
    await eventually(lambda: not chat.live_conversation.others.watching)
    phones = await chat.another_device()
    await phones.result(done.open[0], "Rain.")
    assert (await phones.follow("Rain.")).reason is Reason.STOP


async def test_a_deleted_conversation_takes_its_open_calls_along(chat: Chat, store: Redis) -> None:
    done = await chat.play("Weather?", BERN, tools=TOOLS)
    await chat.sessions.delete(chat.owner, "room", ref=None, subscriber=chat.reader)
    await chat.wait_idle()
    assert await store.keys("ms:{*") == []
    with pytest.raises(NotFound):
        await chat.result(done.open[0], "Rain.")


# ---- busy


async def test_an_interrupt_settles_the_open_calls_and_answers_then(
    chat: Chat, reader: Recorder, engine: ScriptedEngine
) -> None:
    await chat.play("Weather?", BERN, tools=TOOLS)
    engine.script("Fine.")
    await chat.running("Never mind.", "Fine.", on_busy="interrupt")
    engine.step()
    await reader.next(Done, count=3)
    ends = [(done.reason, done.cancel and done.cancel.cause) for done in reader.of(Done)]
    assert ends == [
        (Reason.TOOLS, None),
        (Reason.CANCELLED, Cause.INTERRUPT),
        (Reason.STOP, None),
    ]
    assert [message.role for message in engine.requests[-1].messages] == ["user", "assistant", "tool", "user"]
    assert continuous(reader.events)


@pytest.mark.parametrize("ended", [False, True])
async def test_a_rollback_takes_the_exchange_out_with_all_its_rounds(
    chat: Chat, reader: Recorder, store: Redis, *, ended: bool
) -> None:
    await chat.exchange("Hello?", "Hi.")
    done = await chat.play("Weather?", BERN, tools=TOOLS)
    await chat.result(done.open[0], "Rain.")
    if ended:
        end = await chat.follow("Rain.")
        with pytest.raises(Conflict):
            await chat.take_back(done.turn_id)
        await chat.take_back(end.turn_id)
        await reader.next(Removed)
    else:
        await chat.follow(ROME)
        assert (await chat.stop(rollback=True)).removed
    assert await chat.messages() == [("user", "Hello?"), ("assistant", "Hi.")]
    fields = [name.decode() for name in await store.hkeys(chat.keys.conversation)]
    assert [name for name in fields if name.startswith("call")] == []
    assert continuous(reader.events)


@pytest.mark.parametrize("sent", ["while it is written", "while calls are open"])
async def test_a_message_behind_a_reply_that_calls_waits_and_stands_behind_the_last_one(
    chat: Chat, reader: Recorder, engine: ScriptedEngine, sent: str
) -> None:
    engine.script(["I look.", BERN])
    accepted = await chat.running("Weather?", "I look.", tools=TOOLS)
    if sent == "while calls are open":
        await chat.finish(accepted.turn_id)
    queued = await chat.enqueue("And tomorrow?")
    assert queued.queue_position == 1
    done = await chat.finish(accepted.turn_id)
    await chat.result(done.open[0], "Rain.")
    await chat.follow("Rain.")
    engine.script(["Sun."])
    await chat.finish(queued.turn_id)
    assert await chat.texts() == [
        "Weather?",
        "I look.",
        "Rain.",
        "And tomorrow?",
        "Sun.",
    ]
    roles = [message.role for message in engine.requests[-1].messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]
    assert continuous(reader.events)


async def test_a_message_behind_open_calls_can_be_cancelled_alone(chat: Chat, reader: Recorder) -> None:
    done = await chat.play("Weather?", BERN, tools=TOOLS)
    queued = await chat.enqueue("And tomorrow?")
    chat.cancel(queued.turn_id)
    assert (await reader.next(Done, count=2)).turn_id == queued.turn_id
    await chat.result(done.open[0], "Rain.")
    assert (await chat.follow("Rain.")).reason is Reason.STOP
    assert continuous(reader.events)


# ---- other devices, coming back


async def test_a_reader_that_comes_back_is_told_calls_and_states_once(chat: Chat) -> None:
    """A snapshot shows those that are open."""
    done = await chat.play("Weather?", Thought("Hm"), Thought("."), "I", " look.", BERN, ROME, tools=TOOLS)
    await chat.result(done.open[0], "Rain.")
    newest = chat.live_conversation.published.seq
    for seq in range(1, newest + 1):
        back = Recorder()
        await chat.resume(back, seq)
        assert seqs(back.events)[-1:] == ([] if seq == newest else [(newest, newest)])
        assert seqs(back.events)[:1] == ([] if seq == newest else [(seq + 1, seqs(back.events)[0][1])])
        assert continuous(back.events)
    back = Recorder()
    await chat.resume(back, 1, epoch="another")
    snapshot = back.of(Snapshot)[0]
    assert (snapshot.turn_id, snapshot.text) == (None, "")
    assert [call.state for call in snapshot.calls] == [CallState.DONE, CallState.WAITING]


async def test_another_reply_to_the_same_results_is_asked_for_by_the_last_one(chat: Chat) -> None:
    done = await chat.play("Weather?", BERN, tools=TOOLS)
    await chat.result(done.open[0], "Rain.")
    end = await chat.follow("Rain.")
    again = await chat.exchange("", "Wet.", place=Regenerate(end.message_id))
    assert [message.role for message in chat.engine.requests[-1].messages] == ["user", "assistant", "tool"]
    assert await chat.texts() == ["Weather?", "", "Wet."]
    await chat.wait_idle()
    await chat.take_back(again.turn_id)
    assert await chat.texts() == ["Weather?", "", "Rain."]


# ---- bounds


async def test_a_result_has_a_bound_and_so_have_all_of_a_reply(chat: Chat) -> None:
    done = await chat.play("Weather?", *([BERN] * 10), tools=TOOLS)
    with pytest.raises(ContentTooLong):
        await chat.result(done.open[0], "x" * 32_001)
    for call_id in done.open[: RESULTS_CHARS // 32_000]:
        await chat.result(call_id, "x" * 32_000)
    with pytest.raises(ContentTooLong):
        await chat.result(done.open[-1], "x" * 32_000)


async def test_results_that_do_not_fit_the_window_end_the_turn_with_the_reason(chat: Chat) -> None:
    done = await chat.play("Weather?", BERN, tools=TOOLS)
    await chat.result(done.open[0], "word " * 300)
    end = await chat.reader.next(Done, count=2)
    await chat.wait_idle()
    assert end.error is not None
    assert (end.reason, end.error.code) == (Reason.ERROR, "context_overflow")


async def test_what_is_called_beyond_the_bound_is_left_out(
    chat: Chat, reader: Recorder, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions.generation.MAX_CALLS", 2)
    engine.script([BERN, ROME, BERN, "So."])
    await chat.send("Weather?", tools=TOOLS)
    await eventually(lambda: bool(engine.requests))
    engine.step(5)
    done = await reader.next(Done)
    assert len(done.open) == 2
    for call_id in done.open:
        await chat.result(call_id, "Rain.")
    await chat.follow("So.")
    assert len(engine.requests[-1].messages[1].calls) == 2


async def test_a_model_without_tools_is_not_asked_to_call(store: Redis) -> None:
    engine = ScriptedEngine(by_hand=True, features=())
    async with serving(store, engine) as chat:
        with pytest.raises(BadParams, match="tools"):
            await chat.send("Weather?", tools=TOOLS)


async def test_the_context_shrinks_in_whole_exchanges(chat: Chat, engine: ScriptedEngine) -> None:
    """An exchange is a user's message with all its rounds; none is left with a part of it."""
    for number in range(4):
        done = await chat.play(f"Weather {number}?", BERN, tools=(WEATHER,))
        await chat.result(done.open[0], "word " * 20)
        await chat.follow("Rain.")
    messages = engine.requests[-1].messages
    assert messages[0].role == "user"
    assert [message.role for message in messages].count("user") < 4
    called = {call.call_id for message in messages for call in message.calls}
    assert called == {message.call_id for message in messages if message.role == "tool"}


FORTY = '{"amount": 40}'


async def test_a_call_waits_until_any_device_allows_it_and_its_result_comes_behind_that(chat: Chat) -> None:
    done = await chat.play("Pay!", FIFTY, BERN, tools=TOOLS)
    call, plain = chat.reader.of(ToolCall)
    assert (call.needs, call.expires_at is not None) == ("approval", True)
    with pytest.raises(Conflict, match="not been allowed"):
        await chat.result(done.open[0], "Paid.")
    with pytest.raises(Conflict, match="approval"):
        await chat.decide(plain)
    phones = await chat.another_device()
    assert (await phones.decide(call)).state is CallState.RUNNING
    assert phones.reader.of(ToolState) == chat.reader.of(ToolState)
    for call_id in done.open:
        await chat.result(call_id, "Paid.")
    assert (await chat.follow("Done.")).reason is Reason.STOP
    running, ended = CallState.RUNNING, CallState.DONE
    assert [state.state for state in chat.reader.of(ToolState)] == [running, ended, ended]
    assert continuous(chat.reader.events)


async def test_it_runs_with_other_arguments_where_whoever_allowed_it_changed_them(chat: Chat) -> None:
    done = await chat.play("Pay!", FIFTY, tools=TOOLS)
    await chat.decide(chat.reader.of(ToolCall)[0], args=FORTY)
    moved = chat.reader.of(ToolState)[0]
    assert (moved.args, moved.args_sha256) == (FORTY, digest(FORTY))
    page = await chat.history(Recorder())
    assert isinstance(page.messages[1].calls, tuple)
    assert page.messages[1].calls[0].args_sha256 == digest(FORTY)
    await chat.result(done.open[0], "Paid.")
    await chat.follow("Done.")
    assert chat.engine.requests[-1].messages[1].calls[0].arguments == FIFTY.arguments


async def test_the_same_decision_again_is_answered_as_before_and_another_is_a_conflict(chat: Chat) -> None:
    await chat.play("Pay!", FIFTY, FIFTY, tools=TOOLS)
    first, second = chat.reader.of(ToolCall)
    await chat.decide(first, args=FORTY)
    assert (await chat.decide(first, args=FORTY)).already
    for change in ({"args": None}, {"allow": False}):
        with pytest.raises(Conflict):
            await chat.decide(first, **change)  # type: ignore[arg-type]
    await chat.decide(second, allow=False)
    assert (await chat.decide(second, allow=False)).already
    with pytest.raises(Conflict):
        await chat.decide(second)
    assert len(chat.reader.of(ToolState)) == 2


async def test_a_call_that_nobody_answers_expires_and_the_turn_goes_on(
    store: Redis, engine: ScriptedEngine
) -> None:
    async with serving(store, engine, tools=ToolLimits(wait_s=0.05)) as chat:
        await chat.play("Pay!", FIFTY, BERN, tools=TOOLS)
        await chat.follow("Well.")
        states = [state.state for state in chat.reader.of(ToolState)]
        assert states == [CallState.EXPIRED, CallState.EXPIRED]
        assert "in time" in engine.requests[-1].messages[-1].content
        for call in chat.reader.of(ToolCall):
            with pytest.raises(Conflict, match="expired"):
                await chat.result(call.call_id, "Late.")
        assert len(chat.reader.of(Done)) == 2
        assert continuous(chat.reader.events)


async def stored_state(chat: Chat, call_id: str) -> CallState | None:
    call = await chat.sessions.storage.history.call(chat.keys, call_id)
    return call.state if call is not None else None


async def test_a_result_that_the_store_refused_is_kept_without_anybodys_doing(
    chat: Chat, store: Redis, reader: Recorder
) -> None:
    done = await chat.play("Weather?", BERN, ROME, tools=TOOLS)
    async with refusing_writes(store):
        for _ in range(3):  # no device is told that it is kept
            with pytest.raises(StoreDown):
                await chat.result(done.open[0], "Rain.")
        assert await stored_state(chat, done.open[0]) is CallState.WAITING
    async with asyncio.timeout(WAIT_S):
        while await stored_state(chat, done.open[0]) is not CallState.DONE:  # noqa: ASYNC110 - the store has no event
            await asyncio.sleep(0)
    assert (await chat.result(done.open[0], "Rain.")).already
    assert not (await chat.result(done.open[1], "Sun.")).already
    assert (await chat.follow("Both.")).reason is Reason.STOP
    assert continuous(reader.events)


async def test_a_message_behind_open_calls_is_taken_in_once_the_store_takes_writes_again(
    chat: Chat, store: Redis, reader: Recorder, engine: ScriptedEngine
) -> None:
    done = await chat.play("Weather?", BERN, ROME, tools=TOOLS)
    async with refusing_writes(store):
        with pytest.raises(StoreDown):
            await chat.result(done.open[0], "Rain.")
        with pytest.raises(StoreDown):
            await chat.send("And then?", on_busy="enqueue")
    queued = await chat.enqueue("And then?")
    await chat.result(done.open[1], "Sun.")
    await chat.follow("Both.")
    engine.script(["Then."])
    await eventually(lambda: len(engine.requests) == 3)
    await chat.finish(queued.turn_id)
    assert continuous(reader.events)


async def test_who_comes_back_is_told_of_a_turn_that_the_store_does_not_have_so_far(
    chat: Chat, store: Redis, reader: Recorder
) -> None:
    done = await chat.play("Weather?", BERN, tools=TOOLS)
    back = Recorder()
    async with refusing_writes(store):
        with pytest.raises(StoreDown):
            await chat.result(done.open[0], "Rain.")
        await reader.next(Accepted, count=2)
        await chat.resume(back, done.seq)
    assert [one.follows for one in back.of(Accepted)] == [done.turn_id]
    await chat.follow("Rain.")
    assert continuous(back.events)
