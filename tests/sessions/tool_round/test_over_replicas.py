"""Open calls outlive their replica: another one goes on with them, and late writes of the first are refused."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from redis.asyncio import Redis

from engine.messages import Params
from engine.scripted import ScriptedEngine, Thought
from sessions import tool_round
from sessions.commands.resumption import ReaderPosition
from sessions.errors import Busy, Conflict, OwnershipLost, StoreDown
from sessions.events import Accepted, CallState, Cause, Done, Gap, Reason, Snapshot, ToolCall, ToolState
from sessions.replicas import reaper
from sessions.replicas.rpc import RefusedElsewhere
from sessions.store.ownership import RunningTurn
from sessions.turn.message_request import Continue, GenerationConfig, OnBusy
from sessions.turn.tool_calls import Result
from sessions.turn.turn import Cancel
from tests.sessions.chat_driver import Chat, eventually, running_turns_in_store, serving
from tests.sessions.recorder import Recorder, continuous
from tests.sessions.tool_round.sample_tools import BERN, FIFTY, ROME, TOOLS
from tests.store_faults import refusing_writes

pytestmark = pytest.mark.usefixtures("often")


async def die(chat: Chat, store: Redis) -> None:
    """To all others the replica is dead: what it runs is a ghost's."""
    here = f"ms:running:{chat.sessions.storage.ownership.replica}"
    for turn_id, row in (await store.hgetall(here)).items():
        ghosts = msgspec.structs.replace(msgspec.json.decode(row, type=RunningTurn), replica="ghost")
        await store.hset("ms:running:ghost", turn_id, msgspec.json.encode(ghosts))
    await store.delete(here)
    await store.sadd("ms:runners", "ghost")
    await store.hset(chat.keys.conversation, "runner", "ghost")


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reaps by himself: the ghost's own process must not be the first."""
    monkeypatch.setattr(reaper, "REAP_S", 60.0)


async def test_the_other_replicas_client_sees_calls_and_brings_the_result(chat: Chat, other: Chat) -> None:
    """Its history and snapshots show those that are open."""
    await chat.exchange("Hello?")
    await other.history()
    done = await chat.play("Weather?", Thought("Hm."), "I look.", BERN, tools=TOOLS)
    await other.reader.next(Done)
    assert other.reader.of(ToolCall) == chat.reader.of(ToolCall)
    page = await other.history(late := Recorder())
    assert isinstance(page.messages[-1].calls, tuple)
    assert page.messages[-1].calls[0].state is CallState.WAITING
    await other.sessions.resume(other.owner, late, "room", ReaderPosition("another", 0), ref=None)
    assert [call.call_id for call in late.of(Snapshot)[0].calls] == list(done.open)
    other.leave(late)
    reported = await other.result(done.open[0], "Rain.", place=None)
    assert (reported.state, reported.already) == (CallState.DONE, False)
    assert (await other.result(done.open[0], "Rain.")).already
    with pytest.raises(Exception, match="another result"):
        await other.result(done.open[0], "Sun.")
    await chat.follow("It rains.")
    await other.reader.next(Done, count=2)
    assert other.reader.of(ToolState) == chat.reader.of(ToolState)
    assert other.reader.of(Accepted)[-1].follows == done.turn_id
    assert continuous(other.reader.events)
    assert other.engine.requests == []


async def test_the_other_replicas_client_allows_cancels_and_asks_again(chat: Chat, other: Chat) -> None:
    await chat.play("Pay!", FIFTY, FIFTY, tools=TOOLS)
    await other.history()
    call = chat.reader.of(ToolCall)[0]
    assert (await other.decide(call)).state is CallState.RUNNING
    with pytest.raises(RefusedElsewhere) as unknown:
        await other.result("call_of_nobody", "Paid.")
    with pytest.raises(RefusedElsewhere) as busy:
        await other.send("Hello?", client_msg_id="other-1")
    assert (unknown.value.code, busy.value.code) == ("not_found", "busy")
    met = await other.sessions.cancel_elsewhere(other.owner, Cancel(conversation_id="room"))
    assert not met.already
    end = await other.reader.next(Done)
    assert (end.reason, end.cancel and end.cancel.cause) == (Reason.CANCELLED, Cause.CLIENT)
    await chat.wait_idle()
    with pytest.raises(Conflict, match="cancelled"):
        await other.result(call.call_id, "Paid.")
    assert continuous(other.reader.events)


async def test_where_the_replica_dies_another_one_goes_on(chat: Chat, other: Chat, store: Redis) -> None:
    """As the results say how the next reply is generated."""
    done = await chat.play("Weather?", BERN, ROME, tools=TOOLS)
    await other.history()
    then = GenerationConfig(Params(max_new_tokens=7), system="Be brief.")
    result = Result(call_id=done.open[0], content="Rain.", then=then)
    await other.sessions.answer_call(other.owner, other.reader, "room", result)
    await die(chat, store)
    await other.reap()
    await other.result(done.open[1], "Sun.")
    assert (await other.follow("Both.")).reason is Reason.STOP
    requested = other.engine.requests[-1]
    assert (requested.params.max_new_tokens, requested.spec.tools) == (7, ())
    assert requested.messages[0].content == "Be brief."
    assert [one.content for one in requested.messages if one.role == "tool"] == ["Rain.", "Sun."]
    assert continuous(other.reader.events)
    await chat.wait_idle()
    assert len(chat.engine.requests) == 1
    assert await running_turns_in_store(store) == 0


async def test_a_result_for_a_dead_replica_is_taken_by_the_one_that_is_asked(
    chat: Chat, other: Chat, store: Redis
) -> None:
    done = await chat.play("Weather?", BERN, tools=TOOLS)
    await other.history()
    await die(chat, store)
    await other.result(done.open[0], "Rain.")
    assert (await other.follow("Rain.")).reason is Reason.STOP


async def test_what_a_replica_that_stood_still_writes_late_is_refused(
    chat: Chat, other: Chat, store: Redis, reader: Recorder
) -> None:
    done = await chat.play("Weather?", BERN, ROME, tools=TOOLS)
    live_conversation = chat.live_conversation
    live = live_conversation.turns[0]  # it notices by itself that it is lost, sooner or later
    await other.history()
    await die(chat, store)
    await other.reap()
    with pytest.raises(OwnershipLost):
        await chat.sessions.call_states.answer(
            live_conversation, live, Result(call_id=done.open[0], content="Late.")
        )
    await other.result(done.open[0], "Sun.")
    await other.result(done.open[1], "Sun.")
    await other.follow("So.")
    await chat.wait_idle()
    page = await other.history()
    assert isinstance(page.messages[1].calls, tuple)
    assert [call.content for call in page.messages[1].calls] == ["Sun.", "Sun."]
    assert continuous(other.reader.events)


async def test_a_reply_whose_replica_died_while_it_called_leaves_cancelled_calls(
    chat: Chat, other: Chat, store: Redis, engine: ScriptedEngine
) -> None:
    engine.script([Thought("Hm."), "I look.", BERN, ROME, "And"])
    await chat.running("Weather?", "I look.", tools=TOOLS)
    for _ in range(2):
        await chat.step()
    call = chat.reader.of(ToolCall)[0]
    await chat.result(call.call_id, "Rain.")
    await other.history()
    await die(chat, store)
    await other.reap()
    end = await other.reader.next(Done)
    assert (end.reason, end.open) == (Reason.INTERRUPTED, ())
    page = await other.history()
    reply = page.messages[1]
    assert (reply.reasoning, reply.content) == ("Hm.", "I look.")
    assert isinstance(reply.calls, tuple)
    assert [one.state for one in reply.calls] == [CallState.DONE, CallState.CANCELLED]
    assert end.usage.reasoning_tokens == 1
    chat.engine.step()
    await chat.wait_idle()
    await other.exchange("And now?", client_msg_id="other-2")
    roles = [message.role for message in other.engine.requests[-1].messages]
    assert roles == ["user", "assistant", "tool", "tool", "user"]


async def test_messages_that_waited_there_have_their_end(chat: Chat, other: Chat, store: Redis) -> None:
    done = await chat.play("Weather?", BERN, tools=TOOLS)
    queued = await chat.enqueue("And tomorrow?")
    await other.history()
    await die(chat, store)
    await other.reap()
    end = await other.reader.next(Done)
    assert (end.turn_id, end.reason) == (queued.turn_id, Reason.INTERRUPTED)
    await other.result(done.open[0], "Rain.")
    await other.follow("Rain.")
    assert continuous(other.reader.events)
    await chat.wait_idle()
    await other.reap()
    assert await running_turns_in_store(store) == 0
    await other.exchange("And now?", client_msg_id="other-2")


async def test_a_reply_that_was_to_go_on_there_stays_as_it_stood(
    chat: Chat, other: Chat, store: Redis
) -> None:
    """It waited behind open calls of another branch."""
    chat.engine.script("One two three")
    await chat.running("Count!", "One two")
    first = await chat.stop()
    done = await chat.play("Weather?", BERN, tools=TOOLS, parent_id=None)
    await chat.enqueue("", place=Continue(first.message_id))
    await other.history()
    await die(chat, store)
    await other.reap()
    end = await other.reader.next(Done)
    assert (end.message_id, end.reason, end.chars) == (first.message_id, Reason.INTERRUPTED, len("One two"))
    await other.result(done.open[0], "Rain.")
    await other.follow("Rain.")
    await other.wait_idle()
    page = await other.history(leaf=first.message_id)
    assert [(one.content, one.turn_id) for one in page.messages[1:]] == [("One two", first.turn_id)]
    await chat.wait_idle()


async def test_clients_have_time_to_come_back_where_the_replica_died(
    chat: Chat, other: Chat, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "COMEBACK_S", 0.5)
    await chat.play("Weather?", BERN, tools=TOOLS)
    await die(chat, store)
    await other.reap()
    chat.leave()
    live_conversation = other.sessions.directory.get(other.owner, "room")
    assert live_conversation is not None
    assert not live_conversation.turns[0].turn.is_over
    await eventually(lambda: not live_conversation.turns)
    page = await other.history()
    assert isinstance(page.messages[1].calls, tuple)
    assert page.messages[1].calls[0].state is CallState.CANCELLED


async def test_a_service_that_comes_back_alone_goes_on_with_what_it_left(
    store: Redis, engine: ScriptedEngine
) -> None:
    async with serving(store, engine):
        pass
    async with serving(store, engine) as chat:
        done = await chat.play("Weather?", BERN, tools=TOOLS)
        seen = chat.reader.events
    async with serving(store, engine) as chat:
        await chat.resume(chat.reader, seen[-1].seq)  # type: ignore[attr-defined]
        assert chat.reader.of(Gap) == []
        await chat.result(done.open[0], "Rain.")
        await chat.follow("Rain.")
        assert continuous([*seen, *chat.reader.events[1:]])
        with pytest.raises(Conflict):
            await chat.result(done.open[0], "Sun.")
    assert await running_turns_in_store(store) == 0


@pytest.mark.parametrize("on_busy", ["reject", "interrupt"])
async def test_a_message_that_comes_while_nobody_has_the_calls_is_busy_or_interrupts(
    chat: Chat, other: Chat, store: Redis, on_busy: OnBusy
) -> None:
    await chat.play("Weather?", BERN, tools=TOOLS)
    await die(chat, store)
    if on_busy == "reject":
        with pytest.raises(Busy):
            await other.send("Hello?", client_msg_id="other-1")
        assert (await other.stop()).reason is Reason.CANCELLED
    else:
        other.engine.script("Fine.")
        await other.running("Never mind.", "Fine.", on_busy=on_busy, client_msg_id="other-1")
        other.engine.step()
        assert (await other.reader.next(Done, count=2)).reason is Reason.STOP
        assert other.reader.of(Done)[0].reason is Reason.CANCELLED


async def test_who_was_told_of_a_result_that_was_not_kept_is_told_of_a_gap(
    chat: Chat, other: Chat, store: Redis, reader: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another replica went on without it: its events have the same seqs."""
    monkeypatch.setattr(tool_round, "AGAIN_S", 3600.0)  # it is not tried again before the other has it
    done = await chat.play("Weather?", BERN, ROME, tools=TOOLS)
    await other.history()
    async with refusing_writes(store):
        with pytest.raises(StoreDown):
            await chat.result(done.open[0], "Rain.")
        journal = chat.live_conversation.turns[0].journal
        await eventually(lambda: journal is not None and journal._writing is not None)
        await eventually(lambda: journal is not None and journal._writing.done())  # refused once more
    reported = await reader.next(ToolState)
    await die(chat, store)
    await other.reap()
    for call_id in done.open:
        await other.result(call_id, "Sun.")
    await other.follow("Sunny.")
    gap = await reader.next(Gap)
    assert (reported.content, gap.epoch != reader.of(Accepted)[0].epoch) == ("Rain.", True)
    await reader.next(Done, count=2)
    await chat.wait_idle()
    behind = reader.events[reader.events.index(reader.of(Snapshot)[-1]) + 1 :]
    assert continuous(behind)


async def test_who_buries_a_replica_while_another_goes_on_with_its_turn_waits_for_that(
    chat: Chat, other: Chat, store: Redis
) -> None:
    """A turn that is being taken over is no orphan, though it does not run so far."""
    done = await chat.play("Weather?", BERN, tools=TOOLS)
    await other.history()
    await die(chat, store)
    own = other.sessions.storage.ownership._own
    first = asyncio.create_task(other.reap())
    await eventually(lambda: bool(own))
    assert await other.reap() == 0
    assert await first == 1
    assert [live.waits for live in other.live_conversation.turns] == [True]
    assert await running_turns_in_store(store) == 1
    await other.result(done.open[0], "Rain.")
    await other.follow("Rain.")
    await other.wait_idle()
    await chat.wait_idle()
    assert await running_turns_in_store(store) == 0
