"""The server runs its tools itself: each call is claimed in the store before it starts, and started once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from engine.scripted import Call, ScriptedEngine
from sessions.events import Accepted, CallState, Done, Reason, Status, ToolCall, ToolState
from sessions.filters.chain import Filter, Filters
from sessions.filters.list_filter import ListFilter, MatchLists
from sessions.records import Owner
from sessions.service import Sessions
from sessions.store.history import History
from sessions.tool_round import CallStates
from sessions.tools.tool_registry import (
    Approval,
    CallContext,
    Progress,
    ServerTool,
    ToolFailed,
    ToolLost,
    ToolRegistry,
)
from sessions.turn.policy import Policy
from tests.sessions.chat_driver import Chat, eventually, running_turns_in_store
from tests.sessions.recorder import Recorder, continuous
from tests.sessions.tool_round.sample_tools import BERN, CLOCK, WEATHER, WIPE

TICK = Call("clock", '{"zone": "UTC"}')
SWEEP = Call("wipe", "{}")


class Bench:
    """A source of two tools, whose calls end when the test says so."""

    def __init__(self, *, idempotent: bool = False) -> None:
        self.started: list[tuple[str, str, dict[str, Any]]] = []
        self.contexts: list[CallContext] = []
        self.cancelled = 0
        self._idempotent = idempotent
        self._ends: dict[str, asyncio.Future[str]] = {}

    def offered(self) -> tuple[ServerTool, ...]:
        return tuple(
            ServerTool(
                name=name,
                description=name,
                parameters="{}",
                approval=approval,
                idempotent=self._idempotent,
            )
            for name, approval in (("clock", Approval.NEVER), ("wipe", Approval.ALWAYS))
        )

    async def run(self, name: str, arguments: dict[str, Any], context: CallContext) -> str:
        self.started.append((context.call_id, name, arguments))
        self.contexts.append(context)
        end = self._ends.setdefault(context.call_id, asyncio.get_running_loop().create_future())
        try:
            return await asyncio.shield(end)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield

    def ends(self, call_id: str, result: str | Exception) -> None:
        end = self._ends[call_id]
        if isinstance(result, str):
            end.set_result(result)
        else:
            end.set_exception(result)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@asynccontextmanager
async def replica(
    store: Redis, owner: Owner, engine: ScriptedEngine, bench: Bench, *, alone: bool = True, **policy: Any
) -> AsyncIterator[Chat]:
    sessions = Sessions(
        client=store,
        engine=engine,
        policy=Policy(ttl_s=60, max_turns=10, **policy),
        tools=ToolRegistry([bench]),
    )
    async with sessions.running(alone=alone):
        yield Chat(sessions, engine, owner, Recorder())


@pytest.fixture
async def served(store: Redis, owner: Owner, engine: ScriptedEngine, bench: Bench) -> AsyncIterator[Chat]:
    async with replica(store, owner, engine, bench) as chat:
        yield chat


async def test_a_tool_runs_and_the_turn_goes_on_by_itself(served: Chat, bench: Bench) -> None:
    done = await served.play("Time?", TICK, tools=[CLOCK])
    await eventually(lambda: bool(bench.started))
    assert bench.started == [(done.open[0], "clock", {"zone": "UTC"})]
    bench.ends(done.open[0], "Noon.")
    await served.follow("It is noon.")
    assert served.engine.requests[-1].messages[-1].content == "Noon."
    assert [state.state for state in served.reader.of(ToolState)] == [CallState.RUNNING, CallState.DONE]
    assert served.reader.of(ToolCall)[0].where == "server"
    assert served.reader.of(ToolCall)[0].expires_at is None
    assert continuous(served.reader.events)


async def test_its_claim_is_in_the_store_before_it_starts(
    served: Chat, bench: Bench, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims: list[CallState] = []
    history = History(store, ttl_s=60, replica="look")
    run = bench.run

    async def look(name: str, arguments: dict[str, Any], context: CallContext) -> str:
        kept = await history.call(served.keys, context.call_id)
        assert kept is not None
        claims.append(kept.state)
        assert kept.runner == served.sessions.parts.storage.ownership.replica
        return await run(name, arguments, context)

    monkeypatch.setattr(bench, "run", look)
    done = await served.play("Time?", TICK, tools=[CLOCK])
    await eventually(lambda: bool(bench.started))
    assert claims == [CallState.RUNNING]
    bench.ends(done.open[0], "Noon.")
    await served.follow("Noon.")


async def test_tools_of_server_and_client_are_waited_for_together(served: Chat, bench: Bench) -> None:
    done = await served.play("Time and weather?", TICK, BERN, TICK, tools=[CLOCK, WEATHER])
    await eventually(lambda: len(bench.started) == 2)
    bench.ends(done.open[2], "Noon.")
    await served.result(done.open[1], "Rain.")
    await served.reader.until(lambda: len(served.reader.of(ToolState)) == 4)
    assert len(served.engine.requests) == 1
    bench.ends(done.open[0], "Noon.")
    await served.follow("So.")
    assert len(bench.started) == 2


async def test_what_a_tool_says_about_its_failure_is_for_the_model(served: Chat, bench: Bench) -> None:
    done = await served.play("Time?", TICK, TICK, TICK, tools=[CLOCK])
    await eventually(lambda: len(bench.started) == 3)
    bench.ends(done.open[0], ToolFailed("The clock stands."))
    bench.ends(done.open[1], ToolLost("Nobody knows."))
    bench.ends(done.open[2], ZeroDivisionError("a secret"))
    await served.follow("So.")
    reported = [message.content for message in served.engine.requests[-1].messages if message.role == "tool"]
    assert reported[:2] == ["Error: The clock stands.", "Nobody knows."]
    assert "internal error" in reported[2]
    assert "secret" not in reported[2]
    page = await served.history(Recorder())
    assert isinstance(page.messages[1].calls, tuple)
    assert [call.state for call in page.messages[1].calls] == [
        CallState.DONE,
        CallState.LOST,
        CallState.DONE,
    ]


@pytest.mark.parametrize("call", [Call("wipe"), Call("nobody"), Call("clock", "[1]"), Call("clock", "{")])
async def test_what_was_not_offered_or_makes_no_sense_is_not_run(
    served: Chat, bench: Bench, call: Call
) -> None:
    await served.play("Time?", call, tools=[CLOCK])
    await served.follow("So.")
    assert bench.started == []
    assert served.engine.requests[-1].messages[-1].content.startswith("Error: ")


async def test_a_tool_that_needs_approval_starts_when_it_is_allowed_with_what_was_allowed(
    served: Chat, bench: Bench
) -> None:
    done = await served.play("Wipe!", SWEEP, tools=[WIPE])
    assert bench.started == []
    await served.decide(served.reader.of(ToolCall)[0], args='{"disk": 2}')
    await eventually(lambda: bool(bench.started))
    assert bench.started == [(done.open[0], "wipe", {"disk": 2})]
    bench.ends(done.open[0], "Wiped.")
    await served.follow("Done.")


async def test_it_is_not_started_where_it_is_denied(served: Chat, bench: Bench) -> None:
    await served.play("Wipe!", SWEEP, tools=[WIPE])
    await served.decide(served.reader.of(ToolCall)[0], allow=False)
    await served.follow("Fine.")
    assert bench.started == []


async def test_one_that_is_allowed_while_the_reply_is_written_starts_behind_it(
    served: Chat, bench: Bench
) -> None:
    served.engine.script([SWEEP, "So", " far."])
    accepted = await served.send("Wipe!", tools=[WIPE])
    await eventually(lambda: bool(served.engine.requests))
    await served.step()
    await served.decide(await served.reader.next(ToolCall))
    assert bench.started == []
    done = await served.finish(accepted.turn_id)
    await eventually(lambda: bool(bench.started))
    bench.ends(done.open[0], "Wiped.")
    await served.follow("Done.")
    assert len(bench.started) == 1


async def test_a_cancel_ends_what_runs(served: Chat, bench: Bench) -> None:
    await served.play("Time?", TICK, TICK, tools=[CLOCK])
    await eventually(lambda: len(bench.started) == 2)
    served.cancel()
    end = await served.reader.next(Done, count=2)
    await served.wait_idle()
    assert (end.reason, bench.cancelled) == (Reason.CANCELLED, 2)
    assert [state.state for state in served.reader.of(ToolState)][2:] == [CallState.CANCELLED] * 2


async def test_nobody_brings_a_result_in_a_tools_place(served: Chat, bench: Bench) -> None:
    done = await served.play("Time?", TICK, tools=[CLOCK])
    with pytest.raises(Exception, match="server runs"):
        await served.result(done.open[0], "Midnight.")


async def test_progress_is_shown_and_not_kept(served: Chat, bench: Bench) -> None:
    done = await served.play("Time?", TICK, tools=[CLOCK])
    await eventually(lambda: bool(bench.contexts))
    bench.contexts[0].progress(Progress(done=1, total=4, message="Looking."))
    status = served.reader.of(Status)[-1]
    assert (status.state, status.call_id, status.progress) == ("tool", done.open[0], 0.25)
    assert (status.turn_id, status.message) == (done.turn_id, "Looking.")
    bench.ends(done.open[0], "Noon.")
    await served.follow("Noon.")


async def test_a_filter_reads_results_too(
    store: Redis, owner: Owner, engine: ScriptedEngine, bench: Bench
) -> None:
    filters = Filters([_words("midnight")])
    async with replica(store, owner, engine, bench, filters=filters) as chat:
        done = await chat.play("Time?", TICK, tools=[CLOCK])
        await eventually(lambda: bool(bench.started))
        bench.ends(done.open[0], "It is midnight.")
        await chat.follow("So.")
    assert "filter" in engine.requests[-1].messages[-1].content


def _words(*words: str) -> Filter:
    nothing = MatchLists([], [], max_chars=9)
    return ListFilter(incoming=MatchLists(list(words), [], max_chars=9), outgoing=nothing)


# ---- death and restart


async def die(chat: Chat, store: Redis) -> None:
    """The replica stands still for longer than its lease."""
    await store.delete(f"ms:replica:{chat.sessions.parts.storage.ownership.replica}")


@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_call_whose_replica_died_is_lost_unless_it_may_run_again(
    store: Redis,
    owner: Owner,
    engine: ScriptedEngine,
    idempotent: bool,  # noqa: FBT001
) -> None:
    here, there = Bench(idempotent=idempotent), Bench(idempotent=idempotent)
    other_engine = ScriptedEngine(by_hand=True)
    async with (
        replica(store, owner, engine, here) as chat,
        replica(store, owner, other_engine, there, alone=False) as other,
    ):
        done = await chat.play("Time?", TICK, tools=[CLOCK])
        await eventually(lambda: bool(here.started))
        await other.history()
        await die(chat, store)
        await other.sessions.parts.reaper.reap()
        if idempotent:
            await eventually(lambda: bool(there.started))
            there.ends(done.open[0], "Noon.")
        await other.follow("So.")
        assert len(there.started) == int(idempotent)
        state = other.reader.of(ToolState)[-1]
        assert state.state is (CallState.DONE if idempotent else CallState.LOST)
        reported = other_engine.requests[-1].messages[-1].content
        assert reported == (
            "Noon." if idempotent else "The call was interrupted. Whether it was carried out is not known."
        )
        here.ends(done.open[0], "Too late.")
        await chat.wait_idle()
        assert len(here.started) == 1
        assert continuous(other.reader.events)
        page = await other.history(Recorder())
        assert len(page.messages) == 3


async def test_a_restart_loses_what_ran_and_goes_on(
    store: Redis, owner: Owner, engine: ScriptedEngine, bench: Bench
) -> None:
    async with replica(store, owner, engine, bench) as chat:
        await chat.play("Time?", TICK, BERN, tools=[CLOCK, WEATHER], on_disconnect="continue")
        await eventually(lambda: bool(bench.started))
        call = chat.reader.of(ToolCall)[1]
        await chat.sessions.drain(0.01)
    assert bench.cancelled == 1
    assert await running_turns_in_store(store) == 1
    again = Bench()
    async with replica(store, owner, engine, again) as chat:
        await chat.history()
        await eventually(lambda: bool(chat.live_conversation.turns))
        await chat.result(call.call_id, "Rain.")
        await chat.follow("So.")
        page = await chat.history(Recorder())
    assert isinstance(page.messages[1].calls, tuple)
    assert [one.state for one in page.messages[1].calls] == [CallState.LOST, CallState.DONE]
    assert again.started == []
    assert await running_turns_in_store(store) == 0


async def test_a_drain_waits_for_tools_that_run(
    store: Redis, owner: Owner, engine: ScriptedEngine, bench: Bench
) -> None:
    async with replica(store, owner, engine, bench) as chat:
        done = await chat.play("Time?", TICK, tools=[CLOCK])
        await eventually(lambda: bool(bench.started))
        draining = asyncio.create_task(chat.sessions.drain(30))
        await eventually(lambda: chat.sessions.parts.admission.draining)
        bench.ends(done.open[0], "Noon.")
        await draining
        assert [state.state for state in chat.reader.of(ToolState)] == [CallState.RUNNING, CallState.DONE]
        assert len(chat.reader.of(Accepted)) == 1
    engine.script(["It is noon."])
    async with replica(store, owner, engine, Bench()) as chat:
        await eventually(lambda: len(engine.requests) == 2)  # it goes on by itself, whoever is there
        await chat.history()
        await chat.finish(engine.requests[-1].request_id)
        page = await chat.history(Recorder())
    assert engine.requests[-1].messages[-1].content == "Noon."
    assert page.messages[-1].content == "It is noon."


async def test_a_tool_does_not_start_while_its_claim_is_not_in_the_store(
    served: Chat, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirmed = asyncio.Event()
    requested = asyncio.Event()

    async def later(self: CallStates, *_: object) -> None:
        requested.set()
        await confirmed.wait()

    monkeypatch.setattr(CallStates, "until_certain", later)
    done = await served.play("Time?", TICK, tools=[CLOCK])
    await requested.wait()
    assert bench.started == []
    confirmed.set()
    await eventually(lambda: bool(bench.started))
    bench.ends(done.open[0], "Noon.")
    await served.follow("Noon.")
